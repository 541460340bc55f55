"""The progress bar on stderr while weights load."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def loading_bar() -> Iterator[Callable[[int, int], None] | None]:
    """Yield what shows the progress, None where nobody watches; the bar is gone after the block, Ctrl-C or not."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        try:
            yield _plain_bar
        finally:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading weights", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_bar(done: int, total: int) -> None:
    part = done / total if total else 1.0
    sys.stderr.write(f"\rloading weights [{'#' * int(40 * part):40}] {part:4.0%}")
    sys.stderr.flush()
