"""torch.compile(..., backend="opdock"): found by name, right, compiled anew when a choice changes, honest."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from graphs import needs_compiler
from torch import Tensor

import opdock
from opdock import ir
from opdock.compile import GraphReport, LoweringError, available, compile_model, observing
from opdock.ir import ops
from opdock.nn.layers import RMSNorm, SiluAndMul

X, R, W = torch.randn(4, 8), torch.randn(4, 8), torch.rand(8)


def _block(x: Tensor, r: Tensor, w: Tensor) -> Any:
    y, total = ops.fused_add_rms_norm(x, r, w, 1e-5)
    return ops.silu_and_mul(y) * 2, total


def test_the_backends_are_found_by_torch_by_their_names() -> None:
    names = {e.name: e.value for e in entry_points(group="torch_dynamo_backends") if e.name.startswith("opdock")}
    assert names == {
        "opdock": "opdock.compile.backend:opdock",
        "opdock_eager": "opdock.compile.backend:opdock_eager",
    }
    assert {"opdock", "opdock_eager"} <= set(torch._dynamo.list_backends(None))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.usefixtures("in_place")
def test_the_eager_stage_keeps_every_bit(dynamic: bool) -> None:
    compiled = torch.compile(_block, backend="opdock_eager", fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        for a, b in zip(compiled(X, R, W), _block(X, R, W), strict=True):
            assert torch.equal(a, b)


@needs_compiler
@pytest.mark.compiler
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("provider", ["native", "in_place"])
@pytest.mark.usefixtures("inductor")
def test_compiled_code_agrees_with_eager_code(dynamic: bool, provider: str, request: pytest.FixtureRequest) -> None:
    """An in-place provider that is opaque keeps the inputs that were not given away."""
    if provider == "in_place":
        request.getfixturevalue("in_place")
    x, r = X.clone(), R.clone()
    compiled = torch.compile(_block, backend="opdock", fullgraph=True, dynamic=dynamic)
    with torch.no_grad(), observing() as reports:
        for a, b in zip(compiled(x, r, W), _block(X, R, W), strict=True):
            torch.testing.assert_close(a, b)
    assert torch.equal(x, X)
    assert torch.equal(r, R)
    assert reports[0].selected_impls["silu_and_mul"] == {"silu_and_mul": "native"}


@needs_compiler
@pytest.mark.compiler
@pytest.mark.usefixtures("inductor", "in_place")
def test_a_read_only_clone_before_an_opaque_write_survives_inductor() -> None:
    """Inductor takes the graph for free of writes: lowered too early, the provider would write what is read later."""

    def program(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        y, total = ops.fused_add_rms_norm(x, r, w, 1e-5)
        return y * 2 + total + x

    x, r = X.clone(), R.clone()
    with torch.no_grad():
        got = torch.compile(program, backend="opdock", fullgraph=True)(x, r, W)
        torch.testing.assert_close(got, program(X, R, W))
    assert torch.equal(x, X)
    assert torch.equal(r, R)


def _plus_one(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return ir.native.rms_norm(x, weight, epsilon, variance_size) + 1


def test_a_changed_priority_is_compiled_anew_and_an_old_one_is_not() -> None:
    """Case B34, for the process's default and for a scope."""
    ops.rms_norm.register_impl("t_plus")(_plus_one)
    ops.rms_norm.set_default(["native"])
    compiled = torch.compile(lambda x, w: ops.rms_norm(x, w, 1e-5), backend="opdock_eager", fullgraph=True)
    plain, plus = ir.native.rms_norm(X, W, 1e-5), ir.native.rms_norm(X, W, 1e-5) + 1
    with torch.no_grad():
        assert torch.equal(compiled(X, W), plain)
        ops.rms_norm.set_default(["t_plus"])
        assert torch.equal(compiled(X, W), plus)
        ops.rms_norm.set_default(["native"])
        assert torch.equal(compiled(X, W), plain)
        with ops.rms_norm.set_priority(["t_plus"]):
            assert torch.equal(compiled(X, W), plus)
        assert torch.equal(compiled(X, W), plain)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3


