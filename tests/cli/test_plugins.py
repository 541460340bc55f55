"""``opdock plugins``: metadata alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opdock import cli

Install = Callable[..., str]
Json = Callable[..., dict[str, Any]]
BOMB = "raise SystemExit('imported')"


def test_every_group_is_listed_and_nothing_is_imported(install: Install, json_of: Json) -> None:
    """A module that would end the process does no harm."""
    for group in ("vllm.platform_plugins", "vllm.general_plugins", "opdock.plugins"):
        install("p_" + group.partition(".")[2], BOMB, group=group)
    told = {(p["group"], p["name"]): p for p in json_of("plugins")["plugins"]}
    for key in (
        ("vllm.platform_plugins", "p_platform_plugins"),
        ("vllm.general_plugins", "p_general_plugins"),
        ("opdock.plugins", "p_plugins"),
    ):
        assert told[key]["may_run"] and told[key]["version"] == "1.0"


@pytest.mark.parametrize("group", ["vllm.platform_plugins", "vllm.general_plugins"])
def test_a_package_for_another_host_is_foreign(install: Install, json_of: Json, group: str) -> None:
    """It does not require opdock."""
    install("other", BOMB, group=group, requires="vllm")
    (told,) = [p for p in json_of("plugins")["plugins"] if p["name"] == "other"]
    assert (told["verdict"], told["may_run"]) == ("foreign", False)
    assert "does not require opdock" in told["reason"]


def test_a_filtered_plugin_says_by_what(install: Install, json_of: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each group."""
    install("one", BOMB)
    install("two", BOMB, group="opdock.plugins")
    monkeypatch.setenv("VLLM_PLUGINS", "three")
    told = {p["name"]: p["reason"] for p in json_of("plugins")["plugins"]}
    assert told["one"] == told["two"] == "not in VLLM_PLUGINS=three"


def test_the_schema_is_stable(install: Install, json_of: Json) -> None:
    """A change is made on purpose, with a new number."""
    install("one", BOMB)
    told = json_of("plugins")
    assert list(told) == ["schema", "plugins", "issues"] and told["schema"] == "opdock.plugins/1"
    keys = ["group", "name", "distribution", "version", "target", "location", "may_run", "verdict", "reason"]
    assert all(list(p) == keys for p in told["plugins"])


def test_hostile_metadata_is_escaped(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """In names and distributions."""
    install("evil[red]\x1b]0;owned\x07", BOMB, distribution="d\u202e\x1b[2J")
    assert cli.main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert "evil[red]\\x1b" in out and "\\u202e" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_what_is_wrong_with_the_metadata_is_noted(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt group declares nothing that anybody reads."""
    install("one", BOMB, group="vllm.platform_plugin")
    assert cli.main(["plugins"]) == 0
    assert "Did you mean [vllm.platform_plugins]?" in capsys.readouterr().out
