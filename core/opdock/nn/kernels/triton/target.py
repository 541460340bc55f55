"""What a kernel needs to know of the device that it is compiled for."""

# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton

from opdock.nn.kernels.triton import interpreted


class Target(NamedTuple):
    """A device.

    Attributes:
        warp_size: threads of a warp, 64 on AMD's data-centre chips.
        converts_e4m3fn: whether it has an instruction that rounds float32 to float8_e4m3fn.
    """

    warp_size: int
    converts_e4m3fn: bool


@torch.compiler.assume_constant_result  # Dynamo cannot ask a driver
def target_of(index: int) -> Target:
    """Return the facts of the GPU of that index; of the interpreter below 0, and where there is no driver."""
    return _target_of(index)


@functools.cache
def _target_of(index: int) -> Target:
    if index < 0 or interpreted() or not torch.cuda.is_available():
        return Target(warp_size=32, converts_e4m3fn=False)
    with torch.cuda.device(index):
        found = triton.runtime.driver.active.get_current_target()
    return facts_of(found.backend, found.arch, found.warp_size)


def facts_of(backend: str, arch: int | str, warp_size: int) -> Target:
    """Return the facts of a target of Triton's: ``("cuda", 90, 32)``, ``("hip", "gfx942", 64)``."""
    converts = int(arch) >= 89 if backend == "cuda" else arch == "gfx950"
    return Target(warp_size=warp_size, converts_e4m3fn=converts)


def warps_for(elements: int, warp_size: int) -> int:
    """Return the number of warps for a block of ``elements``: 16 elements for each thread, 1024 threads at most."""
    return max(1, min(elements // (16 * warp_size), 1024 // warp_size))
