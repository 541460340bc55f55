"""A provider's predicate and results, on dense inputs of many sizes and dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock.errors import RegistrationError
from opdock.ir import strict
from opdock.ir.predicate import refusal
from opdock.testing import cases, oracle, placing
from opdock.testing.cases import DENSE, LAYOUTS, Case
from opdock.testing.check import PROVIDER, CannotRun, Fault, check
from opdock.testing.trying import Input, call, dtypes_of, over, require_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from opdock.testing.kit import Kit


@check(
    "provider.predicate",
    kind=PROVIDER,
    needs=("platform.dispatch_key",),
    after=("platform.dtypes", "platform.device_works"),
)
def predicate(kit: Kit, subject: str) -> str:
    """supports_args decides by metadata alone: on fake tensors as on real ones; and takes some of the inputs."""
    impl = kit.provider(subject, to_run=kit.has_device)  # a predicate needs neither the device nor the kernel
    require_inputs(impl)
    try:
        strict.probe_predicate(impl)
    except RegistrationError as err:
        raise Fault(err.what, who=err.who, why=err.why, remedy=err.remedy) from err
    mode, tally = FakeTensorMode(), cases.Tally()
    for case in _few(kit):
        values = cases.make(impl.op, case)
        if values is None or oracle.expected(impl.op, values) is None:
            continue
        device = kit.device_type if kit.has_device else "cpu"
        args = placing.arguments(
            list(impl.op.parameters), values, activations=impl.op.activations, layout=case.layout, device=device
        )
        if args is None:
            continue
        kit.trying(str(case))
        fake = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args.values]
        if not kit.has_device:
            fake = _on(mode, fake, kit.device_type)
        with mode, strict.NoAddress():
            on_fake = refusal(impl.predicate, fake, {})
        if not kit.has_device:
            tally.count(on_fake)
            continue
        _require_answer(impl.predicate, args.values, str(case))
        on_real, again = (refusal(impl.predicate, args.values, {}) for _ in range(2))
        if bool(on_real) != bool(again):
            raise Fault("supports_args gives another answer the second time.", who=f"input: {case}")
        if bool(on_fake) != bool(on_real):
            raise Fault(
                "supports_args answers otherwise on fake tensors than on real ones: compiled code would run another "
                "provider than eager code.",
                who=f"input: {case}",
                why=[f"fake: {on_fake or 'yes'}", f"real: {on_real or 'yes'}"],
                remedy="decide by dtype, shape, strides, storage_offset and device alone.",
            )
        tally.count(on_real)
    if not tally.taken:
        raise Fault(
            "supports_args takes none of the inputs that the kit makes: the provider never runs.",
            why=[f"{reason} ({n} inputs)" for reason, n in list(tally.declined.items())[:4]],
            remedy="correct the predicate; or declare a skip, with the reason, if only other inputs are meant.",
        )
    return str(tally)


def _require_answer(predicate: Callable[..., object] | None, given: list[object], case: str) -> None:
    said = True if predicate is None else predicate(*given)
    if not isinstance(said, (bool, str)):
        raise Fault(
            f"supports_args returned {said!r}, expected True, False or the reason why not.",
            who=f"input: {case}",
            why="what is computed from a tensor's data stops the device at every call, and cannot be compiled",
        )


def _few(kit: Kit) -> list[Case]:
    """Return cases of every layout and dtype."""
    sizes = ((1, 64), (7, 80), (16, 128), (64, 64))
    return [
        Case(tokens, hidden, dtype, layout)
        for dtype in dtypes_of(kit)
        for layout in (DENSE, *LAYOUTS)
        for tokens, hidden in sizes
    ]


def _on(mode: FakeTensorMode, values: list[object], device: str) -> list[object]:
    """Return fake tensors on a device that is not there."""
    try:
        with mode:
            return [
                torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=device)
                if isinstance(v, torch.Tensor)
                else v
                for v in values
            ]
    except Exception as err:
        raise CannotRun(f"torch has no fake tensors on {device} here: {err}") from err


@check("provider.results", kind=PROVIDER, needs=("provider.predicate", "platform.activates", "platform.dtypes_compute"))
def results(kit: Kit, subject: str) -> str:
    """It runs on what it takes; results are tensors of native shapes, dtypes and dense strides, on the device."""
    impl = kit.provider(subject)
    device = kit.require_device()

    def test(made: Input) -> None:
        returned = call(impl, made)
        if len(returned) != len(made.native) or not all(isinstance(r, torch.Tensor) for r in returned):
            raise Fault(
                f"It returns {[type(r).__name__ for r in returned]}, native {len(made.native)} tensors.",
                who=f"input: {made.case}",
            )
        for number, (mine, native) in enumerate(zip(returned, made.native, strict=True)):
            for what, got, want in (
                ("shape", tuple(mine.shape), tuple(native.shape)),
                ("dtype", mine.dtype, native.dtype),
                ("device", mine.device.type, torch.device(device).type),
                ("strides", _strides(mine), _strides(native)),
            ):
                if got != want:
                    raise Fault(
                        f"Result {number} has {what} {got}, the native one {want}.",
                        who=f"input: {made.case}",
                        remedy="allocate results as the definition has them (torch.empty_like of a dense input).",
                    )

    return over(kit, impl, cases.fixed(dtypes_of(kit), full=kit.settings.grid == "full"), test)


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides that matter: of sizes above one, where there are elements."""
    if not tensor.numel():
        return ()
    return tuple(s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)


