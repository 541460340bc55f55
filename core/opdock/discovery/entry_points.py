"""A tolerant reader of ``entry_points.txt``: a malformed line costs that line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

PLATFORM_GROUP = "vllm.platform_plugins"
GENERAL_GROUP = "vllm.general_plugins"
HOOK_GROUP = "opdock.plugins"
GROUPS = (PLATFORM_GROUP, GENERAL_GROUP, HOOK_GROUP)
"""The groups that opdock reads."""

_OTHERS = ("vllm.io_processor_plugins", "vllm.stat_logger_plugins", "vllm.endpoint_plugins")


@dataclass(frozen=True)
class Line:
    """One line of a section; ``value`` is None for a line that is no ``name = value``."""

    group: str
    name: str
    value: str | None


def parse(text: str) -> Iterator[Line]:
    """Yield the lines of every section, in order; comments and lines before the first section are skipped."""
    group = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            group = line.strip("[] \t")
            yield Line(group, "", "")
            continue
        name, equals, value = line.partition("=")
        if group:
            target = value.partition("[")[0].strip()
            yield Line(group, name.strip(), target if equals and name.strip() and target else None)


def misspelt(group: str) -> str | None:
    """Return the group that ``group`` is close to without being it, or a known group of vLLM; else None."""
    if group in GROUPS or group in _OTHERS or not group.lower().startswith(("vllm", "opdock")):
        return None
    folded = group.lower().replace("-", "_").replace(":", ".")
    close = difflib.get_close_matches(folded, [*GROUPS, *_OTHERS], n=1, cutoff=0.75)
    if not close and folded in ("vllm.plugins", "opdock.plugin", "vllm.plugin"):
        close = [PLATFORM_GROUP]
    return close[0] if close and close[0] in GROUPS else None
