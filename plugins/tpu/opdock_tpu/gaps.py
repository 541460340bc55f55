"""Names of torch that torchax reads when it is imported, and that newer releases of torch have no more.

torchax 0.0.13 registers lowerings for overloads that take names of dimensions, which torch 2.12 removed. A lowering
for an overload that nobody can call is never asked, so a placeholder under its name is enough.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMED = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")


class Gone:
    """Stands for an overload that this torch does not have."""

    def __init__(self, name: str) -> None:
        """Keep the name, such as ``prod.dim_Dimname``."""
        self._gone = name

    def __repr__(self) -> str:
        return f"<aten.{self._gone}, which this torch does not have>"


def named(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (op, overload) of aten that the Python files of a folder name; ops without an overload are left out."""
    for path in sorted(folder.rglob("*.py")):
        yield from _NAMED.findall(path.read_text(encoding="utf-8"))


def fill(aten: Any) -> list[str]:
    """Put placeholders where torchax would find nothing, and return what they stand for.

    Args:
        aten: ``torch.ops.aten``; its ops are mutated.
    """
    spec = importlib.util.find_spec("torchax")
    filled = []
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for op, overload in named(Path(folder)):
            packet = getattr(aten, op, None)
            if packet is not None and not hasattr(packet, overload):
                setattr(packet, overload, Gone(f"{op}.{overload}"))
                filled.append(f"{op}.{overload}")
    return filled
