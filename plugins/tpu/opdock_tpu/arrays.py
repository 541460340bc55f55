"""Tensors as arrays of jax, and back. On device ``jax`` nothing is copied; CPU tensors are, for the interpreter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def of(tensor: Tensor) -> Any:
    """Return a tensor as an array of jax; its own where it is on device ``jax``."""
    from torchax.ops import mappings

    if hasattr(tensor, "jax"):
        return tensor.jax()
    return mappings.t2j(tensor.detach(), use_dlpack=False)


def like(array: Any, tensor: Tensor) -> Tensor:
    """Return an array as a new tensor on the device of ``tensor``."""
    import torchax
    from torchax.ops import mappings

    if hasattr(tensor, "jax"):
        return torchax.tensor.Tensor(array, torchax.default_env())  # type: ignore[no-any-return]
    return mappings.j2t(array, use_dlpack=False).clone()  # type: ignore[no-any-return]


def write(array: Any, tensor: Tensor) -> None:
    """Write an array to a tensor of the same shape, through views; the tensor is mutated."""
    with torch.no_grad():
        tensor.copy_(like(array, tensor))
