"""SARIF 2.1.0: the properties that its schema requires, and what code hosts ask for besides."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opdock.testing.contract import sarif
from opdock.testing.contract.rules import RULES


@pytest.fixture
def log(check: Any) -> dict[str, Any]:
    """The log of a package with three faults."""
    result = check(
        ("__init__.py", "import opdock\n", "import opdock\nimport torch\n"),
        ("platform.py", "    # more\n", "    @classmethod\n    def set_device(cls, index): ...\n"),
        ("setup.cfg", "opdock>=0.1,<0.2", "opdock"),
    )
    made = sarif.document(result, opdock_version="0.1.0")
    assert json.loads(json.dumps(made)) == made
    return made


def test_the_head(log: dict[str, Any]) -> None:
    """Version, schema, one run of one tool."""
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    driver = log["runs"][0]["tool"]["driver"]
    assert driver["name"] == "opdock check" and driver["semanticVersion"] == "0.1.0"


def test_each_rule_that_is_used_has_help(log: dict[str, Any]) -> None:
    """And each once."""
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert [r["id"] for r in rules] == ["opdock/hook-signature", "opdock/import-heavy", "opdock/requirement-unbounded"]
    for rule in rules:
        assert rule["help"]["text"] and rule["shortDescription"]["text"] and rule["name"].isidentifier()
        assert rule["defaultConfiguration"]["level"] == RULES[rule["id"].partition("/")[2]].level


def test_each_result_points_to_its_rule_and_line(log: dict[str, Any]) -> None:
    """Addresses are relative and quoted; a line is there only where it is known, and counts from 1."""
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert len(run["results"]) == 3
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note") and result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uriBaseId"] in run["originalUriBaseIds"]
        uri = place["artifactLocation"]["uri"]
        assert not uri.startswith("/") and " " not in uri and "\\" not in uri
        region = place.get("region", {"startLine": 1, "startColumn": 1})
        assert region["startLine"] >= 1 and region["startColumn"] >= 1
    lines = {r["ruleId"]: r["locations"][0]["physicalLocation"].get("region") for r in run["results"]}
    assert lines["opdock/import-heavy"] == {"startLine": 2, "startColumn": 1}
    assert lines["opdock/requirement-unbounded"] is None


def test_every_rule_has_an_id_a_level_and_a_sentence() -> None:
    """The table itself."""
    for name, rule in RULES.items():
        assert rule.id == f"opdock/{name}" and rule.level in ("error", "warning", "note")
        assert rule.help.endswith(".")
