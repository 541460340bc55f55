"""Which provider of an IR op comes first on AMD GPUs."""

from __future__ import annotations

from opdock import IrOpPriorityConfig
from opdock.config import NATIVE

HIP, AITER, TRITON = "hip", "aiter", "triton"

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
"""The IR ops that have a provider ``hip``, and one ``triton``."""

BY_AITER = ("rms_norm", "fused_add_rms_norm")
"""Those that have one ``aiter`` too."""

LEFT_TO_INDUCTOR = frozenset(
    ("silu_and_mul", "gelu_and_mul", "static_scaled_fp8_quant", "silu_and_mul_static_fp8_quant")
)
"""Elementwise: one kernel either way, and Inductor can put its neighbours into it."""


def default_priority(*, inductor: bool) -> IrOpPriorityConfig:
    """Return the priority of every op: AITER for norms, HIP, Triton where those are not built or decline, native.

    Args:
        inductor: whether Inductor compiles what is left native.
    """
    orders = {
        op: [*([AITER] if op in BY_AITER else []), HIP, TRITON, NATIVE]
        for op in PROVIDED
        if not (inductor and op in LEFT_TO_INDUCTOR)
    }
    return IrOpPriorityConfig.with_default([NATIVE], **orders)
