"""The report over all levels, as data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
import torch

from opdock import ir, journal
from opdock.config import CompilationConfig, OpdockConfig
from opdock.errors import ConfigError, UnknownNameError
from opdock.explain import Candidate, ClassRow, OpRow, Report, explain
from opdock.platforms import current
from opdock.registry import CustomOp, PluggableLayer


@pytest.fixture(autouse=True)
def _undo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what the test registers, and the platform."""
    for name in ("VLLM_TARGET_DEVICE", "OPDOCK_PLATFORM", "VLLM_BATCH_INVARIANT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_PLUGINS", "")
    ir.ops.rms_norm  # noqa: B018 - the host's own ops are registered before, and stay
    before = set(map(id, journal.entries()))
    current.reset()
    yield
    for entry in reversed(journal.entries()):
        if id(entry) not in before:
            entry.undo()
    current.reset()


def names(cls: type) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


def test_the_schema_is_stable() -> None:
    """A change is made on purpose, with a new number."""
    told = explain("rms_norm").to_dict()
    assert told["schema"] == "opdock.explain/1"
    assert list(told)[1:] == names(Report)
    assert names(Report) == ["platform", "platform_reason", "device_type", "candidates", "custom_ops", "classes", "ops"]
    assert names(Candidate) == ["name", "distribution", "version", "verdict", "reason"]
    assert names(ClassRow) == [
        "op",
        "in_tree",
        "built",
        "method",
        "runs",
        "defined_in",
        "native_ir",
        "reason",
        "source",
    ]
    assert names(OpRow) == ["op", "provider", "priority", "arguments", "verdicts", "sources", "problem"]
    assert json.loads(json.dumps(told))["ops"][0]["verdicts"][0]["provider"] == "native"


def test_no_kernel_runs() -> None:
    """Arguments are fake: a terabyte costs nothing, and a provider is not called."""

    @ir.ops.silu_and_mul.register_impl("bomb", supports_args=lambda x: x.dtype == torch.bfloat16)
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    config = OpdockConfig()
    config.kernel_config.ir_op_priority = type(config.kernel_config.ir_op_priority)({"silu_and_mul": "bomb,native"})
    (row,) = explain("silu_and_mul", shape=(1 << 20, 1 << 20), dtype=torch.bfloat16, config=config).ops
    assert row.provider == "bomb" and row.arguments == f"x=bfloat16[{1 << 20}x{1 << 21}]"


def test_a_predicate_that_raises_is_a_problem_in_the_report() -> None:
    """The other ops are reported all the same."""

    def broken(x: torch.Tensor) -> bool:
        raise RuntimeError("no such field")

    @ir.ops.silu_and_mul.register_impl("broken", supports_args=broken)
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        return x

    config = OpdockConfig()
    config.kernel_config.ir_op_priority = type(config.kernel_config.ir_op_priority)({"silu_and_mul": "broken,native"})
    rows = {row.op: row for row in explain(config=config).ops}
    assert rows["silu_and_mul"].provider is None and "no such field" in rows["silu_and_mul"].problem
    assert rows["rms_norm"].provider == "native"


def test_a_replacement_is_shown_with_its_place_and_a_switch_takes_it_out() -> None:
    """The class, the method it binds and where it was registered."""

    @CustomOp.register("explained_op")
    class Explained(CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x

    @Explained.register_oot
    class Better(Explained):
        def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
            return x

    (row,) = explain("explained_op").classes
    assert row.built.endswith("Better") and row.in_tree.endswith("Explained")
    assert (row.method, row.runs) == ("forward_cpu", "forward_cpu") and row.defined_in == row.built
    assert __file__.rpartition("/")[2] in row.source
    off = OpdockConfig(CompilationConfig(custom_ops=["-explained_op"]))
    (row,) = explain("explained_op", config=off).classes
    assert row.built.endswith("Explained") and row.native_ir and "takes Better out" in row.reason


def test_a_layer_without_dispatch_has_no_method() -> None:
    """Its forward runs; it is found by its class name too."""

    @PluggableLayer.register("explained_layer")
    class ExplainedLayer(PluggableLayer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    (row,) = explain("ExplainedLayer").classes
    assert (row.op, row.method, row.runs, row.defined_in) == ("explained_layer", None, "forward", None)


def test_an_unknown_op_is_an_error_with_the_nearest() -> None:
    """Over classes and IR ops."""
    with pytest.raises(UnknownNameError, match="Did you mean 'silu_and_mul'"):
        explain("silu_and_mull")


@pytest.mark.parametrize("shape", [(), (4,), (0, 4), (1, 2, 3)])
def test_an_impossible_shape_is_an_error(shape: tuple[int, ...]) -> None:
    """Two sizes from 1."""
    with pytest.raises(ConfigError, match="TOKENSxHIDDEN"):
        explain("rms_norm", shape=shape)
