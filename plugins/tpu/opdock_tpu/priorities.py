"""Which provider of an IR op comes first on TPUs."""

from __future__ import annotations

from opdock import IrOpPriorityConfig
from opdock.config import NATIVE

PALLAS = "pallas"

PROVIDED = ("rms_norm", "fused_add_rms_norm")
"""The IR ops that have a kernel in Pallas: op by op it comes first.

A kernel reads a row once, from the device's memory; what XLA makes of the native definition reads it twice.
"""

LEFT_TO_XLA = PROVIDED
"""Of these, those that are native in a program of ``xla.compiled``, where XLA fuses the definition with its neighbours.

Between two matmuls what is moved differs by less than 3 %, either way from chip to chip: ``tests/aot/compare.py``. The
other ops have no kernel, and are native everywhere.
"""


def default_priority() -> IrOpPriorityConfig:
    """Return the priority of every op where programs are run op by op: the kernels, then native."""
    return IrOpPriorityConfig.with_default([NATIVE], **{op: [PALLAS, NATIVE] for op in PROVIDED})
