"""The IR ops: one file each. An op registered elsewhere is found here by name as well."""

from __future__ import annotations

from typing import Any

from opdock.errors import suggest
from opdock.ir.op import IrOp
from opdock.ir.ops.fused_add_rms_norm import fused_add_rms_norm
from opdock.ir.ops.gelu_and_mul import gelu_and_mul
from opdock.ir.ops.gelu_and_mul_sparse import gelu_and_mul_sparse
from opdock.ir.ops.rms_norm import rms_norm
from opdock.ir.ops.rotary_embedding import rotary_embedding
from opdock.ir.ops.silu_and_mul import silu_and_mul

__all__ = [
    "fused_add_rms_norm",
    "gelu_and_mul",
    "gelu_and_mul_sparse",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in IrOp.registry:
        raise AttributeError(f"opdock.ir.ops has no op {name!r}. {suggest(name, IrOp.registry)}")
    return IrOp.registry[name].fn
