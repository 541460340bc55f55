"""One report over all levels: platform, class, method, provider, each with the losers' reasons."""

from opdock.explain.report import Candidate, ClassRow, OpRow, Report, explain

__all__ = ["Candidate", "ClassRow", "OpRow", "Report", "explain"]
