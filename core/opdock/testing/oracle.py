"""What a provider's results are compared with: the native definition in the same dtype, and in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from opdock.testing.check import Fault

if TYPE_CHECKING:
    from opdock.ir import IrOp


def several(results: Any) -> tuple[torch.Tensor, ...]:
    """Return one or more results as a tuple."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def expected(op: IrOp, args: Sequence[Any]) -> tuple[torch.Tensor, ...] | None:
    """Return what the native definition gives for CPU arguments, or None where it refuses them."""
    try:
        return several(op.native(*args))
    except Exception:  # noqa: BLE001 - whatever it raises: this is no input of the op
        return None


def exact(op: IrOp, args: Sequence[Any]) -> tuple[torch.Tensor, ...] | None:
    """Return what the native definition gives in float64, or None where it has no such form."""
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    results = expected(op, wide)
    if results is None or any(r.dtype is not torch.float64 for r in results):
        return None
    return results


def compare(
    op: IrOp, provider: str, got: Sequence[torch.Tensor], native: Sequence[torch.Tensor], args: Sequence[Any], case: str
) -> None:
    """Raise Fault where a result is further from the native one, or from the exact one, than the op's tolerance.

    The distance from the exact result may be the native definition's own plus the tolerance.

    Args:
        op: the op.
        provider: its name, for its tolerance.
        got: the results.
        native: of the native definition, on the CPU.
        args: on the CPU, for the exact result.
        case: the input in words.
    """
    truth = exact(op, args)
    if truth is not None:  # what no number of the results' dtype reaches is an infinity in both
        rounded = [t.to(n.dtype).double() for t, n in zip(truth, native, strict=True)]
        truth = tuple(torch.where(r.isinf(), r, t) for r, t in zip(rounded, truth, strict=True))
    for number, (mine, theirs) in enumerate(zip(got, native, strict=True)):
        tolerance = op.get_tolerance(theirs.dtype, provider)
        a, b = mine.detach().cpu().double(), theirs.double()
        near, what = tolerance["atol"] + tolerance["rtol"] * b.abs(), f"result {number}"
        if truth is None:
            _require(a, b, near, what, "native", tolerance, case)
            continue
        # What rounding does to a row, native's largest error shows: where terms cancel, an element may be off by it.
        noise = (b - truth[number]).abs().nan_to_num(0.0, posinf=0.0)
        noise = noise.amax(-1, keepdim=True) if noise.dim() and noise.shape[-1] else noise
        _require(a, b, near + 2 * noise, what, "native", tolerance, case)
        allowed = tolerance["atol"] + tolerance["rtol"] * truth[number].abs() + noise
        _require(a, truth[number], allowed, what, "float64", tolerance, case)


def _require(
    got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor, what: str, whose: str, tolerance: Any, case: str
) -> None:
    error = (got - want).abs()
    same = (got == want) | (got.isnan() & want.isnan())  # also infinities of one sign
    wrong = ~(same | (error <= allowed))
    if not wrong.any():
        return
    error = torch.where(same, torch.zeros_like(error), error.nan_to_num(float("inf")))
    at = int(torch.where(wrong, error, torch.full_like(error, -1.0)).argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(at), got.shape)] if got.dim() else []
    raise Fault(
        f"{what} is wrong in {int(wrong.sum())} of {wrong.numel()} elements.",
        who=f"input: {case}",
        why=[
            f"largest error at {place}: got {_number(got, at)}, {whose} {_number(want, at)}",
            f"allowed: atol {tolerance['atol']:g}, rtol {tolerance['rtol']:g}"
            + (" and native's own error" if whose == "float64" else ""),
        ],
        remedy="compare the provider with the op's definition (help(opdock.ir.ops.NAME)): formula, epsilon, rounding; "
        "or decline such inputs in supports_args.",
    )


def _number(values: torch.Tensor, at: int) -> str:
    return f"{float(values.reshape(-1)[at]):.9g}"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have one shape, one dtype and the same bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in (a, b)))
