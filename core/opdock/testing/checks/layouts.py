"""A provider on inputs that are not dense, and what it does to memory that is not its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from opdock.testing import cases, oracle
from opdock.testing.activating import process_state
from opdock.testing.cases import DENSE, EXPANDED, LAYOUTS, Case
from opdock.testing.check import PROVIDER, CannotRun, Fault, check
from opdock.testing.checks.provider import require_kind
from opdock.testing.trying import Input, call, dtypes_of, over

if TYPE_CHECKING:
    from opdock.ir import IrOpImpl
    from opdock.testing.kit import Kit

_SIZES = ((1, 64), (2, 80), (6, 64), (7, 128), (16, 96))


def _layouts(kit: Kit) -> list[Case]:
    """Return cases of every layout in which each element is a place of its own, as one that is written must be."""
    return _cases(kit, [layout for layout in LAYOUTS if layout != EXPANDED])


def _cases(kit: Kit, layouts: Sequence[str]) -> list[Case]:
    return [
        Case(tokens, hidden, dtype, layout)
        for layout in layouts
        for dtype in dtypes_of(kit)
        for tokens, hidden in _SIZES
    ]


@check("provider.mutation", kind=PROVIDER, needs=("provider.results",))
def mutation(kit: Kit, subject: str) -> str:
    """It writes no input but the activations, and those only if it is registered with inplace=True."""
    impl = kit.provider(subject)
    allowed = impl.op.activations if impl.inplace else ()

    def test(made: Input) -> None:
        call(impl, made)
        for name, placed in made.args.placed.items():
            if name not in allowed and placed.written() and not placed.written_outside():
                raise Fault(
                    f"It writes {name}, which it does not declare.",
                    who=f"input: {made.case}",
                    why=f"declared: {', '.join(allowed) or 'none, it is not registered with inplace=True'}",
                    remedy="write into new tensors; or register it with inplace=True if it writes its activations.",
                )

    return over(kit, impl, [*_some(kit), *_layouts(kit)], test)


@check("provider.layouts", kind=PROVIDER, needs=("provider.arguments", "provider.mutation"))
def layouts(kit: Kit, subject: str) -> str:
    """Values agree whatever the strides and dimensions: padded, sliced, transposed and expanded rows, one to four."""
    impl = kit.provider(subject)

    def test(made: Input) -> None:
        got = call(impl, made)
        for number, (mine, native) in enumerate(zip(got, made.native, strict=True)):
            if mine.shape != native.shape:
                raise Fault(
                    f"Result {number} has shape {tuple(mine.shape)}, the native one {tuple(native.shape)}.",
                    who=f"input: {made.case}",
                )
        oracle.compare(impl.op, impl.provider, got, made.native, made.args.reference, str(made.case))

    strategy = cases.drawn(impl.op, dtypes_of(kit), layouts=LAYOUTS)
    try:
        return over(kit, impl, _cases(kit, LAYOUTS), test, strategy)
    except CannotRun as err:
        raise CannotRun(f"{err}: only dense inputs are served, others fall to the next provider") from err


@check("provider.global_state", kind=PROVIDER, needs=("provider.results",))
def global_state(kit: Kit, subject: str) -> str:
    """A call leaves grad mode, torch's defaults and the random state as they are."""
    impl = kit.provider(subject)

    def test(made: Input) -> None:
        with torch.enable_grad():
            before = process_state()
            call(impl, made)
            after = process_state()
        changed = [f"{what}: {was} before, {after[what]} then" for what, was in before.items() if after[what] != was]
        if changed:
            raise Fault(
                "A call changes what belongs to the program.",
                who=f"input: {made.case}",
                why=changed,
                remedy="change it back; draw random numbers from a generator of the package's own.",
            )

    return over(kit, impl, [Case(7, 64, dtype) for dtype in dtypes_of(kit)], test)


@check("provider.bounds", kind=PROVIDER, needs=("provider.mutation",))
def bounds(kit: Kit, subject: str) -> str:
    """It writes nothing outside its arguments: not before, behind or between their rows."""
    impl = kit.provider(subject)

    def test(made: Input) -> None:
        call(impl, made)
        for name, placed in made.args.placed.items():
            if placed.written_outside():
                raise Fault(
                    f"It writes outside {name}.",
                    who=f"input: {made.case}",
                    why=f"shape {tuple(placed.view.shape)}, strides {placed.view.stride()}: memory that no element has",
                    remedy="check the last row and the strides; one row too many is the usual case.",
                )

    return over(kit, impl, [*_some(kit), *_layouts(kit)], test)


def _some(kit: Kit) -> list[Case]:
    return [Case(tokens, hidden, dtype) for dtype in dtypes_of(kit) for tokens, hidden in _SIZES]


@check("provider.aliasing", kind=PROVIDER, needs=("provider.mutation",))
def aliasing(kit: Kit, subject: str) -> str:
    """Results are memory of their own; those of an in-place provider are the activations, which hold them."""
    impl = kit.provider(subject)

    def test(made: Input) -> None:
        returned = call(impl, made)
        inputs = {p.view.untyped_storage().data_ptr(): name for name, p in made.args.placed.items() if p.view.numel()}
        seen: dict[int, int] = {}
        for number, result in enumerate(returned):
            if not result.numel():
                continue
            pointer = result.untyped_storage().data_ptr()
            _require_own(impl, made, number, inputs.get(pointer), seen.get(pointer))
            seen[pointer] = number

    return over(kit, impl, _some(kit), test)


