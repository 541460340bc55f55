"""``opdock trace``: the tables, the JSON, the Chrome trace, and every refusal before the weights are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opdock import cli
from opdock.nn import loading

Json = Callable[..., dict[str, Any]]
Capture = pytest.CaptureFixture[str]


def test_the_tables_name_what_serves_each_op(model: Path, capsys: Capture) -> None:
    """One for the prompt and one for a token; on a CPU it says what is counted."""
    assert cli.main(["trace", str(model), "--tokens", "4"]) == 0
    out = capsys.readouterr().out
    assert "Prompt of 4 tokens: host" in out and "One token: host" in out
    assert "On a CPU nothing is launched" in out and "without the profiler" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert sum(row[:6] == ["silu_and_mul", "IR", "op:", "native", "2", "6"] for row in rows) == 2
    assert sum(row[:5] == ["row_parallel_linear", "RowParallelLinear", "forward", "4", "4"] for row in rows) == 2
    assert sum(row[0] == "total" for row in rows) == 2
    assert out.count("Provider native ran 9 of 9 calls of IR ops: ") == 2


def test_the_schema_is_stable(model: Path, json_of: Json) -> None:
    """A change is made on purpose, with a new number."""
    told = json_of("trace", str(model), "--tokens", "3", "--batch", "2")
    assert list(told) == [
        "schema",
        "platform",
        "device",
        "dtype",
        "tokens",
        "batch",
        "counted",
        "note",
        "steps",
        "model",
        "chrome",
    ]
    assert told["schema"] == "opdock.trace/1" and told["batch"] == 2 and told["chrome"] is None
    prompt, token = told["steps"]
    assert (prompt["tokens"], token["tokens"]) == (6, 2)
    assert list(token) == ["step", "tokens", "host_us", "wall_us", "total", "timeline", "rows"]
    assert list(token["total"]) == ["kernels", "copies", "host_us", "device_us"]
    assert all(
        list(row)
        == [
            "level",
            "op",
            "served_by",
            "method",
            "calls",
            "kernels",
            "copies",
            "host_us",
            "device_us",
            "kernel_names",
        ]
        for row in token["rows"]
    )
    assert token["total"]["kernels"] == sum(row["kernels"] for row in token["rows"]) > 0
    assert token["total"]["device_us"] is None and token["timeline"] is None


def test_a_chrome_trace_is_written_where_it_is_asked_for(model: Path, tmp_path: Path, capsys: Capture) -> None:
    """And the table is printed all the same."""
    file = tmp_path / "chrome.json"
    assert cli.main(["trace", str(model), "--tokens", "2", "--chrome", str(file)]) == 0
    assert f"Wrote {file}" in capsys.readouterr().out
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert {"opdock step: prompt", "opdock step: token"} < names


def test_what_is_there_already_is_written_over_and_a_refusal_leaves_no_file(
    model: Path, tmp_path: Path, capsys: Capture
) -> None:
    """The file is tried before the weights are read; nothing of the try is left."""
    file = tmp_path / "chrome.json"
    assert cli.main(["trace", str(model), "--chrome", str(file), "--device", "cuda:7"]) == 1
    assert not file.exists()
    file.write_text("before")
    assert cli.main(["trace", str(model), "--chrome", str(file), "--device", "cuda:7"]) == 1
    assert file.read_text() == "before"
    assert cli.main(["trace", str(model), "--tokens", "2", "--chrome", str(file)]) == 0
    assert json.loads(file.read_text())["traceEvents"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tokens", "0"], "--tokens 0 is not possible"),
        (["--batch", "0"], "--batch 0 is not possible"),
        (["--tokens", "64"], "A prompt of 64 tokens and one more token do not fit"),
        (["--chrome", "nowhere/at/all.json"], "There is no folder"),
        (["--chrome", "."], "It names no file"),
        (["--chrome", ""], "It names no file"),
        (["--chrome", "/proc/no_such_trace.json"], "--chrome '/proc/no_such_trace.json' cannot be written"),
        (["--dtype", "float31"], "No model runs in dtype 'float31'"),
        (["--device", "cuda:7"], "has no device 'cuda:7'"),
        (["--compilation-config", '{"mode": 3}'], "A trace is about eager calls"),
        (["--compilation-config", '{"custom_ops": ["+no_such"]}'], "no op class is called 'no_such'"),
        (["--ir-op-priority.no_such=native"], "no_such"),
    ],
)
def test_what_cannot_be_is_refused_before_the_weights_are_read(
    model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    """With what to type instead."""

    def build(*_: object, **__: object) -> None:
        pytest.fail("the model was built before the request was checked")

    monkeypatch.setattr(loading, "build_model", build)
    assert cli.main(["trace", str(model), *words]) == 1
    shown = capsys.readouterr()
    assert said in shown.err and "Remedy: " in shown.err and not shown.out


def test_a_model_that_is_not_there_is_refused(capsys: Capture) -> None:
    """As by generate."""
    assert cli.main(["trace", "smolm2"]) == 1
    assert "Did you mean 'smollm2'?" in capsys.readouterr().err


def test_a_priority_on_the_command_line_holds_in_the_trace(model: Path, json_of: Json) -> None:
    """Native, because it is asked for."""
    told = json_of("trace", str(model), "--tokens", "2", "--ir-op-priority.rms_norm=native")
    norms = [row for row in told["steps"][1]["rows"] if row["level"] == "ir" and row["op"] == "rms_norm"]
    assert [(row["served_by"], row["calls"]) for row in norms] == [("native", 1)]
