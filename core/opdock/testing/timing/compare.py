"""Is a provider right? A wrong one is not timed."""

from __future__ import annotations

from typing import Any

import torch

from opdock.ir import IrOp
from opdock.testing.timing.bandwidth import tensors_in


def difference(op: IrOp, provider: str, expected: Any, given: Any) -> str:
    """Return how the results differ from native's beyond the op's tolerance, "" if they do not.

    Args:
        op: whose tolerances count.
        provider: some have tolerances of their own.
        expected: results of the native definition.
        given: results of the provider.
    """
    wants, gots = list(tensors_in(expected)), list(tensors_in(given))
    if len(wants) != len(gots):
        return f"it returns {len(gots)} tensors, native {len(wants)}"
    for number, (want, got) in enumerate(zip(wants, gots, strict=True)):
        label = f"result {number}: " if len(wants) > 1 else ""
        for what in ("shape", "dtype", "device"):
            mine, theirs = getattr(got, what), getattr(want, what)
            if mine != theirs:
                show = tuple if what == "shape" else str
                return f"{label}{what} {show(mine)}, native has {show(theirs)}"
        said = _values_differ(op, provider, want, got)
        if said:
            return label + said
    return ""


def _values_differ(op: IrOp, provider: str, want: torch.Tensor, got: torch.Tensor) -> str:
    if not want.dtype.is_floating_point and not want.dtype.is_complex:
        return "" if torch.equal(want, got) else "the integers differ from native's"
    allowed = op.get_tolerance(want.dtype, provider)
    atol, rtol = allowed["atol"], allowed["rtol"]
    wide = want.dtype if want.element_size() > 1 else torch.float32  # 8-bit floats have no comparison
    try:
        torch.testing.assert_close(got.to(wide), want.to(wide), equal_nan=True, atol=atol, rtol=rtol)
    except AssertionError as err:
        lines = [line.strip() for line in str(err).splitlines() if line.strip()]
        return "; ".join(line for line in lines if not line.startswith("Tensor-likes"))
    return ""
