"""Starting a kernel before the one ahead of it on its stream has ended, and how such a kernel begins."""

# ruff: noqa: ANN001, ANN201, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from opdock.nn.kernels.triton import interpreted, relaunch
from opdock.nn.kernels.triton.launch import launch

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton
    gdc_launch_dependents = gdc_wait = None

CAN_WAIT = gdc_wait is not None
"""Whether this Triton has the instructions."""


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


@triton.jit
def wait_ahead(DEPENDENT: tl.constexpr):
    """Wait for the kernel ahead, and let the next one begin.

    Every program of a kernel that is launched so comes here before it reads or writes anything, and before it ends:
    what is behind it waits for it alone. DEPENDENT: launched so (NVIDIA, from capability 9.0 on).
    """
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def begin(w_ptrs, DEPENDENT: tl.constexpr):
    """Ask for lines of 128 bytes, then ``wait_ahead``.

    Nothing is read of what ``w_ptrs`` point to, so it does not matter who writes it, nor whether it is the tensor's.
    """
    if DEPENDENT:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [w_ptrs], dtype=tl.int32, is_pure=False, pack=1
        )
        wait_ahead(DEPENDENT)
