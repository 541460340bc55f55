"""Replaced layers, the attention backend and the linear kernel: importing this registers them, by ``register_oot``."""

from __future__ import annotations

import torch
from torch import Tensor

from opdock.nn.attention.registry import register_backend
from opdock.nn.layers import GemmaRMSNorm
from opdock.nn.quantization.selection import register_linear_kernel
from opdock.platforms.interface import PlatformEnum
from opdock_ascend import predicates
from opdock_ascend.linear import AscendInt8Linear
from opdock_ascend.platform import ATTENTION

register_backend("ASCEND", ATTENTION)
register_linear_kernel(AscendInt8Linear, PlatformEnum.OOT, "int8", first=True)


@GemmaRMSNorm.register_oot
class AscendGemmaRMSNorm(GemmaRMSNorm):
    """The operator adds 1 to the weight itself, in float32.

    The in-tree layer hands 1 + weight in float32 to the op ``rms_norm``. Beside activations in 16 bits no operator
    takes that, so each norm of a Gemma would run native: about ten kernels instead of one, in every call.
    """

    def forward_oot(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the norm of x; with a residual, (norm of the sum, the sum)."""
        weight, epsilon = self.weight, self.variance_epsilon
        if predicates.gemma_rms_norm(x, weight, epsilon) is not True:
            return self.forward_native(x, residual)
        if residual is None:
            y: Tensor = torch.ops.npu.npu_gemma_rms_norm.default(x.contiguous(), weight, epsilon)[0]
            return y
        total = x + residual
        return torch.ops.npu.npu_gemma_rms_norm.default(total.contiguous(), weight, epsilon)[0], total
