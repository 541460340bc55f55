"""Triton's interpreter, rounding as GPUs do."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from typing import Any

import torch
from triton.runtime import interpreter


def round_like_hardware() -> None:
    """Make the interpreter round float32 to bfloat16 to the nearest, ties to even, from now on in this process.

    Up to Triton 3.6 at least it cuts the bits off, which is up to one step away: too far for the tolerances of
    bfloat16, and biased. For tests; kernels need nothing of it.
    """
    if getattr(interpreter._convert_float, "exact", False):
        return
    former = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if source.is_fp32() and target.is_bf16():
            wide = torch.frombuffer(bytearray(data.tobytes()), dtype=torch.float32) if data.size else torch.empty(0)
            return wide.bfloat16().view(torch.int16).numpy().view("uint16").reshape(data.shape)
        return former(data, source, target, mode)

    convert.exact = True  # type: ignore[attr-defined]
    interpreter._convert_float = convert
