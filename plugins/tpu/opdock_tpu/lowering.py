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
    """Fill torchax's table, and its device module; again, it changes nothing."""
    from torchax import device_module

    from opdock_tpu import ops

    if not hasattr(device_module, "Event"):
        device_module.Event = Event
    # torch.accelerator has no part of torchax, and fails when it is asked for a stream. torch.compile asks it, for CPU
    # tensors too, where the device says that it is available.
    device_module.is_available = _not_to_torch_accelerator

    tpu = torch.ops.opdock_tpu
    _put(tpu.rms_norm.default, ops.rms_norm_arrays, of_arrays=True)
    _put(tpu.fused_add_rms_norm.default, ops.fused_add_rms_norm_arrays, of_arrays=True)
    for op in ir.registry.values():
        run = _chosen(op)
        for overload in (op.torch_ops.default, op.torch_ops.maybe_inplace):
            if overload is not None:
                _put(overload, run)
    _put(torch.Tensor.narrow, narrow)
    _put(torch.Tensor.view, view)
    _put(torch.Tensor.copy_, copy_)


def _not_to_torch_accelerator() -> bool:
    return False


class Event:
    """An event of a device that has no queue to ask: a copy to the host waits for what it copies."""

    def __init__(self, enable_timing: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Keep nothing."""

    def record(self, stream: object = None) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Do nothing."""


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
    from torchax.view import View

    place = dim % self.ndim
    slices = (slice(None),) * place + (slice(start, start + length),)
    shape = (*self.shape[:place], length, *self.shape[place + 1 :])
    made: Tensor = View(self, view_info=_narrowed()(slices, shape), env=self._env)
    return made


@functools.cache
def _narrowed() -> Any:
    from torchax.view import NarrowInfo

    class Narrowed(NarrowInfo):  # type: ignore[misc] # a class of torchax, which may be missing
        """A part whose shape is known: torchax cuts it out to see its shape, by a program for each length."""

        def __init__(self, slices: tuple[slice, ...], shape: tuple[int, ...]) -> None:
            super().__init__(slices)
            self.shape = shape

        def calculate_output_shape(self, source: Any) -> tuple[int, ...]:
            return self.shape

    return Narrowed


def view(self: Any, *shape: Any) -> Tensor:
    """Return the elements in another shape, or their bits in another dtype.

    XLA has no int64 here, and holds such numbers as int32. Where int32 is to be read as int64, two words are one
    number: its lower word is the value.
    """
    import torchax
    from jax import lax
    from torchax.ops import mappings

    array, (first, *_) = self.jax(), shape
    if isinstance(first, torch.dtype):
        if first is torch.int64 and array.dtype.itemsize == 4:
            made = array.reshape(*array.shape[:-1], -1, 2)[..., 0]
        else:
            made = lax.bitcast_convert_type(array, mappings.t2j_dtype(first))
    else:
        made = array.reshape(tuple(first) if isinstance(first, (tuple, list)) else shape)
    return torchax.tensor.Tensor(made, self._env)  # type: ignore[no-any-return]


def copy_(self: Any, source: Any, non_blocking: bool = False) -> Tensor:  # noqa: ARG001, FBT001, FBT002 - torch's
    """Write ``source`` to ``self``, either of which may be a CPU tensor; torchax's own writes to none of those."""
    from torch.utils._mode_utils import no_dispatch
    from torchax.ops import mappings
    from torchax.view import View

    if not hasattr(self, "jax"):
        with no_dispatch(), torch._C.DisableTorchFunction():
            return self.copy_(mappings.j2t(source.jax(), use_dlpack=False))  # type: ignore[no-any-return]
    import jax.numpy as jnp

    with no_dispatch(), torch._C.DisableTorchFunction():
        array = source.jax() if hasattr(source, "jax") else mappings.t2j(source, use_dlpack=False)
    made = jnp.broadcast_to(array, tuple(self.shape)).astype(mappings.t2j_dtype(self.dtype))
    if isinstance(self, View):
        self.update(made)
    else:
        self._elem = made
    return self  # type: ignore[no-any-return]


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
