"""Findings as SARIF 2.1.0, which code hosts and editors show at the lines concerned."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from opdock.testing.contract.checking import Result
from opdock.testing.contract.findings import Finding, Rule
from opdock.testing.contract.rules import RULES

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def document(result: Result, *, opdock_version: str) -> dict[str, Any]:
    """Return the SARIF log of one check; addresses are relative to the root of the package."""
    used = sorted({f.rule for f in result.findings})
    known = {rule.id: rule for rule in RULES.values()}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "opdock check",
                        "version": opdock_version,
                        "semanticVersion": opdock_version,
                        "rules": [_rule(known[name]) for name in used],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {"PACKAGE": {"description": {"text": "the root of the checked package"}}},
                "results": [_result(f, used.index(f.rule)) for f in result.findings],
                "properties": {"package": result.name, "packageVersion": result.version, "kind": result.kind},
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    name = "".join(part.capitalize() for part in rule.id.partition("/")[2].split("-"))
    return {
        "id": rule.id,
        "name": name,
        "shortDescription": {"text": rule.help},
        "fullDescription": {"text": rule.help},
        "help": {"text": rule.help},
        "defaultConfiguration": {"level": rule.level},
    }


def _result(found: Finding, index: int) -> dict[str, Any]:
    parts = [found.message, found.why, f"Remedy: {found.remedy}" if found.remedy else ""]
    told: dict[str, Any] = {
        "ruleId": found.rule,
        "ruleIndex": index,
        "level": found.level,
        "message": {"text": "\n".join(filter(None, parts))},
    }
    if found.file:
        place: dict[str, Any] = {"artifactLocation": {"uri": quote(found.file), "uriBaseId": "PACKAGE"}}
        if found.line > 0:
            place["region"] = {"startLine": found.line, **({"startColumn": found.column} if found.column > 0 else {})}
        told["locations"] = [{"physicalLocation": place}]
    return told
