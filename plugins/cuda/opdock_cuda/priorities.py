"""Which provider of an IR op comes first on NVIDIA GPUs."""

from __future__ import annotations

from opdock import IrOpPriorityConfig
from opdock.config import NATIVE

CUDA, TRITON = "cuda", "triton"

PROVIDED = (
    "rms_norm",
    "fused_add_rms_norm",
    "rms_norm_static_fp8_quant",
    "rms_norm_dynamic_per_token_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    "fused_add_rms_norm_dynamic_per_token_fp8_quant",
    "silu_and_mul",
    "gelu_and_mul",
    "silu_and_mul_static_fp8_quant",
    "silu_and_mul_dynamic_per_token_fp8_quant",
    "static_scaled_fp8_quant",
    "dynamic_per_token_scaled_fp8_quant",
    "rotary_embedding",
)
"""The IR ops that have a provider ``cuda``, and one ``triton``."""

FUSED = ("rotary_and_cache",)
"""IR ops that fusions alone make, with a provider ``cuda`` and no other: without it the ops stay apart."""

LEFT_TO_INDUCTOR = {
    "silu_and_mul": "elementwise: one kernel either way, and Inductor can put its neighbours into it",
    "gelu_and_mul": "elementwise, as silu_and_mul",
    "static_scaled_fp8_quant": "elementwise: Inductor ends the kernel before it with the quantisation",
    "silu_and_mul_static_fp8_quant": "elementwise throughout",
}
"""What Inductor compiles as well as the kernels, with the reason; in eager code the kernels come first for these too.

The others reduce over a row and then read it again (norms, scales for each token) or write in place what Inductor
would copy (rotary_embedding): there the kernels come first in compiled code as well.
"""


def default_priority(*, inductor: bool) -> IrOpPriorityConfig:
    """Return the priority of every op: CUDA, then Triton where CUDA's kernels are not built or decline, then native.

    Args:
        inductor: whether Inductor compiles what is left native.
    """
    kernels_first = {op: [CUDA, TRITON, NATIVE] for op in PROVIDED if not (inductor and op in LEFT_TO_INDUCTOR)}
    kernels_first |= {op: [CUDA, NATIVE] for op in FUSED}
    return IrOpPriorityConfig.with_default([NATIVE], **kernels_first)
