"""How far a provider may be from the native definition, by op, dtype and provider."""

from __future__ import annotations

import torch

from opdock import journal
from opdock.errors import UnknownNameError

DEFAULT_TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-8, 1e-8),
    torch.float32: (1e-5, 1.3e-6),
    torch.float16: (1e-3, 1e-3),
    torch.bfloat16: (1e-3, 1.6e-2),
    torch.float8_e4m3fn: (0.1, 0.1),
    torch.float8_e5m2: (0.2, 0.2),
    torch.float4_e2m1fn_x2: (0.3, 0.3),
    torch.int8: (1.0, 0.0),
}
"""Absolute and relative tolerance for each dtype of a result."""


class UnknownToleranceError(UnknownNameError, ValueError):
    """No tolerance is defined for a dtype."""


class Tolerances:
    """The tolerances of one op."""

    def __init__(self, name: str) -> None:
        """Start from the defaults."""
        super().__init__()
        self.name = name
        self._overrides: dict[tuple[torch.dtype, str | None], tuple[float, float]] = {}

    def override_tolerance(self, dtype: torch.dtype, *, atol: float, rtol: float, provider: str | None = None) -> None:
        """Set the tolerances of ``dtype``, for every provider or for one; say why beside the call."""
        key = dtype, provider
        previous = self._overrides.get(key)
        self._overrides[key] = (atol, rtol)

        def undo() -> None:
            if previous is None:
                self._overrides.pop(key, None)
            else:
                self._overrides[key] = previous

        journal.record("IR tolerance", f"{self.name}.{dtype}", undo)

    def get_tolerance(self, dtype: torch.dtype, provider: str | None = None) -> dict[str, float]:
        """Return ``{"atol": …, "rtol": …}``, ready for ``torch.testing.assert_close``.

        Raises: UnknownToleranceError for a dtype without one.
        """
        found = (
            self._overrides.get((dtype, provider))
            or self._overrides.get((dtype, None))
            or DEFAULT_TOLERANCES.get(dtype)
        )
        if found is None:
            raise UnknownToleranceError(
                f"No tolerance defined for dtype {dtype} in op '{self.name}'.",
                remedy=f"op.override_tolerance({dtype}, atol=..., rtol=...).",
            )
        return {"atol": found[0], "rtol": found[1]}
