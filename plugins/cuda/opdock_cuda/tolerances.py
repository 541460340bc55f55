"""How far the provider ``cuda`` may be from the definitions, where its kernels are nearer than an op allows others.

The kernels round where the definitions round, and compute in float32 in between. There both differ by some units in
the last place, so a result may be rounded to the neighbour: a step for each rounding, and next to nothing in absolute
terms. 8-bit results and scales keep the ops' own tolerances, a step or its effect on the largest element.
"""

from __future__ import annotations

import torch

from opdock import ir

CUDA = "cuda"
STEP = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
"""From a number to its neighbour, relatively, at most."""
ULP = 2.0**-23
"""The same of float32, in which all is computed."""

ROUNDINGS = {
    "rms_norm": 2,  # of the normalised row, and of its product with the weight
    "fused_add_rms_norm": 2,  # likewise; the sum is rounded once, from an exact one
    "silu_and_mul": 2,  # of the activation, and of its product
    "gelu_and_mul": 2,
    "rotary_embedding": 1,  # of a sum of two products
    "rotary_and_cache": 1,
}
FLOAT32_ULPS = {
    "rms_norm": 32,  # 16 of each side: the sum of a row's squares in two orders, and the root
    "fused_add_rms_norm": 32,
    "silu_and_mul": 8,  # exp, a sum, a quotient and a product on each side
    "gelu_and_mul": 8,  # erf on one side, or the exponential of a polynomial, which weighs little where it is large
    "rotary_embedding": 8,  # two products and their sum, fused or not, on each side
    "rotary_and_cache": 8,
}
ABSOLUTE = {
    "rms_norm": 2.0**-21,  # 8 steps of float16's smallest numbers, 2^-24, behind a weight
    "fused_add_rms_norm": 2.0**-21,
    "silu_and_mul": 2.0**-21,
    "gelu_and_mul": 1e-5,  # 1 + erf and 1 + tanh cancel: half an ulp of 1, times |gate * up| of up to 160
    "rotary_embedding": 2.0**-20,  # the products cancel: an ulp of numbers of up to 8
    "rotary_and_cache": 2.0**-20,
}


def of(op: str, dtype: torch.dtype) -> tuple[float, float]:
    """Return the absolute and the relative tolerance of an op's results in a dtype."""
    ulps = FLOAT32_ULPS[op] * ULP
    return ABSOLUTE[op], ulps if dtype is torch.float32 else ROUNDINGS[op] * STEP[dtype] + ulps


def register() -> None:
    """Tell the ops."""
    for name in ROUNDINGS:
        for dtype in (torch.float32, *STEP):
            atol, rtol = of(name, dtype)
            if name in ir.registry:
                ir.registry[name].override_tolerance(dtype, atol=atol, rtol=rtol, provider=CUDA)
