"""Replacements of op classes."""

from __future__ import annotations

import torch  # noqa: TC002 - as the guide writes it

from opdock.nn.layers import RMSNorm


@RMSNorm.register_oot
class AcmeRMSNorm(RMSNorm):
    def forward_oot(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        return self.forward_native(x, residual)
