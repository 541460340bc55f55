"""What would be selected, and why: each candidate asked in a child process. Never raises; for ``doctor``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from opdock import env
from opdock.discovery import loading, metadata
from opdock.errors import PlatformFailedError
from opdock.platforms import child, current, selection


def examine(scan: metadata.Scan | None = None) -> selection.Selection:
    """Return the selection that this environment leads to.

    Candidates that may run are asked in child processes with a time limit, four at a time. A child is no
    sandbox: what a plugin does to files or services is done.
    """
    candidates = (scan or metadata.scan()).candidates_of(metadata.PLATFORM_GROUP)
    request = current.request_from_env()
    verdicts = selection.sift(candidates, request)
    pending = [i for i, v in enumerate(verdicts) if v.verdict == selection.PENDING]
    with ThreadPoolExecutor(max_workers=4) as pool:
        answers = pool.map(lambda i: _ask(candidates[i]), pending)
        outcomes = dict(zip(pending, answers, strict=True))
    return current.with_hints(selection.decide(verdicts, outcomes, request, current.active_builtins()), candidates)


def _ask(candidate: metadata.Candidate) -> selection.Outcome:
    reason = loading.locate(candidate)
    if reason:
        return selection.Outcome(reason=reason, error=ImportError(reason))
    report = child.probe_in_child(candidate.name, timeout=env.probe_timeout(), distribution=candidate.dist.name)
    if report.status == "activated" and candidate.dist.requires_opdock is not None:
        return selection.Outcome(class_path=report.class_path, reason=f"active, asked in {report.seconds:.1f} s")
    if report.status == "declined":
        return selection.Outcome(reason=report.reason)
    reason = f"{report.status}: {report.reason}" if report.reason else report.status
    return selection.Outcome(reason=reason, error=PlatformFailedError(reason))
