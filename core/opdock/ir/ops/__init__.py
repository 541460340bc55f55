"""The IR ops, one file each; ops that are registered elsewhere are attributes here as well."""

from __future__ import annotations

from contextvars import Context
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opdock.ir.namespace import look_up

if TYPE_CHECKING:
    from opdock.ir.ops.all_reduce import all_reduce
    from opdock.ir.ops.all_reduce_fused_add_rms_norm import all_reduce_fused_add_rms_norm
    from opdock.ir.ops.all_reduce_rms_norm import all_reduce_rms_norm
    from opdock.ir.ops.dynamic_per_token_scaled_fp8_quant import dynamic_per_token_scaled_fp8_quant
    from opdock.ir.ops.fused_add_rms_norm import fused_add_rms_norm
    from opdock.ir.ops.fused_add_rms_norm_dynamic_per_token_fp8_quant import (
        fused_add_rms_norm_dynamic_per_token_fp8_quant,
    )
    from opdock.ir.ops.fused_add_rms_norm_static_fp8_quant import fused_add_rms_norm_static_fp8_quant
    from opdock.ir.ops.gelu_and_mul import gelu_and_mul
    from opdock.ir.ops.gelu_and_mul_sparse import gelu_and_mul_sparse
    from opdock.ir.ops.rms_norm import rms_norm
    from opdock.ir.ops.rms_norm_dynamic_per_token_fp8_quant import rms_norm_dynamic_per_token_fp8_quant
    from opdock.ir.ops.rms_norm_static_fp8_quant import rms_norm_static_fp8_quant
    from opdock.ir.ops.rotary_embedding import rotary_embedding
    from opdock.ir.ops.silu_and_mul import silu_and_mul
    from opdock.ir.ops.silu_and_mul_dynamic_per_token_fp8_quant import silu_and_mul_dynamic_per_token_fp8_quant
    from opdock.ir.ops.silu_and_mul_static_fp8_quant import silu_and_mul_static_fp8_quant
    from opdock.ir.ops.static_scaled_fp8_quant import static_scaled_fp8_quant

__all__ = [
    "all_reduce",
    "all_reduce_fused_add_rms_norm",
    "all_reduce_rms_norm",
    "dynamic_per_token_scaled_fp8_quant",
    "fused_add_rms_norm",
    "fused_add_rms_norm_dynamic_per_token_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    "gelu_and_mul",
    "gelu_and_mul_sparse",
    "rms_norm",
    "rms_norm_dynamic_per_token_fp8_quant",
    "rms_norm_static_fp8_quant",
    "rotary_embedding",
    "silu_and_mul",
    "silu_and_mul_dynamic_per_token_fp8_quant",
    "silu_and_mul_static_fp8_quant",
    "static_scaled_fp8_quant",
]


def _load() -> None:
    for name in __all__:  # the function takes the place of the module of its name
        globals()[name] = getattr(import_module(f"{__name__}.{name}"), name)


# In a context of its own: whoever's hook imports them first neither owns the host's ops nor takes them back.
Context().run(_load)


def __getattr__(name: str) -> Any:
    return look_up("ops", name)
