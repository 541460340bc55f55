"""Tables and text for a terminal or a pipe; whatever comes from a plugin or a checkpoint is escaped."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, TextIO


def escape(text: object) -> str:
    """Return text without control, formatting and surrogate characters, which are shown as escapes."""
    return "".join(
        c if c == "\n" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else ascii(c)[1:-1]
        for c in str(text)
    )


def line(text: object = "", *, file: TextIO | None = None) -> None:
    """Write one escaped line."""
    (file or sys.stdout).write(escape(text) + "\n")


def as_json(value: Any) -> None:
    """Write a JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", file: TextIO | None = None
) -> None:
    """Write a table: with rich in a terminal, as aligned text in a pipe or without rich."""
    out = file or sys.stdout
    cells = [[escape(cell).replace("\n", " ") for cell in row] for row in rows]
    if not cells:
        return
    if out.isatty() and _rich_table(head, cells, title, out):
        return
    if title:
        out.write(f"{title}\n")
    widths = [max(len(r[i]) for r in [head, *cells]) for i in range(len(head))]
    for row in [list(head), *cells]:
        out.write("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() + "\n")
    out.write("\n")


def _rich_table(head: Sequence[str], cells: list[list[str]], title: str, out: TextIO) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    made = Table(title=title or None, title_justify="left", header_style="bold", expand=False)
    for name in head:
        made.add_column(name, overflow="fold")
    for row in cells:
        made.add_row(*(Text(cell) for cell in row))  # Text, not markup: brackets of a plugin stay brackets
    Console(file=out, width=shutil.get_terminal_size((100, 24)).columns).print(made)
    return True
