"""The forward of a batch's model: as it was loaded, and if that is compiled, checked less at each call."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from opdock import context

if TYPE_CHECKING:
    from opdock.nn.models.decoder import CausalDecoder

Forward: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def forward_of(model: CausalDecoder) -> Forward:
    """Return a function of input ids and positions, each (num_tokens,) int64, that returns the hidden rows.

    Compiled code checks at each call whether everything that it was made for still holds: some 400 conditions for
    each layer of a model, which take longer than the kernels. While a batch has the model, its layers and their
    bindings are the batch's own and stay, so these conditions are left out; those on the inputs, on torch's modes and
    on the priorities of ops are not.
    """
    if model._compiled_call_impl is None:
        return model.forward
    config = context.get_current_config_or_none()
    backend = config.compilation_config.backend if config and config.compilation_config.compiles else "opdock"
    options: dict[str, Any] = {"guard_filter_fn": _kept}
    if backend in ("opdock", "inductor"):
        options["graph_partition"] = False  # parts are of use for Inductor's own graphs; steps are captured whole
        options["size_asserts"] = False  # of the weights, at each call; they stay as well
    compiled = torch.compile(_own(model), backend=backend, fullgraph=True, options=options)

    def run(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[0] > 1:  # one code for every number of tokens but 1
            for tensor in (input_ids, positions):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        hidden: torch.Tensor = compiled(input_ids, positions)
        return hidden

    return run


def _own(served_model: CausalDecoder) -> Forward:
    """Return the model's forward as a function whose code nothing else has: Dynamo keeps what it compiled by code."""

    def step(input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return served_model.forward(input_ids, positions)

    return types.FunctionType(step.__code__.replace(), step.__globals__, "step", None, step.__closure__)


def _kept(conditions: Sequence[Any]) -> list[bool]:
    """Return for each condition of compiled code whether it is checked: those on the model are not."""
    return ["served_model" not in condition.name for condition in conditions]
