"""Tests of the surroundings of a call or registration: is this plain eager code, is it the right moment?"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._device import DeviceContext

from opdock import context, journal
from opdock.errors import OrderError, RegistrationError

if TYPE_CHECKING:
    from opdock.ir.impl import IrOpImpl

logger = logging.getLogger("opdock")
_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))


def is_plain_eager(tensors: Sequence[object]) -> bool:
    """Return whether a call that failed the fast test may still go directly to the provider.

    Parameters and ``torch.device`` contexts are plain eager code; tracers, modes and subclasses are not.
    """
    c = torch._C
    return (
        not c._len_torch_dispatch_stack()
        and all(type(t) in _PLAIN for t in tensors)
        and c._functorch.peek_interpreter_stack() is None
        and all(isinstance(c._get_function_stack_at(i), DeviceContext) for i in range(c._len_torch_function_stack()))
    )


def refuse_early_registration(op: str, provider: str) -> None:
    """Raise OrderError when a plugin's provider module is imported before its extension is loaded."""
    site = journal.Site.here()
    if journal.current_owner() is not None or context.kernels_loaded():
        return
    if site.module.partition(".")[0] in _plugin_packages():
        raise OrderError(
            f"Provider {provider!r} of op {op!r} is registered before the kernels are loaded.",
            who=f"module {site.module}  {site}",
            why="Its module was imported directly; import_kernels has not run, so what it calls may not exist yet.",
            remedy="import the module in import_ir_kernels only, and use opdock.current_platform to activate it.",
        )


@functools.cache
def _plugin_packages() -> frozenset[str]:
    from opdock.discovery import metadata

    return frozenset(
        c.value.partition(":")[0].partition(".")[0]
        for c in metadata.scan().candidates
        if c.dist.requires_opdock is not None and c.dist.name.lower() != "opdock"
    )


def probe(impl: IrOpImpl) -> None:
    """Run the checks of ``OPDOCK_STRICT=1``: the predicate on fake tensors, and what the provider writes.

    Raises: RegistrationError for a predicate that reads data or addresses, or a provider that writes an argument
        which it does not declare.
    """
    if not impl.op.has_input_generator:
        logger.warning("Op %s has no input generator: provider %s is not probed.", impl.op.name, impl.provider)
        return
    who = f"op {impl.op.name!r}, provider {impl.provider!r}  {impl.site}"
    args = impl.op.generate_inputs()
    if impl.predicate is not None:
        _probe_predicate(impl, args, who)
    if impl.supported and impl.supports_args(*args):
        _probe_mutation(impl, args, who)


class _NoAddress(torch.overrides.TorchFunctionMode):
    """Refuses ``data_ptr``: it is 0 on a fake tensor, so every alignment test would say yes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "data_ptr":
            raise RegistrationError("data_ptr")
        return func(*args, **(kwargs or {}))


def _probe_predicate(impl: IrOpImpl, args: Sequence[Any], who: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        try:
            with _NoAddress():
                impl.refusal(*fake)
        except (DataDependentOutputException, RegistrationError, RuntimeError) as err:
            reads = "an address (data_ptr is 0 on fake tensors)" if "data_ptr" in str(err) else "data"
            raise RegistrationError(
                f"supports_args of provider {impl.provider} reads {reads}.",
                who=who,
                why=str(err).splitlines()[0],
                remedy="decide by dtype, shape, strides, storage_offset and device alone.",
            ) from None


def _probe_mutation(impl: IrOpImpl, args: Sequence[Any], who: str) -> None:
    given = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    impl.impl_fn(*given)
    allowed = set(impl.op.activations) if impl.inplace else set()
    for name, before, after in zip(impl.op.parameters, args, given, strict=False):
        if (
            isinstance(before, torch.Tensor)
            and name not in allowed
            and not torch.equal(before.nan_to_num(), after.nan_to_num())
        ):
            raise RegistrationError(
                f"Provider {impl.provider} of op {impl.op.name} writes {name}, which it does not declare.",
                who=who,
                remedy="register it with inplace=True if it writes activations, or write to a new tensor.",
            )
