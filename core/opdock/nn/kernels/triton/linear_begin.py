"""How a kernel begins that may be started before the one ahead of it on its stream has ended."""

# ruff: noqa: ANN001, ANN201, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton
    gdc_launch_dependents = gdc_wait = None

CAN_WAIT = gdc_wait is not None
"""Whether this Triton has the instructions."""


@triton.jit
def begin(w_ptrs, DEPENDENT: tl.constexpr):
    """Wait for the kernel ahead, and let the next one begin.

    Before, the lines of 128 bytes that ``w_ptrs`` point to are asked for: nothing is read, so it does not matter who
    writes them, nor whether they are the tensor's.
    Everything else of a kernel stands behind this. DEPENDENT: launched so (NVIDIA, from capability 9.0 on).
    """
    if DEPENDENT:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [w_ptrs], dtype=tl.int32, is_pure=False, pack=1
        )
        gdc_wait()
        gdc_launch_dependents()
