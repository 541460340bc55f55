"""``opdock doctor``: the platform and why, whatever plugins do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from opdock import cli
from opdock.cli.activation import activate_in_child

Install = Callable[..., str]
Json = Callable[..., dict[str, Any]]


def verdict(told: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [c for c in told["candidates"] if c["name"] == name]
    return dict(found)


def test_without_plugins_it_is_the_cpu(json_of: Json) -> None:
    """With the order that ran and what to type next."""
    told = json_of("doctor")
    assert told["platform"] == "cpu" and "no out-of-tree platform" in told["reason"]
    assert [s["step"] for s in told["order"]][-3:] == ["import_kernels", "import_ir_kernels", "register_oot"]
    assert told["next"].startswith(("opdock explain", "pip install")) and "no sandbox" in told["sandbox"]
    assert told["environment"] == {"VLLM_PLUGINS": ""} and {"opdock", "python", "torch"} <= set(told["versions"])


def test_the_schema_is_stable(install: Install, json_of: Json) -> None:
    """A change is made on purpose, with a new number."""
    install("good")
    told = json_of("doctor")
    assert told["schema"] == "opdock.doctor/1"
    assert list(told) == [
        "schema",
        "platform",
        "class_path",
        "reason",
        "error",
        "candidates",
        "other_plugins",
        "warnings",
        "notes",
        "hints",
        "versions",
        "environment",
        "order",
        "sandbox",
        "next",
    ]
    assert all(
        list(c) == ["name", "distribution", "version", "target", "verdict", "reason"] for c in told["candidates"]
    )
    assert all(list(s) == ["step", "ms", "detail"] for s in told["order"])


def test_an_active_platform_wins_and_its_hooks_run_in_a_child(install: Install, json_of: Json) -> None:
    """What they print does not spoil the report."""
    install("good", more="    @classmethod\n    def import_kernels(cls):\n        print('{not json')")
    told = json_of("doctor")
    assert told["platform"] == "good" and verdict(told, "good")["verdict"] == "activated"
    assert any(s["step"] == "import_kernels" for s in told["order"])


@pytest.mark.parametrize(
    ("source", "status", "reason"),
    [
        ("raise ValueError('no luck')", "failed", "no luck"),
        ("import os\nos._exit(7)", "failed", "exit code 7"),
        ("import time\ntime.sleep(60)", "failed", "no answer within"),
        ("from opdock import decline\ndef register():\n    return decline('no device')", "declined", "no device"),
    ],
)
def test_every_candidate_gets_a_verdict_with_a_reason(
    install: Install, json_of: Json, monkeypatch: pytest.MonkeyPatch, source: str, status: str, reason: str
) -> None:
    """In bounded time; a failed one leaves no platform, and that is exit code 3."""
    monkeypatch.setenv("OPDOCK_PROBE_TIMEOUT", "3")
    install("bad", source)
    told = json_of("doctor", "--no-order", code=3 if status == "failed" else 0)
    found = verdict(told, "bad")
    assert found["verdict"] == status and reason in found["reason"]
    if status == "failed":
        assert told["platform"] is None and "PlatformFailedError" in told["error"]
        assert "OPDOCK_PLATFORM=cpu" in told["next"]


@pytest.mark.parametrize(
    ("hook", "reason"),
    [("raise ValueError('no kernels')", "no kernels"), ("import os; os._exit(1)", "the process ended")],
)
def test_a_platform_whose_hooks_fail_is_no_platform(install: Install, json_of: Json, hook: str, reason: str) -> None:
    """Asking it went well; activating it did not."""
    install("late", more=f"    @classmethod\n    def import_kernels(cls):\n        {hook}")
    told = json_of("doctor", code=3)
    assert told["platform"] is None and reason in told["error"]


def test_activation_that_hangs_is_given_up(install: Install) -> None:
    """With what to do."""
    install("slow", more="    @classmethod\n    def import_kernels(cls):\n        import time; time.sleep(60)")
    done = activate_in_child(3)
    assert "longer than 3 s" in done.error and "Remedy: OPDOCK_PLATFORM=cpu" in done.error


def test_an_impossible_variable_is_reported(json_of: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the report, not as a traceback."""
    monkeypatch.setenv("OPDOCK_PROBE_TIMEOUT", "soon")
    told = json_of("doctor", code=3)
    assert "'soon' is not a number" in told["error"] and told["next"] == "set OPDOCK_PROBE_TIMEOUT=20."


def test_other_plugins_say_whether_they_run(install: Install, json_of: Json) -> None:
    """And a general plugin that fails is a warning."""
    install("general", "def register():\n    raise ValueError('broken general')", group="vllm.general_plugins")
    install("elsewhere", group="vllm.general_plugins", requires=None)
    told = json_of("doctor")
    others = {p["name"]: p["verdict"] for p in told["other_plugins"]}
    assert others["general"] == "may run" and others["elsewhere"] == "foreign"
    assert any("broken general" in w for w in told["warnings"])


def test_the_text_holds_everything_and_is_escaped(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """A reason with a newline cannot write a line of its own."""
    source = "from opdock import decline\ndef register():\n    return decline('no\\nPlatform: evil\\x1b[2J [red]')"
    install("liar", source)
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "no\\nPlatform: evil\\x1b[2J [red]" in out and all(x.isprintable() for x in out.splitlines())
    for part in ("Platform: cpu", "Platform plugins", "Order that ran", "Versions", "no sandbox", "Next: "):
        assert part in out
    assert os.environ["PYTHONPATH"] not in out
