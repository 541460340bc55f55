"""Replaced layers: importing this registers them, by ``register_oot``."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import torch
from torch import Tensor

from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import takes
from opdock.nn.layers import GemmaRMSNorm
from opdock_rocm import probe


def takes_gemma(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> bool | str:
    """Return whether the kernel takes the tensors of a Gemma norm, or why not."""
    for name, tensor in (("x", x), ("residual", residual)):
        if tensor is not None and not tensor.is_contiguous():
            return f"{name} is not dense"
    if not x.numel():
        return "x has no elements"
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return "the kernel computes no gradients, and an input requires one"
    if residual is None:
        return takes.rms_norm(x, weight, 1e-6)
    return takes.fused_add_rms_norm(x, residual, weight, 1e-6)


@GemmaRMSNorm.register_oot
class RocmGemmaRMSNorm(GemmaRMSNorm):
    """The kernel adds 1 to the weight itself, in float32.

    The in-tree layer makes 1 + weight in float32 for each call of the op ``rms_norm``: two kernels more for every norm,
    of which Gemma has four in a layer, and a weight that neither HIP's kernels nor AITER's take beside 16-bit numbers.
    """

    def forward_hip(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the norm of x; with a residual, (norm of the sum, the sum)."""
        if _why_not() or takes_gemma(x, self.weight, residual) is not True:
            return self.forward_native(x, residual)
        from opdock_rocm import gemma  # needs Triton

        compiling = torch.compiler.is_compiling()  # it takes torch ops, and calling those takes longer
        if residual is None:
            norm = gemma.gemma_op if compiling else gemma.gemma_rms_norm
            return norm(x, self.weight, self.variance_epsilon)
        add = gemma.fused_add_gemma_op if compiling else gemma.fused_add_gemma_rms_norm
        return add(x, residual, self.weight, self.variance_epsilon)


@torch.compiler.assume_constant_result  # Dynamo cannot ask a driver
def _why_not() -> str:
    """Return why the kernel does not run in this process, "" where it does."""
    return triton.why_not() or ("" if triton.interpreted() else probe.why_not())
