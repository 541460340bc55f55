"""Tables and text for a terminal or a pipe; whatever comes from a plugin or a checkpoint is escaped."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))  # controls, bidi and other formatting, line separators
_JOINERS = "\u200c\u200d"  # scripts and emoji need them, and they reorder nothing


def escape(text: object, *, keep: str = "") -> str:
    """Return text in which characters that act on a terminal are shown as Python would write them.

    Args:
        text: from anywhere.
        keep: characters that stay as they are, for example a newline.
    """
    return "".join(c if c in keep or unicodedata.category(c) not in _UNSAFE else ascii(c)[1:-1] for c in str(text))


def prose(text: str) -> str:
    """Return a model's text for a terminal: lines, tabs and joined characters stay."""
    return escape(text, keep="\n\t" + _JOINERS)


def line(text: object = "", *, file: TextIO | None = None) -> None:
    """Write one escaped line; a newline inside it is shown, so that no plugin can write a line of its own."""
    (file or sys.stdout).write(escape(text) + "\n")


def block(text: object, *, file: TextIO | None = None) -> None:
    """Write escaped text of several lines, such as an error."""
    (file or sys.stdout).write(escape(text, keep="\n") + "\n")


def as_json(value: Any) -> None:
    """Write a JSON document, in ASCII."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", file: TextIO | None = None
) -> None:
    """Write a table: with rich in a terminal, as aligned text in a pipe or without rich; nothing without rows."""
    out = file or sys.stdout
    cells = [[escape(cell) for cell in row] for row in rows]
    if not cells or (out.isatty() and _rich_table(head, cells, title, out)):
        return
    if title:
        out.write(f"{title}\n")
    widths = [max(_width(row[i]) for row in [head, *cells]) for i in range(len(head))]
    for row in [list(head), *cells]:
        padded = (c + " " * (w - _width(c)) for c, w in zip(row, widths, strict=True))
        out.write("  " + "  ".join(padded).rstrip() + "\n")
    out.write("\n")


def _width(text: str) -> int:
    """Return the columns that the text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


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
    Console(file=out).print(made)
    return True


class LogHandler(logging.Handler):
    """Shows what the library logs on stderr, escaped: a plugin's name may be part of it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, with its traceback if it has one."""
        try:
            text = logging.Formatter(f"{record.levelname.lower()}: %(message)s").format(record)
            block(text, file=sys.stderr)
        except Exception:  # noqa: BLE001 - a log line must not end the command
            self.handleError(record)