def test_the_priority_of_an_op_that_only_a_fusion_makes_is_followed_too() -> None:
    @ops.fused_add_rms_norm.register_impl("t_fused")
    def provider(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        y, total = ir.native.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
        return y + 1, total

    ops.fused_add_rms_norm.set_default(["native"])

    def program(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        return ops.rms_norm(x + r, w, 1e-5)

    compiled = torch.compile(program, backend="opdock_eager", fullgraph=True)
    with torch.no_grad():
        before = compiled(X, R, W)
        ops.fused_add_rms_norm.set_default(["t_fused"])
        assert torch.equal(compiled(X, R, W), before + 1)
        with ops.fused_add_rms_norm.set_priority(["native"]):
            assert torch.equal(compiled(X, R, W), before)


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = RMSNorm(64), RMSNorm(64), SiluAndMul()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        h = self.down(self.act(self.up(self.first(x))))
        h, _ = self.second(h, residual)
        return h  # type: ignore[no-any-return]


def _config(mode: int, **more: Any) -> opdock.OpdockConfig:
    return opdock.OpdockConfig(opdock.CompilationConfig(mode=mode, **more))


def test_the_compiled_mode_uses_the_backend_and_leaves_op_classes_native() -> None:
    with opdock.set_current_config(_config(3)) as config:
        assert config.compilation_config.backend == "opdock"
        assert list(config.compilation_config.custom_ops) == ["none"]
    with opdock.set_current_config(_config(1)) as config:
        assert config.compilation_config.backend == "inductor"


@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_are_one_graph_without_clones_and_keep_every_bit(dynamic: bool) -> None:
    with opdock.set_current_config(_config(3)):
        model = _Model().eval()
    compiled = torch.compile(model, backend="opdock_eager", fullgraph=True, dynamic=dynamic)
    with torch.no_grad(), observing() as reports:
        for tokens in (2, 7, 64):
            x = torch.randn(tokens, 64)
            assert torch.equal(compiled(x.clone()), model(x.clone()))
    assert len(reports) <= (1 if dynamic else 3)
    assert all(r.clones_left == 0 for r in reports)
    assert {op: len(nodes) for op, nodes in reports[0].selected_impls.items()} == {
        "rms_norm": 1,
        "silu_and_mul": 1,
        "fused_add_rms_norm": 1,
    }


def test_a_model_is_compiled_in_place_as_the_configuration_says() -> None:
    with opdock.set_current_config(_config(3, backend="opdock_eager")):
        model = _Model().eval()
        compile_model(model)
    with torch.no_grad(), observing() as reports:
        model(torch.randn(3, 64))
    assert len(reports) == 1
    with opdock.set_current_config(_config(0)):
        model = _Model().eval()
        compile_model(model)
    with torch.no_grad(), observing() as reports:
        model(torch.randn(3, 64))
    assert not reports


def test_observers_that_are_packages_are_told_once_for_each_graph() -> None:
    import pluggy

    from opdock.platforms import current

    class Observer:
        reports: list[GraphReport] = []  # noqa: RUF012 - of one test

        @opdock.hookimpl
        def graph_lowered(self, report: GraphReport) -> None:
            self.reports.append(report)

    with opdock.set_current_config():
        manager = current.hook_manager()
    assert isinstance(manager, pluggy.PluginManager)
    manager.register(Observer(), name="t_observer")
    try:
        with torch.no_grad():
            torch.compile(_block, backend="opdock_eager")(X, R, W)
    finally:
        manager.unregister(name="t_observer")
    assert [len(r.choices) for r in Observer.reports] == [2]


def test_a_call_inside_a_subgraph_is_lowered_and_gives_nothing_away() -> None:
    """Whoever calls the branch may use its inputs again."""

    def program(x: Tensor, r: Tensor, w: Tensor) -> Any:
        def then(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
            return ops.fused_add_rms_norm.maybe_inplace(a, b, c, 1e-5)[0]

        y = torch.cond(x.sum() > 0, then, lambda a, b, c: a + b, (x, r, w))
        return y + x

    x = X.clone()
    with torch.no_grad():
        got = torch.compile(program, backend="opdock_eager", fullgraph=True)(x, R, W)
        torch.testing.assert_close(got, program(X.clone(), R.clone(), W))
    assert torch.equal(x, X)


@pytest.mark.parametrize("overload", ["default", "maybe_inplace"])
@pytest.mark.parametrize("provider", ["t_kernel", "t_aten"])
@pytest.mark.usefixtures("in_place")
def test_torchs_own_check_of_ops_passes_for_in_place_providers_too(provider: str, overload: str) -> None:
    """Under the dispatcher both overloads are functional: nothing is written, nothing is shared."""

    @ops.fused_add_rms_norm.register_impl("t_aten", inplace=True)
    def aten(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        y, total = ir.native.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
        return x.copy_(y), x_residual.copy_(total)

    ops.fused_add_rms_norm.set_default([provider])
    torch.library.opcheck(getattr(torch.ops.opdock_ir.fused_add_rms_norm, overload), (X, R, W, 1e-5, None))


# -- where code cannot be made


def test_without_a_compiler_models_run_eagerly_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(available, "_said", set())
    nowhere = torch._inductor.config.patch({"cpp.cxx": ("/nowhere/c++",)})
    with nowhere, caplog.at_level(logging.WARNING, "opdock"), torch.no_grad():
        for scale in (1, 2):
            compiled = torch.compile(lambda *a, k=scale: _block(*a)[0] * k, backend="opdock", fullgraph=True)
            assert torch.equal(compiled(X, R, W), _block(X, R, W)[0] * scale)
    said = [r.message for r in caplog.records if "run eagerly" in r.message]
    assert len(said) == 1
    assert "no C++ compiler works" in said[0]


def test_a_device_that_inductor_does_not_know_runs_eagerly() -> None:
    from opdock.compile.available import why_not_inductor

    assert not why_not_inductor([X])
    assert "device 'meta'" in why_not_inductor([torch.empty(2, device="meta")])


_DISABLED = """
import logging, torch, opdock
from opdock.compile import compile_model
logging.basicConfig(level=logging.WARNING)
with opdock.set_current_config(opdock.OpdockConfig(opdock.CompilationConfig(mode=3))):
    from opdock.nn.layers import RMSNorm
    norm = RMSNorm(8)
    compile_model(norm)
    compile_model(norm)
with torch.no_grad():
    print(norm(torch.ones(2, 8)).sum().item() > 15)
    print(torch.compile(norm, backend="opdock")(torch.ones(2, 8)).sum().item() > 15)
"""


def test_with_torch_compile_switched_off_models_run_eagerly_and_say_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    done = subprocess.run([sys.executable, "-c", _DISABLED], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert done.stderr.count("TORCH_COMPILE_DISABLE=1 switches torch.compile off") == 1


def test_an_error_of_a_provider_is_what_dynamo_shows() -> None:
    """Not Inductor's wrapper around it."""

    @ops.silu_and_mul.register_impl("t_random")
    def provider(x: Tensor) -> Tensor:
        return torch.rand_like(x[..., ::2])

    ops.silu_and_mul.set_default(["t_random"])
    with (
        pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="draws random numbers") as caught,
        torch.no_grad(),
    ):
        torch.compile(ops.silu_and_mul, backend="opdock")(X)
    assert isinstance(caught.value.inner_exception, LoweringError)
