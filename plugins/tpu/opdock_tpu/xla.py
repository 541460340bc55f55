"""How code runs on XLA: op by op inside ``enabled()``, or compiled as one program by ``compiled()``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from opdock import ir
from opdock.config import NATIVE
from opdock_tpu import probe
from opdock_tpu.priorities import LEFT_TO_XLA

_for_tpu: ContextVar[bool] = ContextVar("for_tpu", default=False)


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Run torch functions on tensors of device ``jax``; CPU tensors are never pinned.

    torchax hands most operations on CPU tensors to torch, and refuses some: code on the CPU belongs outside.
    """
    import torchax

    with torchax.default_env(), _Unpinned():
        yield


class _Unpinned(TorchFunctionMode):
    """Leaves out ``pin_memory=True``, for which torchax gives torch no allocator: XLA copies from memory of its own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if given.get("pin_memory"):
            given = {name: value for name, value in given.items() if name != "pin_memory"}
        return func(*args, **given)


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Do as ``enabled``, and record no gradients."""
    with torch.no_grad(), enabled():
        yield


@contextlib.contextmanager
def for_tpu() -> Iterator[None]:
    """Build kernels for TPUs inside, whatever the process runs on: what is traced here can only be compiled for one."""
    token = _for_tpu.set(True)
    try:
        yield
    finally:
        _for_tpu.reset(token)


def interpreting() -> bool:
    """Return whether kernels are interpreted: XLA's CPU client runs no Pallas kernel."""
    return probe.on_cpu() and not _for_tpu.get()


@contextlib.contextmanager
def left_to_xla() -> Iterator[None]:
    """Use native definitions inside for what XLA fuses, in this thread."""
    with contextlib.ExitStack() as stack:
        for name in LEFT_TO_XLA:
            stack.enter_context(ir.registry[name].set_priority([NATIVE]))
        yield


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn``, a function of tensors on device ``jax``, compiled by XLA for each new set of shapes.

    Norms are native in it, for XLA to fuse; see ``priorities.LEFT_TO_XLA``.

    Args:
        fn: of tensors, and of lists, tuples and dictionaries of them; it must not write to what it is given.
    """
    from torchax import interop

    def traced(*args: Any) -> Any:
        with left_to_xla():
            return fn(*args)

    jitted = interop.jax_jit(traced)

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        with without_gradients():
            return jitted(*args)

    return call
