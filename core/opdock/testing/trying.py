"""Running a test of one provider over many inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from opdock.ir.predicate import refusal
from opdock.testing import cases, oracle, placing
from opdock.testing.cases import Case, Tally
from opdock.testing.check import CannotRun, Fault

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from opdock.ir import IrOpImpl
    from opdock.testing.kit import Kit


@dataclass
class Input:
    """One input that a provider takes.

    Args:
        case: its description.
        args: placed on the device.
        native: what the native definition gives for the same values on the CPU.
    """

    case: Case
    args: placing.Arguments
    native: tuple[torch.Tensor, ...]


def require_inputs(impl: IrOpImpl) -> None:
    """Raise CannotRun if the kit cannot make inputs of the op."""
    if not impl.op.has_input_generator:
        raise CannotRun(f"op {impl.op.name} has no input generator: @ir.ops.{impl.op.name}.register_input_generator")


def dtypes_of(kit: Kit) -> list[torch.dtype]:
    """Return the dtypes that inputs are made in: the platform's, or the usual ones where an absent device is asked."""
    try:
        return list(kit.require_platform().supported_dtypes)
    except Exception:
        if kit.has_device:
            raise
        return [torch.float32, torch.bfloat16, torch.float16]


def build(kit: Kit, impl: IrOpImpl, case: Case, tally: Tally) -> Input | None:
    """Return the input of a case, or None where the op has none such or the provider declines it."""
    op = impl.op
    values = cases.make(op, case)
    shared = case.layout == "expanded" and impl.inplace  # rows of one memory cannot be written
    args = (values and not shared) and placing.arguments(
        list(op.parameters), values, activations=op.activations, layout=case.layout, device=kit.require_device()
    )
    native = oracle.expected(op, args.reference) if args else None
    if not args or native is None:
        tally.none_such += 1
        return None
    kit.trying(str(case))
    reason = refusal(impl.predicate, args.values, {})
    tally.count(reason)
    return None if reason else Input(case, args, native)


def over(
    kit: Kit,
    impl: IrOpImpl,
    fixed: Iterable[Case],
    test: Callable[[Input], None],
    strategy: SearchStrategy[Case] | None = None,
) -> str:
    """Run a test over the fixed cases, then over drawn ones; the drawn one that fails is made small first.

    Returns: how many inputs were tried, and why others were declined.
    Raises: what the test raises; CannotRun if the provider took none.
    """
    require_inputs(impl)
    tally = Tally()

    def one(case: Case) -> None:
        made = build(kit, impl, case, tally)
        if made is not None:
            with torch.no_grad():
                test(made)

    for case in fixed:
        one(case)
    if strategy is not None:
        _draw(kit, strategy, one)
    if not tally.taken:
        raise CannotRun(f"it takes none of the inputs that the kit makes here ({tally})")
    return str(tally)


def _draw(kit: Kit, strategy: SearchStrategy[Any], test: Callable[[Any], None]) -> None:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    limits = settings(
        max_examples=kit.settings.generated,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    seed(kit.settings.seed)(limits(given(strategy)(test)))()


def call(impl: IrOpImpl, made: Input) -> tuple[torch.Tensor, ...]:
    """Run the provider itself on an input; Fault if it raises."""
    try:
        returned = impl.impl_fn(*made.args.values)
    except Exception as err:
        raise Fault(
            f"It raises {type(err).__name__} on an input that supports_args takes.",
            who=f"input: {made.case}",
            why=str(err).splitlines()[:3],
            remedy="return the reason from supports_args for such inputs.",
        ) from err
    if isinstance(returned, list):
        raise Fault("It returns a list, native a tuple.", who=f"input: {made.case}", remedy="return a tuple.")
    return oracle.several(returned)
