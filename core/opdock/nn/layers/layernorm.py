"""Normalisation by the root mean square, alone or together with the addition of the residual."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import nn

from opdock.registry import CustomOp

_Both: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@CustomOp.register("rms_norm")
class RMSNorm(CustomOp):
    """y = x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    Shapes: x (..., hidden_size); residual like x; weight (hidden_size,).
    Mutates: with a residual, x and residual are donated: their memory may hold the results afterwards.

    Args:
        hidden_size: length of a row.
        eps: added to the mean square, no unit, > 0.
        var_hidden_size: length of the part of the row whose mean square counts; None takes all of it.
        has_weight: False leaves the multiplication out.
        dtype: of the weight; None takes torch's default.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        var_hidden_size: int | None = None,
        has_weight: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Allocate the weight."""
        super().__init__()
        self.hidden_size = hidden_size
        self.variance_epsilon = eps
        self.variance_size_override = None if var_hidden_size == hidden_size else var_hidden_size
        self.has_weight = has_weight
        weight = torch.ones(hidden_size, dtype=dtype)
        if has_weight:
            self.weight = nn.Parameter(weight, requires_grad=False)
        else:
            self.__dict__["weight"] = weight  # neither parameter nor buffer: no checkpoint holds it

    def forward_native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor | _Both:
        """Return the norm of x; with a residual, (norm of the sum, the sum)."""
        # Module.__getattr__ costs more than the whole dispatch of an op
        weight = self._parameters.get("weight")
        eps, size = self.variance_epsilon, self.variance_size_override
        if residual is None:
            out: torch.Tensor = self.ir.rms_norm(x, weight, eps, size)
            return out
        both: _Both = self.ir.fused_add_rms_norm.maybe_inplace(x, residual, weight, eps, size)
        return both

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return f"hidden_size={self.hidden_size}, eps={self.variance_epsilon}"


@CustomOp.register("gemma_rms_norm")
class GemmaRMSNorm(CustomOp):
    """RMSNorm that multiplies by 1 + weight, the sum taken in float32 at least.

    Shapes: x (..., hidden_size); residual like x; weight (hidden_size,).
    Mutates: with a residual, x and residual are donated.

    Args:
        hidden_size: length of a row.
        eps: added to the mean square, no unit, > 0.
        dtype: of the weight; None takes torch's default.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6, dtype: torch.dtype | None = None) -> None:
        """Allocate the weight."""
        super().__init__()
        self.hidden_size = hidden_size
        self.variance_epsilon = eps
        self.weight = nn.Parameter(torch.zeros(hidden_size, dtype=dtype), requires_grad=False)

    def forward_native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor | _Both:
        """Return the norm of x; with a residual, (norm of the sum, the sum)."""
        weight = self.weight
        scale = weight.to(torch.promote_types(weight.dtype, torch.float32)) + 1.0
        eps = self.variance_epsilon
        if residual is None:
            out: torch.Tensor = self.ir.rms_norm(x, scale, eps)
            return out
        both: _Both = self.ir.fused_add_rms_norm.maybe_inplace(x, residual, scale, eps)
        return both

    def extra_repr(self) -> str:
        """Return what repr shows."""
        return f"hidden_size={self.hidden_size}, eps={self.variance_epsilon}"
