"""A provider's fake results against its real ones: compiled code believes the fake ones."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch._subclasses.schema_check_mode import SchemaCheckMode

from opdock import ir
from opdock.compile.body import untrue
from opdock.compile.layouts import describe
from opdock.compile.nodes import several

_TOKENS = 6
_checked: weakref.WeakSet[ir.IrOpImpl] = weakref.WeakSet()


def check_real_results(impl: ir.IrOpImpl, like: Any, *, opaque_writes: bool) -> None:
    """Run a provider once in this process on small inputs, real and fake, and compare what comes back.

    Nothing is run for the native definition, whose fake is itself, for an op without an input generator, and where
    the provider takes none of the inputs that are made. The user's random numbers stay what they are.

    Args:
        impl: the provider.
        like: a result of the call that it was chosen for, fake: says on which device.
        opaque_writes: whether it calls torch ops that write: then their schemas are checked too.

    Raises: LoweringError with both layouts, or with what the kernel raised.
    """
    if impl in _checked or impl.is_native or not impl.op.has_input_generator:
        return
    _checked.add(impl)
    device = next(v.device for v in several(like))
    with unset_fake_temporarily(), torch.no_grad():
        with torch.random.fork_rng(devices=[]):
            made = impl.op.apply_arg_defaults(impl.op.generate_inputs(num_tokens=_TOKENS))
        real = [a.to(device) if isinstance(a, torch.Tensor) else a for a in made]
        if not impl.supports_args(*real):
            return
        mode = FakeTensorMode()
        fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in real]
        try:
            with mode:
                promised = several(impl.func_impl_fn(*fake))
        except Exception:  # noqa: BLE001 - it was traced for the call's own arguments: it may not take these
            return
        try:
            returned = several(impl.func_impl_fn(*real))
        except Exception as err:
            raise untrue(impl, f"raises {type(err).__name__} on inputs that supports_args takes", str(err)) from err
        if opaque_writes:
            _refuse_untrue_schemas(impl, real)
    for number, (want, got) in enumerate(zip(promised, returned, strict=True)):
        if _geometry(want) != _geometry(got):
            raise untrue(
                impl,
                f"has a fake implementation that says otherwise than its kernel about result {number}",
                [f"fake: {describe(want)}", f"real: {describe(got)}"],
            )


def _refuse_untrue_schemas(impl: ir.IrOpImpl, args: list[Any]) -> None:
    """Refuse a kernel that writes what its schema does not say: its clone may be taken away."""
    try:
        with SchemaCheckMode():
            impl.func_impl_fn(*args)
    except RuntimeError as err:
        if "defined as mutable" in str(err) or "defined to alias" in str(err):
            raise untrue(impl, "calls a torch op whose schema is not true", str(err)) from err
    except NotImplementedError:  # a higher-order operator, which this mode does not take
        return


def _geometry(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, value.device, value.size(), value.stride()
