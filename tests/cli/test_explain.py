"""``opdock explain``: class, method, provider, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opdock import cli

Install = Callable[..., str]
Json = Callable[..., dict[str, Any]]

KERNELS = """
import torch
from opdock import hookimpl, ir
@hookimpl
def import_ir_kernels():
    @ir.ops.silu_and_mul.register_impl("wide", supports_args=lambda x: x.shape[-1] >= 1024 or "narrower than 1024")
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return gate.sigmoid() * gate * up
@hookimpl
def default_ir_op_priority(platform, config):
    return {"silu_and_mul": ["wide", "native"]}
"""


def kernels(install: Install) -> None:
    module = install("kernels", KERNELS, group="opdock.plugins")
    # the entry point names the module itself
    import importlib.metadata

    (dist,) = [d for d in importlib.metadata.distributions() if d.name == "dist-kernels"]
    path = dist._path / "entry_points.txt"  # type: ignore[attr-defined]
    path.write_text(f"[opdock.plugins]\nkernels = {module}\n")


def test_a_layer_and_its_ir_op_are_shown_together(json_of: Json) -> None:
    """They share a name; the method follows the default bodies."""
    told = json_of("explain", "rms_norm", "--shape", "1x4096", "--dtype", "bfloat16")
    (layer,), (op,) = told["classes"], told["ops"]
    assert layer["built"].endswith(".RMSNorm") and (layer["method"], layer["runs"]) == ("forward_cpu", "forward_native")
    assert op["provider"] == "native" and op["arguments"].startswith("x=bfloat16[1x4096], weight=bfloat16[4096]")


def test_without_a_name_every_op_is_reported(json_of: Json) -> None:
    """Layers of the models and the IR's own."""
    told = json_of("explain")
    assert {"attention", "qkv_parallel_linear", "rms_norm"} <= {c["op"] for c in told["classes"]}
    assert {"rms_norm", "rotary_embedding", "gelu_and_mul_sparse"} <= {o["op"] for o in told["ops"]}


@pytest.mark.parametrize(("shape", "provider"), [("1x4096", "wide"), ("1x64", "native")])
def test_the_provider_depends_on_the_arguments_and_says_why(
    install: Install, json_of: Json, shape: str, provider: str
) -> None:
    """Of a package that adds a kernel to the CPU."""
    kernels(install)
    (op,) = json_of("explain", "silu_and_mul", "--shape", shape)["ops"]
    assert op["provider"] == provider and op["priority"] == ["wide", "native"]
    assert "dist-kernels 1.0" in op["sources"]["wide"]
    reasons = {v["provider"]: v["reason"] for v in op["verdicts"]}
    assert provider == "wide" or reasons["wide"] == "narrower than 1024"


@pytest.mark.parametrize(
    "words", [("--ir-op-priority.silu_and_mul=-wide",), ("--ir-op-priority.silu_and_mul", "native")]
)
def test_the_user_overrides_the_priority(install: Install, json_of: Json, words: tuple[str, ...]) -> None:
    """By dropping a provider, or by putting another one first."""
    kernels(install)
    (op,) = json_of("explain", "silu_and_mul", "--shape", "1x4096", *words)["ops"]
    assert op["provider"] == "native"


def test_a_switch_shows_its_effect(json_of: Json) -> None:
    """An explicit -op runs the IR ops inside native."""
    (layer,) = json_of("explain", "rms_norm", "--compilation-config", '{"custom_ops": ["-rms_norm"]}')["classes"]
    assert layer["method"] == "forward_native" and layer["native_ir"] and "-rms_norm" in layer["reason"]


def test_an_unknown_op_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """And every known one."""
    assert cli.main(["explain", "rms_nrom"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "Did you mean 'rms_norm'?" in shown.err and "attention" in shown.err


def test_the_text_shows_the_same(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """For one op with its arguments."""
    kernels(install)
    assert cli.main(["explain", "silu_and_mul", "--shape", "1x64"]) == 0
    out = capsys.readouterr().out
    for part in ("Platform: cpu", "Switches: all", "narrower than 1024", "dist-kernels", "[1x128]", "wide, native"):
        assert part in out


def test_compiled_mode_is_explained_for_a_model_without_its_weights(
    model: Path, install: Install, json_of: Json
) -> None:
    """Every call with what it becomes, and why not the others; layers are switched off there."""
    kernels(install)
    told = json_of("explain", "--compiled", str(model), "--tokens", "3")
    assert told["schema"] == "opdock.compiled/1"
    assert told["clones_left"] == 0
    (silu, *_) = [choice for choice in told["choices"] if choice["op"] == "silu_and_mul"]
    assert silu["provider"] == "native"
    assert {v["provider"]: v["reason"] for v in silu["verdicts"]}["wide"] == "narrower than 1024"


def test_compiled_mode_as_a_table_shows_the_switches(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--compiled", str(model)]) == 0
    out = capsys.readouterr().out
    assert "Switches of op classes: none" in out
    assert "fused_add_rms_norm" in out
    assert "clones removed" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rms_norm", "--compiled", "smollm2"], "--compiled is about a whole model"),
        (["--compiled", "smollm2", "--tokens", "0"], "--tokens 0 is not possible"),
        (["--compiled", "smollm2", "--tokens", "100000"], "The model's context holds 8192"),
        (["--compiled", "smollm2", "--compilation-config", '{"mode": 0}'], "mode 0 does not compile"),
        (["rms_norm", "--tokens", "4"], "--tokens belongs to --compiled"),
        (["--compiled", "/no/such/model"], "/no/such/model"),
        (
            ["--compiled", "smollm2", "--compilation-config", '{"fusions": ["-add_rms_nrm"]}'],
            "Did you mean 'add_rms_norm'",
        ),
    ],
)
def test_bad_input_about_compiled_mode_is_one_clear_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", *words]) == 1
    assert message in capsys.readouterr().err
