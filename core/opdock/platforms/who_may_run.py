"""What metadata alone says about a candidate: may its code run in this host?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdock import env

if TYPE_CHECKING:
    from opdock.discovery.metadata import Candidate

RESERVED_NAMES = frozenset({"cpu", "cuda", "rocm", "tpu", "xpu"})
"""vLLM's built-ins: a plugin of such a name breaks vLLM when it declines."""


def requirement_fault(candidate: Candidate, opdock_version: str) -> str:
    """Return why the distribution does not fit this opdock, or "" if it does."""
    wanted = candidate.dist.requires_opdock
    if wanted is None:
        return f"{candidate.dist.name} does not require opdock: written for another host"
    if not wanted:
        return ""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        fits = SpecifierSet(wanted).contains(opdock_version, prereleases=True)
    except InvalidSpecifier:
        return f"its requirement opdock{wanted} is not a version specifier"
    return "" if fits else f"built for opdock{wanted}, this is opdock {opdock_version}"


def name_fault(candidate: Candidate) -> str:
    """Return why the entry point's name is refused, or ""."""
    if candidate.name.lower() in RESERVED_NAMES:
        return f"the entry point is named {candidate.name!r} like a built-in of vLLM, which would break vLLM"
    return ""


def may_run(candidate: Candidate, opdock_version: str) -> str:
    """Return why a general or hook plugin may not run, or ""."""
    names = env.plugin_filter()
    if names is not None and candidate.name not in names:
        return "not in VLLM_PLUGINS=" + ",".join(names)
    if candidate.dist.only_in_cwd:
        return "its metadata is found only through the current folder"
    return requirement_fault(candidate, opdock_version)
