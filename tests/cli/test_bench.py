"""``opdock bench``: tables, files, refusals."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opdock import cli
from opdock.cli import bench
from opdock.testing.timing import run as timing

Install = Callable[..., str]
Json = Callable[..., dict[str, Any]]
QUICK = ("--tokens", "1,2", "--hidden", "64", "--seconds", "0.005")

KERNELS = """
import torch
from opdock import hookimpl, ir
def impl(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate.float()).mul(up.float()).to(x.dtype)
@hookimpl
def import_ir_kernels():
    ir.ops.silu_and_mul.register_impl("extra")(impl)
    ir.ops.silu_and_mul.register_impl("narrow", supports_args=lambda x: "\\x1b[2J never")(impl)
    @ir.ops.silu_and_mul.register_impl("wrong")
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return impl(x) + 1
"""


@pytest.fixture(autouse=True)
def _small_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    from opdock.testing.timing import bandwidth

    monkeypatch.setattr(bandwidth, "LARGE_CPU", 1 << 16)


def kernels(install: Install) -> None:
    module = install("kernels", KERNELS, group="opdock.plugins")
    import importlib.metadata

    (dist,) = [d for d in importlib.metadata.distributions() if d.name == "dist-kernels"]
    path = dist._path / "entry_points.txt"  # type: ignore[attr-defined]
    path.write_text(f"[opdock.plugins]\nkernels = {module}\n")


def test_each_provider_is_told_with_figures_or_with_a_reason(install: Install, json_of: Json) -> None:
    """And with what repeats them: versions of the plugin's package, threads, the command; no path."""
    kernels(install)
    told = json_of("bench", "silu_and_mul", *QUICK, "--dtype", "float32")
    assert told["schema"] == "opdock.bench/1" and told["versions"]["dist-kernels"] == "1.0"
    assert told["command"] == "opdock bench silu_and_mul --tokens 1,2 --hidden 64 --dtype float32 --seconds 0.005"
    assert (told["threads"], told["device"], told["interrupted"]) == (1, "cpu", False)
    assert [(p["tokens"], p["hidden"], p["dtype"]) for p in told["points"]] == [(1, 64, "float32"), (2, 64, "float32")]
    for point in told["points"]:
        by_name = {p["provider"]: p for p in point["providers"]}
        assert {n: p["status"] for n, p in by_name.items()} == {
            "native": "timed",
            "extra": "timed",
            "narrow": "declined",
            "wrong": "wrong",
        }
        assert by_name["extra"]["time"]["median"] > 0 and by_name["extra"]["bandwidth_fraction"] > 0
        assert by_name["extra"]["distribution"] == "dist-kernels 1.0"


def test_the_table_escapes_a_plugins_reason(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    kernels(install)
    assert cli.main(["bench", "silu_and_mul", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\\x1b[2J never" in out
    assert "Best copy of this run" in out and "1x64, 2x64" in out and "IQR" in out


def test_a_folder_gets_the_figures_and_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder is made; its name is not part of the results."""
    folder = tmp_path / "a" / "b"
    assert cli.main(["bench", "rms_norm", *QUICK, "--out", str(folder)]) == 0
    text = (folder / "bench.json").read_text()
    assert json.loads(text)["points"][0]["op"] == "rms_norm" and str(tmp_path) not in text
    assert (folder / "bench.png").exists() == (importlib.util.find_spec("matplotlib") is not None)
    assert "only native is registered for: rms_norm" in capsys.readouterr().out.lower()


def test_without_matplotlib_the_rest_is_written_and_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["bench", "rms_norm", *QUICK, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "rms_norm" in shown.out and (tmp_path / "bench.json").exists()
    assert len(shown.err.splitlines()) == 1 and "pip install 'opdock[bench]'" in shown.err


def test_an_interrupt_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed and written; the code says that it was stopped."""
    real, calls = timing.measure_point, []

    def stopped(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(timing, "measure_point", stopped)
    assert cli.main(["bench", "rms_norm", *QUICK, "--out", str(tmp_path)]) == 130
    told = json.loads((tmp_path / "bench.json").read_text())
    assert told["interrupted"] and [p["tokens"] for p in told["points"]] == [1]
    shown = capsys.readouterr()
    assert "rms_norm" in shown.out and "Interrupted" in shown.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rms_nrom"], "Did you mean 'rms_norm'?"),
        (["--tokens", "0"], "--tokens '0' is not a list of sizes"),
        (["--tokens", "1,,2"], "is not a list of sizes"),
        (["--hidden", "x"], "--hidden 'x' is not a list of sizes"),
        (["--dtype", "int8"], "not a floating dtype"),
        (["--seconds", "0"], "--seconds 0.0 is not possible"),
        (["--seconds", "nan"], "--seconds nan is not possible"),
        (["--out", "/dev/null/x"], "/dev/null"),
    ],
)
def test_bad_input_is_one_clear_error(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 1
    shown = capsys.readouterr()
    assert message in shown.err and shown.out == ""


def test_the_command_imports_nothing_heavy_before_it_runs() -> None:
    """Completion and the help load every command."""
    assert "torch" not in vars(bench)
