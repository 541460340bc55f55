"""What references refuse with."""

from __future__ import annotations

import torch

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)


def require(fact: bool, what: str) -> None:
    """Raise ValueError unless ``fact`` holds."""
    if not fact:
        raise ValueError(f"stand-in NPU: {what}")
