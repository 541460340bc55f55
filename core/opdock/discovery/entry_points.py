"""A tolerant reader of ``entry_points.txt``: a malformed line costs that line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

PLATFORM_GROUP = "vllm.platform_plugins"
GENERAL_GROUP = "vllm.general_plugins"
HOOK_GROUP = "opdock.plugins"
GROUPS = (PLATFORM_GROUP, GENERAL_GROUP, HOOK_GROUP)
"""The groups that opdock reads."""

_OTHERS = ("vllm.io_processor_plugins", "vllm.stat_logger_plugins", "vllm.endpoint_plugins")
_RESTS = {g.partition(".")[2]: g for g in (*_OTHERS, PLATFORM_GROUP, GENERAL_GROUP)}
_SHORT = {"platform": PLATFORM_GROUP, "plugin": PLATFORM_GROUP, "general": GENERAL_GROUP}
_ONE_LINE = re.compile(r"\r\n|\r|\n")  # str.splitlines also ends a line at control characters inside a name


@dataclass(frozen=True)
class Line:
    """One line of a file.

    Args:
        group: the section that it belongs to.
        name: of the entry point; "" for a section header.
        value: ``module:attribute`` without extras; None for a line that is malformed.
        text: the line as it stands.
    """

    group: str
    name: str
    value: str | None
    text: str


def parse(text: str) -> Iterator[Line]:
    """Yield the lines of every section, in order; comments and lines before the first section are skipped.

    A header without its closing bracket is malformed, and the lines below it still belong to what it names.
    """
    group = ""
    for raw in _ONE_LINE.split(text.removeprefix("\ufeff")):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            inner, bracket, _ = line[1:].partition("]")
            group = inner.strip()
            yield Line(group, "", "" if bracket else None, line)
            continue
        name, _, value = line.partition("=")
        target = value.partition("[")[0].strip()
        if group:
            yield Line(group, name.strip(), target if name.strip() and target else None, line)


def misspelt(group: str) -> str | None:
    """Return the group of ours that ``group`` seems to mean; None if it is one, or one of another host."""
    if group in GROUPS or group in _OTHERS:
        return None
    folded = group.lower().replace("-", "_").replace(":", ".")
    if "." not in folded:
        folded = folded.replace("_", ".", 1)
    host, _, rest = folded.partition(".")
    host = next(iter(difflib.get_close_matches(host, ["vllm", "opdock"], n=1, cutoff=0.85)), "")
    if not host:
        return None
    rest = rest.replace(".", "_")
    if host == "opdock" and rest in ("plugin", "plugins", "hooks"):
        return HOOK_GROUP
    if rest.rstrip("s") in _SHORT:
        return _SHORT[rest.rstrip("s")]
    close = difflib.get_close_matches(rest, _RESTS, n=1, cutoff=0.75)
    right = _RESTS[close[0]] if close else ""
    return right if right in GROUPS else None
