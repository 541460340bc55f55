"""The kernels by the short way: C functions that launch past torch's dispatcher.

``fits.NAME(*args)`` is True where the kernel of that IR op takes the arguments, all by position, in a common layout;
False says nothing. ``run.NAME(*args)`` returns the op's results, or None: then nothing was done, and
``torch.ops.opdock_cuda`` has to be called. Until ``connect`` they say False and None.

What is not taken: tensors of other types than ``torch.Tensor`` and ``Parameter``, an input that wants a gradient, a
device that is not the current one, and any call that a dispatch or function mode, ``torch.jit.trace`` or the profiler
has to see. Dynamo must not trace the functions.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch

CAPSULE = "__dlpack_c_exchange_api__"
CUDA = 2
"""The device kind of DLPack."""

NAMES = (
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
"""IR ops, in the order of the providers."""

FUNCTIONAL = "fused_add_rms_norm_functional"
"""A second function of ``fused_add_rms_norm``, whose results are new; what it takes is the same."""


def _says_no(*_: Any) -> bool:
    return False


def _does_nothing(*_: Any) -> None:
    return None


fits = SimpleNamespace(**dict.fromkeys(NAMES, _says_no))
run = SimpleNamespace(**dict.fromkeys((*NAMES, FUNCTIONAL), _does_nothing))


def connect(module: ModuleType, *, device_kind: int = CUDA) -> bool:
    """Put the functions of the compiled module in place, if this torch has what they need; return whether it has.

    Args:
        module: ``opdock_cuda._C``.
        device_kind: the DLPack kind of the devices whose tensors are taken.
    """
    capsule = getattr(torch.Tensor, CAPSULE, None)
    # the last of the functions: a file of an older build has not all
    if capsule is None or not hasattr(module, f"run_{FUNCTIONAL}"):
        return False
    try:
        seen_by = (
            torch._C._len_torch_dispatch_stack,
            torch._C._len_torch_function_stack,
            torch._C._get_tracing_state,
            torch._C._autograd._profiler_enabled,
        )
    except AttributeError:
        return False
    if not module.connect(
        capsule,
        device_kind,
        torch.Tensor,
        torch.nn.Parameter,
        torch.float8_e4m3fn,
        {"dtype": torch.float8_e4m3fn},
        {"dtype": torch.float32},
        "none",
        "tanh",
        torch.empty_like,
        torch.Tensor.new_empty,
        torch.Tensor.is_neg,
        seen_by,
    ):
        return False
    for name in NAMES:
        setattr(fits, name, getattr(module, f"fits_{name}"))
    for name in (*NAMES, FUNCTIONAL):
        setattr(run, name, getattr(module, f"run_{name}"))
    return True
