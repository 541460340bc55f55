"""Starting a product before the kernel ahead of it on its stream has ended."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from opdock.nn.kernels.triton import interpreted, relaunch
from opdock.nn.kernels.triton.launch import launch
from opdock.nn.kernels.triton.linear_begin import CAN_WAIT


@functools.cache
def can_depend(index: int) -> bool:
    """Return whether kernels on the GPU of that index may be started so; False in the interpreter and on AMD."""
    if index < 0 or interpreted() or torch.version.cuda is None or not CAN_WAIT:
        return False
    return torch.cuda.get_device_capability(index) >= (9, 0)


def launch_dependent(
    kernel: Any, grid: tuple[int, ...], writes: Sequence[str], args: tuple[Any, ...], num_warps: int, **constants: Any
) -> None:
    """Run a kernel that begins with ``begin``; the arguments are those of ``launch``.

    Where the launch is traced or on another device, it is a plain one: then there is nothing to wait for.
    """
    first, index = args[0], args[0].get_device()
    if (
        type(first) is torch.Tensor
        and index == torch.cuda.current_device()
        and not torch._C._len_torch_dispatch_stack()
    ):
        relaunch.launch(kernel, grid, args, index, {"num_warps": num_warps, "launch_pdl": True}, constants)
    else:
        launch(kernel, grid, writes, args, num_warps, **constants)
