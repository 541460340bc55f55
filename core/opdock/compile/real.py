"""The check that runs a provider's code while a model is compiled: of ``OPDOCK_STRICT=1``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from opdock import ir
from opdock.compile.body import Body, untrue
from opdock.compile.layouts import describe

_SEED = 0


def check_real_results(impl: ir.IrOpImpl, given: Mapping[str, Any], traced: Body) -> None:
    """Run the provider on random tensors of the given kinds, and compare its results with those of its trace.

    A kernel and its fake implementation are two pieces of code; compiled code believes the fake one.

    Raises: LoweringError with both layouts.
    """
    nodes: Any = traced.results if isinstance(traced.results, tuple | list) else (traced.results,)
    with unset_fake_temporarily(), torch.no_grad():
        random = torch.Generator().manual_seed(_SEED)
        got = impl.func_impl_fn(**{name: _realise(value, random) for name, value in given.items()})
    for number, (node, real) in enumerate(zip(nodes, got if isinstance(got, tuple | list) else (got,), strict=True)):
        fake = node.meta["val"]
        if _geometry(fake) != _geometry(real):
            raise untrue(
                impl,
                f"has a fake implementation that says otherwise than its kernel about result {number}",
                [f"fake: {describe(fake)}", f"real: {describe(real)}"],
            )


def _realise(value: Any, random: torch.Generator) -> Any:
    """Return a real tensor of the geometry of a fake one, symbols as the numbers that they stand for now."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint
    if isinstance(value, tuple | list):
        return type(value)(_realise(v, random) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    size, stride = [_number(n) for n in value.size()], [_number(n) for n in value.stride()]
    made = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
    if value.dtype.is_floating_point:
        return made.copy_(torch.randn(size, generator=random))
    return made.fill_(0)  # positions and indices: 0 is always one


def _geometry(value: torch.Tensor) -> tuple[Any, ...]:
    size = [_number(n) for n in value.size()]
    stride = [_number(n) for n, k in zip(value.stride(), size, strict=True) if k != 1 and 0 not in size]
    return value.dtype, value.device, size, stride


def _number(n: Any) -> int:
    return int(n.node.hint) if isinstance(n, torch.SymInt) else int(n)
