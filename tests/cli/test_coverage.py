"""``opdock explain --coverage`` and ``--html``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opdock import cli

Json = Callable[..., dict[str, Any]]
Install = Callable[..., str]

KERNELS = """
import torch
from opdock import hookimpl, ir
@hookimpl
def import_ir_kernels():
    @ir.ops.silu_and_mul.register_impl("wide", supports_args=lambda x: x.shape[-1] >= 1024 or "<b>narrow</b>")
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return gate.sigmoid() * gate * up
    @ir.ops.rms_norm.register_impl("any")
    def rms_norm(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> torch.Tensor:
        return ir.native.rms_norm(x, weight, epsilon, variance_size)
@hookimpl
def default_ir_op_priority(platform, config):
    return {"silu_and_mul": ["wide", "native"], "rms_norm": ["any", "native"]}
"""


@pytest.fixture
def kernels(install: Install) -> None:
    """A package that adds kernels to the CPU."""
    module = install("kernels", KERNELS, group="opdock.plugins")
    import importlib.metadata

    (dist,) = [d for d in importlib.metadata.distributions() if d.name == "dist-kernels"]
    path = dist._path / "entry_points.txt"  # type: ignore[attr-defined]
    path.write_text(f"[opdock.plugins]\nkernels = {module}\n")


@pytest.mark.usefixtures("kernels")
def test_the_ops_of_a_model_are_told_with_what_serves_them(model: Path, json_of: Json) -> None:
    """And why native serves the others; the folder's name alone is told of the model."""
    told = json_of("explain", "--coverage", str(model))
    assert told["schema"] == "opdock.coverage/1" and told["model"] == "model"
    ops = {(op["level"], op["op"]): op for op in told["ops"]}
    (norm,) = ops["ir", "rms_norm"]["served"]
    assert (norm["served_by"], norm["native"], norm["distribution"]) == ("any", False, "dist-kernels")
    (silu,) = ops["ir", "silu_and_mul"]["served"]
    assert silu["native"] and "wide: <b>narrow</b>" in silu["losers"]
    assert (told["covered"], told["total"], told["share"]) == (1, 10, 0.1)
    assert {row["op"] for row in told["providers"]} == {op for level, op in ops if level == "ir"}


@pytest.mark.usefixtures("kernels")
def test_the_text_shows_both_kinds_and_the_share(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--coverage", str(model), "--tokens", "3"]) == 0
    out = capsys.readouterr().out
    first, second = out.index("Served by other than native"), out.index("Served by native")
    assert first < out.index("any (dist-kernels)") < second < out.index("wide: <b>narrow</b>")
    assert "Coverage: 1 of 10 ops served by other than native, 10 % (IR ops 1 of 4, layers 0 of 6)" in out


@pytest.mark.usefixtures("kernels")
def test_less_than_what_is_required_ends_with_one(
    model: Path, capsys: pytest.CaptureFixture[str], json_of: Json
) -> None:
    """The report comes first; the error lists the native ones."""
    assert cli.main(["explain", "--coverage", str(model), "--require-coverage", "0.1"]) == 0
    capsys.readouterr()
    assert cli.main(["explain", "--coverage", str(model), "--require-coverage", "0.9"]) == 1
    shown = capsys.readouterr()
    assert "Served by native" in shown.out
    assert "10 %, and 90 % are required" in shown.err and "native: IR op rotary_embedding" in shown.err
    assert json_of("explain", "--coverage", str(model), "--require-coverage", "1", code=1)["share"] == 0.1


@pytest.mark.usefixtures("kernels")
def test_the_page_marks_the_models_ops_and_escapes_reasons(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "map.html"
    assert cli.main(["explain", "--coverage", str(model), "--html", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    assert "in the model: calls for the prompt: 2, for one token: 2" in text and "Ops of the model" in text
    assert "&lt;b&gt;narrow&lt;/b&gt;" in text and "<b>" not in text
    assert str(tmp_path) not in text
    assert "Wrote" in capsys.readouterr().out


def test_the_page_is_written_without_a_model_too(tmp_path: Path, json_of: Json) -> None:
    """For all ops, and for one; JSON stays whole."""
    file = tmp_path / "map.html"
    told = json_of("explain", "--html", str(file))
    text = file.read_text(encoding="utf-8")
    assert told["schema"] == "opdock.explain/1" and "in the model" not in text
    assert all(op["op"].replace("_", "_<wbr>") in text for op in told["ops"])
    json_of("explain", "rms_norm", "--html", str(file), "--shape", "1x64")
    text = file.read_text(encoding="utf-8")
    assert "[1x64]" in text and "rotary" not in text
    json_of("explain", "RMSNorm", "--html", str(file))
    assert "rms_<wbr>norm" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rms_norm", "--coverage", "smollm2"], "--coverage is about a whole model"),
        (["--coverage", "smollm2", "--compiled", "smollm2"], "Given too: --compiled"),
        (["--coverage", "smollm2", "--shape", "1x64"], "Given too: --shape"),
        (["--require-coverage", "0.9"], "--require-coverage needs a model"),
        (["--coverage", "smollm2", "--require-coverage", "90"], "--require-coverage 90 is not a share"),
        (["--coverage", "smollm2", "--require-coverage", "-0.1"], "is not a share"),
        (["--coverage", "smollm2", "--require-coverage", "nan"], "is not a share"),
        (["--coverage", "smollm2", "--tokens", "0"], "--tokens 0 is not possible"),
        (["--coverage", "smollm2", "--compilation-config", '{"mode": 3}'], "this configuration compiles"),
        (["--compiled", "smollm2", "--html", "x.html"], "--html is about eager calls"),
        (["attention", "--html", "x.html"], "'attention' is an op class alone"),
        (["--html", ""], "--html names no file"),
        (["--coverage", "/no/such/model"], "/no/such/model"),
        (["--html", "/no/such/folder/x.html"], "/no/such/folder/x.html"),
    ],
)
def test_bad_input_is_one_clear_error(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *words]) == 1
    assert message in capsys.readouterr().err
