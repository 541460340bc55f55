"""Which provider of an IR op comes first on TPUs: native, which XLA compiles."""

from __future__ import annotations

from opdock import IrOpPriorityConfig
from opdock.config import NATIVE

PALLAS = "pallas"

PROVIDED = ("rms_norm", "fused_add_rms_norm")
"""The IR ops that have a kernel in Pallas too."""


def default_priority() -> IrOpPriorityConfig:
    """Return the priority of every op: native.

    XLA makes one program of a native definition, as fast as a kernel by its own estimate, and fuses it with what is
    before and behind it, which a kernel prevents: ``tests/aot/compare.py`` shows both. ``ir_op_priority`` puts the
    kernels first.
    """
    return IrOpPriorityConfig.with_default([NATIVE])
