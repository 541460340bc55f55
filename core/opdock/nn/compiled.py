"""What compiled mode does with a model, without its weights and without compiling anything."""

from __future__ import annotations

import os

import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from opdock.compile.backend import tell
from opdock.compile.passes import run
from opdock.compile.report import GraphReport
from opdock.compile.switches import fusions_in_force
from opdock.errors import ConfigError
from opdock.nn.loading import load_without_weights


def explain_compiled(
    path: str | os.PathLike[str], *, num_tokens: int = 16, dtype: torch.dtype | str | None = None
) -> GraphReport:
    """Trace the model of a checkpoint on fake tensors and run every pass but Inductor's.

    Call it inside ``opdock.set_current_config()``, with a configuration that compiles: layers bind their methods as
    they would.

    Args:
        path: what ``load_model`` takes.
        num_tokens: length of the sequence.
        dtype: of the weights and all computation; None takes the checkpoint's.

    Raises: as ``load_model``; ConfigError for a length that the model does not have; LoweringError for a provider that
        does not keep its promises.
    """
    fusions = fusions_in_force(None)  # a misspelt one is told before long work
    with FakeTensorMode(), torch.no_grad():
        model = load_without_weights(path, dtype=dtype)
        longest = model.config.max_position
        if not 0 < num_tokens <= longest:
            raise ConfigError(
                f"A sequence of {num_tokens} tokens does not fit.",
                why=f"The model's context holds {longest}.",
                remedy=f"use a number from 1 to {longest}.",
            )
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        device = next(iter(state.values())).device
        tokens = torch.zeros(num_tokens, dtype=torch.long, device=device)
        positions = torch.arange(num_tokens, device=device)
        # the forms of aten ops that Inductor's graph has: fusions match them
        table = select_decomp_table()
        traced = make_fx(lambda held, *inputs: functional_call(model, held, inputs), table)(state, tokens, positions)
    report = run(traced.graph, fusions=fusions, decompositions=table)
    tell(report)
    return report
