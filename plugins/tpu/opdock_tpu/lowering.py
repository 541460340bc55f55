"""What torchax is taught: this package's ops, opdock's, and a view that it copies.

torchax reads its table when its environment is made, which starts XLA's client; filling the table starts nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opdock import ir
from opdock.config import NATIVE


def register() -> None:
    """Fill torchax's table; again, it changes nothing."""
    from opdock_tpu import ops

    tpu = torch.ops.opdock_tpu
    _put(tpu.rms_norm.default, ops.rms_norm_arrays, of_arrays=True)
    _put(tpu.fused_add_rms_norm.default, ops.fused_add_rms_norm_arrays, of_arrays=True)
    for op in ir.registry.values():
        run = _chosen(op)
        for overload in (op.torch_ops.default, op.torch_ops.maybe_inplace):
            if overload is not None:
                _put(overload, run)
    _put(torch.Tensor.narrow, narrow)


def _chosen(op: ir.IrOp) -> Callable[..., Any]:
    """Return a function that runs the provider which the priority in force chooses."""
    names = list(op.parameters)

    def run(*args: Any, **kwargs: Any) -> Any:
        from opdock_tpu import xla

        with xla.enabled():
            given = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
            impl = op.dispatch(*given)
            return _one_program(impl, given) if impl.provider == NATIVE else impl.func_impl_fn(*given)

    return run


def _one_program(impl: ir.IrOpImpl, args: list[Any]) -> Any:
    """Run a definition as one program of XLA, which fuses its operations; called op by op, each would be one."""
    from torchax import interop

    places = tuple(i for i, value in enumerate(args) if isinstance(value, Tensor))
    others = tuple(None if i in places else value for i, value in enumerate(args))
    try:
        program = _program(impl.impl_fn, places, others)
    except TypeError:  # a list among the arguments
        return impl.impl_fn(*args)
    return interop.torch_view(program(*(args[i].jax() for i in places)))


@functools.lru_cache(maxsize=1024)
def _program(fn: Callable[..., Any], places: tuple[int, ...], others: tuple[Any, ...]) -> Callable[..., Any]:
    """Return ``fn`` compiled, as a function of its tensors; the other arguments are part of it."""
    import jax
    from torchax import interop

    def traced(*tensors: Any) -> Any:
        given = list(others)
        for place, tensor in zip(places, interop.torch_view(tensors), strict=True):
            given[place] = tensor
        return interop.jax_view(fn(*given))

    return jax.jit(traced)  # type: ignore[no-any-return]


def narrow(self: Any, dim: int, start: int, length: int) -> Tensor:
    """Return ``length`` positions of ``dim`` from ``start`` on, a view: what is written to it is written to ``self``.

    torchax's own gives a copy, so that ``x.narrow(...).copy_(y)`` would change nothing.
    """
    from torchax.view import NarrowInfo, View

    place = dim % self.ndim
    slices = (slice(None),) * place + (slice(start, start + length),)
    return View(self, view_info=NarrowInfo(slices), env=self._env)


def _put(torch_op: Any, function: Callable[..., Any], *, of_arrays: bool = False) -> None:
    from torchax.ops import ops_registry

    made = ops_registry.Operator(
        torch_op,
        function,
        is_jax_function=of_arrays,
        is_user_defined=True,
        needs_env=False,
        is_view_op=not of_arrays,
    )
    ops_registry.all_aten_ops[torch_op] = made
    import torchax

    if torchax._env is not None:  # it was made before, by somebody else
        torchax._env._ops[torch_op] = made
