"""The checks that run a provider's code: of ``OPDOCK_STRICT=1``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from opdock.errors import RegistrationError
from opdock.ir.plan import is_yes

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from opdock.ir.impl import IrOpImpl

logger = logging.getLogger("opdock")
_TOKENS = (6, 10)


def probe(impl: IrOpImpl) -> None:
    """Run the predicate on fake tensors, and the provider on small inputs that it takes.

    Raises: RegistrationError for a predicate that reads data or addresses, and for a provider that writes what it
        does not declare or returns an input. A predicate that looks at the number of tokens is logged.
    """
    if not impl.op.has_input_generator:
        logger.warning("Op %s has no input generator: provider %s is not probed.", impl.op.name, impl.provider)
        return
    probe_predicate(impl)
    probe_mutation(impl)


def probe_predicate(impl: IrOpImpl) -> None:
    """Run the predicate on fake tensors, with the number of tokens fixed and as a symbol.

    Raises: RegistrationError if it reads data or addresses, or raises.
    """
    if impl.predicate is None:
        return
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    args, longer = (impl.op.generate_inputs(num_tokens=n) for n in _TOKENS)
    shapes = ShapeEnv()
    for mode in (FakeTensorMode(), FakeTensorMode(shape_env=shapes)):
        fake = [_fake(mode, a, b, f"arg{i}") for i, (a, b) in enumerate(zip(args, longer, strict=True))]
        before = len(shapes.guards)
        try:
            with mode, NoAddress():
                is_yes(impl.predicate(*fake))  # its truth is what guards the compiled code
        except Exception as err:
            raise _unfit(impl, err) from err
        if len(shapes.guards) > before:
            logger.warning(
                "Op %s: supports_args of provider %s depends on the number of tokens (%s): compiled code is made "
                "anew for each answer. (%s)",
                impl.op.name,
                impl.provider,
                shapes.guards[before].expr,
                impl.where(),
            )


class AddressError(RuntimeError):
    """A predicate asked for the address of a fake tensor."""


class NoAddress(torch.overrides.TorchFunctionMode):
    """Refuses ``data_ptr``: it is 0 on a fake tensor, so every alignment test would say yes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("data_ptr", "untyped_storage", "storage"):
            raise AddressError(f"{func.__name__}: a fake tensor has no memory, its address reads 0")
        return func(*args, **(kwargs or {}))


def _unfit(impl: IrOpImpl, err: Exception) -> RegistrationError:
    what = "reads an address" if isinstance(err, AddressError) else "reads data, or fails,"
    return RegistrationError(
        f"supports_args of provider {impl.provider} {what} on fake tensors.",
        who=f"op {impl.op.name!r}, provider {impl.provider!r}  {impl.where()}",
        why=f"{type(err).__name__}: {str(err).splitlines()[0] if str(err) else ''}",
        remedy="decide by dtype, shape, strides, storage_offset and device alone.",
    )


def _fake(mode: FakeTensorMode, arg: Any, longer: Any, name: str) -> Any:
    if not isinstance(arg, torch.Tensor):
        return arg
    if mode.shape_env is None:
        return mode.from_tensor(arg)
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.DYNAMIC if a != b else DimDynamic.STATIC for a, b in zip(arg.shape, longer.shape, strict=True)]
    context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
    return mode.from_tensor(arg, symbolic_context=context, source=ConstantSource(name))


def probe_mutation(impl: IrOpImpl) -> None:
    """Run the provider once and compare every input before and after, bit for bit.

    It runs on the accelerator of the process if it takes inputs there, else on the CPU if it takes those.

    Raises: RegistrationError if it writes an input that it does not declare, returns an input although it is not
        in place, or raises on inputs that it takes.
    """
    args = _accepted_inputs(impl)
    if args is None:
        logger.warning(
            "Op %s: provider %s takes none of the inputs made for it, and is not run.", impl.op.name, impl.provider
        )
        return
    given = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    try:
        with torch.no_grad():
            returned = impl.impl_fn(*given)
    except Exception as err:
        raise _untrue(impl, f"raises {type(err).__name__} on inputs that supports_args takes", str(err)) from err
    allowed = impl.op.activations if impl.inplace else ()
    for name, before, after in zip(impl.op.parameters, args, given, strict=False):
        if isinstance(before, torch.Tensor) and name not in allowed and not _same_bits(before, after):
            declared = f"declared: {', '.join(allowed) or 'none'}"
            raise _untrue(impl, f"writes {name}, which it does not declare", declared)
    if not impl.inplace:
        _refuse_alias(impl, given, returned)
    if impl.functional is not None:
        _refuse_alias(impl, args, impl.functional(*args))


def _accepted_inputs(impl: IrOpImpl) -> tuple[Any, ...] | None:
    if not impl.supported:
        return None
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    for device in (*([accelerator.type] if accelerator else []), "cpu"):
        args = impl.op.apply_arg_defaults(impl.op.generate_inputs(num_tokens=_TOKENS[0], device=device))
        if impl.supports_args(*args):
            return args
    return None


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _refuse_alias(impl: IrOpImpl, given: Sequence[Any], returned: Any) -> None:
    storages = {
        a.untyped_storage().data_ptr(): name
        for name, a in zip(impl.op.parameters, given, strict=False)
        if isinstance(a, torch.Tensor) and a.numel()
    }
    for result in returned if isinstance(returned, tuple | list) else (returned,):
        if isinstance(result, torch.Tensor) and result.numel():
            name = storages.get(result.untyped_storage().data_ptr())
            if name is not None:
                raise _untrue(impl, f"returns the memory of {name}", "it is not registered with inplace=True")


def _untrue(impl: IrOpImpl, what: str, why: str) -> RegistrationError:
    return RegistrationError(
        f"Provider {impl.provider} of op {impl.op.name} {what}.",
        who=f"{impl.where()}",
        why=why,
        remedy="register it with inplace=True if it writes its activations, write into new tensors, or refuse such "
        "inputs in supports_args.",
    )
