"""Gated activations: the first half of the row, activated, times the second half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from opdock.errors import ConfigError, suggest
from opdock.registry import CustomOp

if TYPE_CHECKING:
    import torch


@CustomOp.register("silu_and_mul")
class SiluAndMul(CustomOp):
    """y = silu(x[..., :d]) * x[..., d:], x (..., 2d), y (..., d)."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated half."""
        return self.ir.silu_and_mul(x)  # type: ignore[no-any-return]


@CustomOp.register("gelu_and_mul")
class GeluAndMul(CustomOp):
    """y = gelu(x[..., :d]) * x[..., d:], x (..., 2d), y (..., d).

    Args:
        approximate: ``none`` for the error function, ``tanh`` for its usual approximation.

    Raises: ConfigError for another approximation.
    """

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        """Check the approximation."""
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ConfigError(
                f"GeluAndMul has no approximation {approximate!r}.",
                remedy=suggest(approximate, ["none", "tanh"]),
            )
        self.approximate = approximate

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated half."""
        return self.ir.gelu_and_mul(x, self.approximate)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return f"approximate={self.approximate!r}"