def _require_own(impl: IrOpImpl, made: Input, number: int, source: str | None, other: int | None) -> None:
    if other is not None:
        raise Fault(f"Results {other} and {number} share their memory.", who=f"input: {made.case}")
    if impl.inplace and source not in impl.op.activations:
        raise Fault(
            f"It is registered with inplace=True, and result {number} is no activation.",
            who=f"input: {made.case}",
            why=f"the activations are {', '.join(impl.op.activations)}",
            remedy="write the results into the activations and return those; or drop inplace=True.",
        )
    if not impl.inplace and source is not None:
        raise Fault(
            f"Result {number} is the memory of {source}.",
            who=f"input: {made.case}",
            why="a caller that writes the result would write its input",
            remedy="return a new tensor; or register it with inplace=True.",
        )


@check("provider.zero_rows", kind=PROVIDER, needs=("provider.results", "provider.aliasing"))
def zero_rows(kit: Kit, subject: str) -> str:
    """No tokens give results with no rows, of their own, and no error: an engine's rank may have nothing to do."""
    impl = kit.provider(subject)

    def test(made: Input) -> None:
        returned = call(impl, made)
        inputs = {p.buffer.untyped_storage().data_ptr(): name for name, p in made.args.placed.items()}
        source = next((s for r in returned if (s := inputs.get(r.untyped_storage().data_ptr()))), "")
        if source and not impl.inplace:
            raise Fault(
                f"It returns {source} where there are no rows.",
                who=f"input: {made.case}",
                remedy="return a new tensor.",
            )
        for number, (mine, native) in enumerate(zip(returned, made.native, strict=True)):
            require_kind(made, number, mine, native)

    return over(kit, impl, [Case(0, 64, dtype) for dtype in dtypes_of(kit)], test)


@check("provider.own_results", kind=PROVIDER, needs=("provider.aliasing",))
def own_results(kit: Kit, subject: str) -> str:
    """A second call leaves the results of the first one alone: no buffer is handed out twice."""
    impl = kit.provider(subject)
    if impl.inplace:
        raise CannotRun("an in-place provider returns its arguments")
    kept: list[tuple[torch.Tensor, torch.Tensor, Case]] = []

    def test(made: Input) -> None:
        for result, copy, case in kept:
            if not oracle.same_bits(result, copy):
                raise Fault("A later call changes the results of an earlier one.", who=f"input: {case}")
        results = call(impl, made)
        for result, copy, case in kept:
            if not oracle.same_bits(result, copy):
                raise Fault(
                    "A later call changes the results of an earlier one.",
                    who=[f"earlier input: {case}", f"later input: {made.case}"],
                    remedy="allocate the results in every call.",
                )
        kept[:] = [(r, r.detach().cpu().clone(), made.case) for r in results]

    doubled = [Case(c.tokens, c.hidden, c.dtype, DENSE, seed=seed) for c in _some(kit) for seed in (0, 1)]
    return over(kit, impl, doubled, test)


@check("provider.batch_invariance", kind=PROVIDER, needs=("provider.values", "provider.mutation"))
def batch_invariance(kit: Kit, subject: str) -> str:
    """Where it declares it: a row's bits are the same alone, in any batch, and at any place in it."""
    impl = kit.provider(subject)
    if not impl.batch_invariant:
        raise CannotRun("it does not declare batch_invariant")

    def test(made: Input) -> None:
        rows = made.case.tokens
        whole = call(_functional(impl), made)
        for start, end in ((0, 1), (rows // 2, rows // 2 + 1), (1, rows), (0, rows - 1), (rows // 3, 2 * rows // 3)):
            part = [
                a[start:end].clone() if isinstance(a, torch.Tensor) and a.dim() and a.shape[0] == rows else a
                for a in made.args.values
            ]
            if end <= start or not impl.supports_args(*part):
                continue
            for number, (one, all_) in enumerate(zip(oracle.several(impl.func_impl_fn(*part)), whole, strict=True)):
                if all_.dim() and all_.shape[0] == rows and not oracle.same_bits(one, all_[start:end]):
                    raise Fault(
                        f"It declares batch_invariant, and result {number} depends on the batch.",
                        who=f"input: {made.case}",
                        why=f"rows {start} to {end - 1} alone have other bits than among {rows}",
                        remedy="reduce a row in an order that no number of rows changes; or drop the promise.",
                    )

    sizes = ((5, 64), (37, 96), (70, 128), (131, 80), (131, 1000))
    return over(kit, impl, [Case(n, h, d) for d in dtypes_of(kit) for n, h in sizes], test)


class _Functional:
    """A provider whose function has functional semantics."""

    def __init__(self, impl: IrOpImpl) -> None:
        self.impl_fn = impl.func_impl_fn


def _functional(impl: IrOpImpl) -> IrOpImpl:
    return _Functional(impl)  # type: ignore[return-value]
