"""Which provider of an IR op comes first on NPUs."""

from __future__ import annotations

from opdock import IrOpPriorityConfig
from opdock.config import NATIVE

ASCEND, MUL = "ascend", "ascend_mul"

PROVIDED = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "rotary_embedding")
"""The IR ops that have a provider ``ascend``."""

SECOND = {"rotary_embedding": MUL}
"""Ops with a second one, which takes what the first does not."""


def default_priority() -> IrOpPriorityConfig:
    """Return the priority of every op: torch_npu's operators, then native.

    In compiled code too: there is no Inductor for NPUs in this package, so what is left native runs op by op.
    """
    ours = {op: [ASCEND, *([SECOND[op]] if op in SECOND else []), NATIVE] for op in PROVIDED}
    return IrOpPriorityConfig.with_default([NATIVE], **ours)
