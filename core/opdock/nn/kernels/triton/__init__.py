"""Triton kernels for NVIDIA and AMD, as functions with the parameters of the IR ops that they compute.

Importing this imports no Triton: ``why_not()`` says whether it is usable, and the functions load it when first used.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opdock import env

if TYPE_CHECKING:
    from opdock.nn.kernels.triton.gated import (
        gelu_and_mul,
        silu_and_mul,
        silu_and_mul_dynamic_per_token_fp8_quant,
        silu_and_mul_static_fp8_quant,
    )
    from opdock.nn.kernels.triton.linear_calls import int4_linear, pack_words, scaled_linear, unpack_words
    from opdock.nn.kernels.triton.quant import dynamic_per_token_scaled_fp8_quant, static_scaled_fp8_quant
    from opdock.nn.kernels.triton.rotary import rotary_embedding
    from opdock.nn.kernels.triton.rows import (
        fused_add_rms_norm,
        fused_add_rms_norm_dynamic_per_token_fp8_quant,
        fused_add_rms_norm_static_fp8_quant,
        rms_norm,
        rms_norm_dynamic_per_token_fp8_quant,
        rms_norm_static_fp8_quant,
    )

__all__ = [
    "dynamic_per_token_scaled_fp8_quant",
    "fused_add_rms_norm",
    "fused_add_rms_norm_dynamic_per_token_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
    "gelu_and_mul",
    "int4_linear",
    "interpreted",
    "pack_words",
    "rms_norm",
    "rms_norm_dynamic_per_token_fp8_quant",
    "rms_norm_static_fp8_quant",
    "rotary_embedding",
    "scaled_linear",
    "silu_and_mul",
    "silu_and_mul_dynamic_per_token_fp8_quant",
    "silu_and_mul_static_fp8_quant",
    "static_scaled_fp8_quant",
    "unpack_words",
    "why_not",
]
_FILES = ("rows", "gated", "quant", "rotary", "linear_calls")
_OLDEST = (3, 3)


@functools.cache
def why_not() -> str:
    """Return why Triton cannot be used in this process, "" if it can; imports it."""
    try:
        triton = import_module("triton")
        version = str(triton.__version__)
        import_module("triton.language")
    except ModuleNotFoundError as err:
        if err.name != "triton":
            return f"triton cannot be imported: {err}"
        return "triton is not installed: pip install 'opdock[triton]'"
    except Exception as err:  # noqa: BLE001 - a broken installation raises anything
        return f"triton cannot be imported: {type(err).__name__}: {err}"
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        return f"triton {version} is too old: {'.'.join(map(str, _OLDEST))} or newer is needed"
    return ""


def interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on CPU tensors: ``TRITON_INTERPRET=1``."""
    return env.triton_interpreted()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for file in _FILES:
        found = getattr(import_module(f"{__name__}.{file}"), name, None)
        if found is not None:
            globals()[name] = found  # from now on an ordinary attribute
            return found
    raise AttributeError(name)
