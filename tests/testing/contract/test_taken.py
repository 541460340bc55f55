"""An entry-point name that another installed distribution has."""

from __future__ import annotations

from typing import Any

import pytest

from opdock.discovery import metadata


@pytest.mark.parametrize(("requires", "level"), [("", "warning"), (None, "note")])
def test_a_name_that_another_distribution_has(
    requires: str | None, level: str, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning where opdock would refuse both; a note where the other one is for another host."""
    result = check()
    assert result.findings == ()
    dist = metadata.Dist("other-demo", "2.0", "", "", requires)
    other = metadata.Candidate(metadata.PLATFORM_GROUP, "opdock_demo", "other:register", dist)
    monkeypatch.setattr(metadata, "scan", lambda: metadata.Scan((other,), ()))
    found = check().findings
    assert [(f.rule, f.level) for f in found] == [("opdock/entry-point-taken", level)]
    assert "other-demo 2.0" in found[0].message
