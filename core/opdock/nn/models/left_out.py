"""Tensors of quantised checkpoints that are not loaded, because they say what is known; if they do not, an error."""

from __future__ import annotations

from collections.abc import Container

import torch

from opdock.errors import CheckpointError

_EIGHTS = -0x77777778
"""A word of eight 4-bit codes that are all 8, the zero point of symmetric weights."""

_KNOWN = ("weight_shape", "weight_zero_point", "input_zero_point")
_WEIGHTS = ("weight", "weight_packed")


def is_left_out(name: str, planned: Container[str]) -> bool:
    """Return whether a tensor that no parameter takes may be there.

    Args:
        name: of the tensor.
        planned: names of the tensors that parameters take.
    """
    module, _, last = name.rpartition(".")
    if last == "bias":  # tools of GPTQ and AWQ store one of zeros for layers that have none
        return f"{module}.qweight" in planned
    return last in _KNOWN and any(f"{module}.{weight}" in planned for weight in _WEIGHTS)


def check_left_out(name: str, tensor: torch.Tensor, source: str) -> None:
    """Check that a tensor for which ``is_left_out`` holds changes nothing.

    Args:
        name: of the tensor.
        tensor: what it holds.
        source: the checkpoint, for messages.

    Raises: CheckpointError naming the tensor.
    """
    module, _, last = name.rpartition(".")
    if last == "weight_shape":
        return
    neutral = _EIGHTS if last == "weight_zero_point" and tensor.dtype == torch.int32 else 0
    if bool((tensor == neutral).all()):
        return
    raise CheckpointError(
        f"The checkpoint has {'a bias' if last == 'bias' else 'zero points'} that its configuration does not speak of.",
        who=[f"layer {module}", source],
        why=f"{name} is not all {'zero' if neutral == 0 else 8}",
        remedy="correct the configuration of the checkpoint, or quantise the model again.",
    )