@check("provider.values", kind=PROVIDER, needs=("provider.results",))
def values(kit: Kit, subject: str) -> str:
    """Values agree with the native definition, and with float64, within the op's tolerance, at every size."""
    impl = kit.provider(subject)
    full = kit.settings.grid == "full"
    fixed = [*cases.fixed(dtypes_of(kit), full=full)]
    fixed += [Case(n, 64, dtype) for dtype in dtypes_of(kit) for n in range(1, 160)]
    fixed += [Case(5, n, dtype) for dtype in dtypes_of(kit) for n in range(2, 140, 2)]
    return over(kit, impl, fixed, _agrees(kit, subject))


def _agrees(kit: Kit, subject: str) -> Callable[[Input], None]:
    impl = kit.provider(subject)

    def test(made: Input) -> None:
        got = call(impl, made)
        for number, (mine, native) in enumerate(zip(got, made.native, strict=True)):
            require_kind(made, number, mine, native)
        oracle.compare(impl.op, impl.provider, got, made.native, made.args.reference, str(made.case))

    return test


def require_kind(made: Input, number: int, mine: torch.Tensor, native: torch.Tensor) -> None:
    """Raise Fault where a result has another shape or dtype than the native one."""
    if mine.shape != native.shape or mine.dtype != native.dtype:
        raise Fault(
            f"Result {number} is {mine.dtype} {tuple(mine.shape)}, native {native.dtype} {tuple(native.shape)}.",
            who=f"input: {made.case}",
        )


@check("provider.arguments", kind=PROVIDER, needs=("provider.values",))
def arguments(kit: Kit, subject: str) -> str:
    """Values agree for other values of every parameter: no weight, other epsilons, other switches."""
    impl = kit.provider(subject)
    fixed = [
        Case(tokens, hidden, dtype, scale=scale, options=(option,))
        for dtype in dtypes_of(kit)
        for tokens, hidden in ((1, 64), (7, 128))
        for scale in (1.0, 1e-3)
        for option in cases.options_of(impl.op, hidden)
    ]
    tables = cases.long_tables(impl.op, 128)
    fixed += [Case(64, 128, dtype, options=tables) for dtype in dtypes_of(kit) if tables]
    strategy = cases.drawn(impl.op, dtypes_of(kit), full=kit.settings.grid == "full")
    return over(kit, impl, fixed, _agrees(kit, subject), strategy)


@check("provider.magnitudes", kind=PROVIDER, needs=("provider.values",))
def magnitudes(kit: Kit, subject: str) -> str:
    """Values agree for very small and large activations, rows of zeros, and infinities and NaN in one row."""
    impl = kit.provider(subject)
    fixed = [Case(9, 64, d, scale=s) for d in dtypes_of(kit) for s in (1e-4, 1e-2, 60.0, 300.0)]
    fixed += [Case(9, 64, d, special=s) for d in dtypes_of(kit) for s in ("zeros", "nan", "inf")]
    return over(kit, impl, fixed, _agrees(kit, subject))
