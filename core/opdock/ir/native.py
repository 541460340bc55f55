"""The native definitions of all IR ops, never dispatched: ``native.rms_norm(...)``.

Where an op allows ``maybe_inplace``, its native definition has it too and is it, so that code can run on either
namespace.
"""

from __future__ import annotations

from typing import Any

from opdock.ir.namespace import look_up


def __getattr__(name: str) -> Any:
    return look_up("native", name)
