"""Patterns of IR ops become fused ops, where that is right and where it pays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from graphs import targets, traced
from torch import Tensor

import opdock
from opdock import ir
from opdock.compile import Fusion, GraphReport
from opdock.compile.fusion import fuse
from opdock.compile.fusions import BUILT_IN
from opdock.compile.offered import offered
from opdock.compile.passes import run
from opdock.compile.switches import fusions_in_force
from opdock.errors import ConfigError, RegistrationError
from opdock.ir import ops

X, R, W, S = torch.randn(4, 64), torch.randn(4, 64), torch.rand(64), torch.tensor([0.5])
FP8 = torch.float8_e4m3fn


def fused(fn: Callable[..., Any], *args: Tensor) -> tuple[list[str], GraphReport]:
    """Return what a program calls after the fusions, and the report, having compared it bit for bit."""
    gm = traced(fn, *args)
    report = GraphReport()
    fuse(gm.graph, BUILT_IN, report)
    gm.graph.lint()
    gm.recompile()
    for a, b in zip(_flat(fn(*args)), _flat(gm(*args)), strict=True):
        assert torch.equal(a.float(), b.float())
    names = [t.removeprefix("opdock_ir.") for t in targets(gm.graph) if "getitem" not in t]
    return names, report


def _flat(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple | list) else [results]


def _add(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
    total = x + r
    return ops.rms_norm(total, w, 1e-5), total


def _norm_static(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
    return ops.static_scaled_fp8_quant(ops.rms_norm(x, w, 1e-5), s)


def _norm_token(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
    return ops.dynamic_per_token_scaled_fp8_quant(ops.rms_norm(x, w, 1e-6))


def _add_norm_static(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
    y, total = ops.fused_add_rms_norm(x, r, w, 1e-5)
    return ops.static_scaled_fp8_quant(y, s), total


def _add_norm_token(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
    y, total = ops.fused_add_rms_norm(x, r, w, 1e-5)
    return *ops.dynamic_per_token_scaled_fp8_quant(y), total


def _silu_static(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
    return ops.static_scaled_fp8_quant(ops.silu_and_mul(x), s)


def _silu_token(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
    return ops.dynamic_per_token_scaled_fp8_quant(ops.silu_and_mul(x))


def _add_then_quantise(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
    total = x + r
    return ops.static_scaled_fp8_quant(ops.rms_norm(total, w, 1e-5), s), total


PATTERNS = {
    _add: "fused_add_rms_norm",
    _norm_static: "rms_norm_static_fp8_quant",
    _norm_token: "rms_norm_dynamic_per_token_fp8_quant",
    _add_norm_static: "fused_add_rms_norm_static_fp8_quant",
    _add_norm_token: "fused_add_rms_norm_dynamic_per_token_fp8_quant",
    _silu_static: "silu_and_mul_static_fp8_quant",
    _silu_token: "silu_and_mul_dynamic_per_token_fp8_quant",
    _add_then_quantise: "fused_add_rms_norm_static_fp8_quant",
}


@pytest.mark.parametrize("program", PATTERNS, ids=lambda p: p.__name__.strip("_"))
def test_a_pattern_becomes_one_op(program: Callable[..., Any]) -> None:
    names, _ = fused(program, X, R, W, S)
    assert names == [f"{PATTERNS[program]}.default"]


@pytest.mark.parametrize("program", PATTERNS, ids=lambda p: p.__name__.strip("_"))
def test_a_pattern_is_found_as_often_as_it_is_there(program: Callable[..., Any]) -> None:
    def thrice(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
        return [t for k in (1, 2, 3) for t in _flat(program(x * k, r, w, s))]

    names, _ = fused(thrice, X, R, W, S)
    assert names.count(f"{PATTERNS[program]}.default") == 3


def test_a_value_that_is_used_elsewhere_too_stays() -> None:
    def program(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
        y = ops.rms_norm(x, w, 1e-5)
        return ops.static_scaled_fp8_quant(y, s), y

    names, report = fused(program, X, R, W, S)
    assert names == ["rms_norm.default", "static_scaled_fp8_quant.default"]
    assert report.declined["rms_norm_static_fp8_quant"] == "rms_norm is used elsewhere too"


def test_a_broadcast_or_promoted_sum_stays() -> None:
    def broadcast(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
        return ops.rms_norm(x + r[0], w, 1e-5)

    def promoted(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
        return ops.rms_norm(x + r.double(), w, 1e-5)

    def scaled(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
        return ops.rms_norm(torch.add(x, r, alpha=2), w, 1e-5)

    for program in (broadcast, promoted, scaled):
        names, _ = fused(program, X, R, W, S)
        assert "rms_norm.default" in names


def test_a_variance_over_part_of_the_row_is_another_op() -> None:
    names, _ = fused(lambda x, r, w, s: ops.static_scaled_fp8_quant(ops.rms_norm(x, w, 1e-5, 8), s), X, R, W, S)
    assert "rms_norm.default" in names


def test_what_is_written_in_between_keeps_the_parts_apart() -> None:
    def program(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
        y, z = x.clone(), r.clone()
        total = y + z
        y.zero_()
        return ops.rms_norm(total, w, 1e-5), y

    names, report = fused(program, X, R, W, S)
    assert "rms_norm.default" in names
    assert report.declined["add_rms_norm"] == "something that it uses is written in between"


def test_a_scale_that_is_computed_in_between_is_no_hindrance() -> None:
    def program(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
        y, total = ops.fused_add_rms_norm(x, r, w, 1e-5)
        return ops.static_scaled_fp8_quant(y, s * 2), total

    names, _ = fused(program, X, R, W, S)
    assert "fused_add_rms_norm_static_fp8_quant.default" in names


def test_a_result_that_is_needed_before_the_last_part_keeps_the_parts_apart() -> None:
    """The scale depends on the sum: one op cannot make both."""

    def program(x: Tensor, r: Tensor, w: Tensor, s: Tensor) -> Any:
        y, total = ops.fused_add_rms_norm(x, r, w, 1e-5)
        return ops.static_scaled_fp8_quant(y, total.abs().amax().reshape(1)), total

    names, report = fused(program, X, R, W, S)
    assert "fused_add_rms_norm.default" in names
    assert "needs a result before" in report.declined["fused_add_rms_norm_static_fp8_quant"]


def test_what_was_given_away_is_given_to_the_fused_op() -> None:
    @ir.register_op(name="t_inner", activations=["x", "y"], allow_inplace=True)
    def inner(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, y + 1

    @ir.register_op(name="t_both", activations=["x", "y"], allow_inplace=True)
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 2, y + 1

    def apart(x: Tensor, y: Tensor) -> Any:
        made = inner(x, y)
        return torch.ops.aten.add.Tensor(made[0], 1), made[1]

    def together(x: Tensor, y: Tensor) -> Any:
        made = both(x, y)
        return made[0], made[1]

    def giving(x: Tensor, y: Tensor) -> Any:
        a, b = inner.maybe_inplace(x, y)
        return a + 1, b

    def keeping(x: Tensor, y: Tensor) -> Any:
        a, b = inner(x, y)
        return a + 1, b

    for model, overload in ((giving, "maybe_inplace"), (keeping, "default")):
        gm = traced(model, X, R)
        fuse(gm.graph, [Fusion("t_both", apart, together)], GraphReport())
        assert targets(gm.graph)[0] == f"opdock_ir.t_both.{overload}"


def test_a_provider_does_not_make_way_for_the_native_definition() -> None:
    """Fusing would lose the vendor's norm; a vendor's fused op is another matter."""

    @ops.rms_norm.register_impl("t_norm")
    def norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        return ir.native.rms_norm(x, weight, epsilon, variance_size)

    ops.rms_norm.set_default(["t_norm"])
    names, report = fused(_norm_static, X, R, W, S)
    assert "rms_norm.default" in names
    assert report.declined["rms_norm_static_fp8_quant"] == "t_norm serves rms_norm, and only native the fused op"

    @ops.rms_norm_static_fp8_quant.register_impl("t_fused")
    def quantised(x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = FP8) -> Tensor:
        return ir.native.rms_norm_static_fp8_quant(x, weight, scale, epsilon, dtype)

    ops.rms_norm_static_fp8_quant.set_default(["t_fused"])
    names, _ = fused(_norm_static, X, R, W, S)
    assert names == ["rms_norm_static_fp8_quant.default"]


def test_the_report_says_which_fusion_made_a_call() -> None:
    report = run(traced(_add, X, R, W, S).graph)
    assert report.fused == {"add_rms_norm": 1}
    assert [(c.op, c.made_by) for c in report.choices] == [("fused_add_rms_norm", "add_rms_norm")]


# -- all-reduce: the pattern alone; its values need a process group, and are tested with the ops


def _functional(x: Tensor) -> Tensor:
    c10d = torch.ops._c10d_functional
    return c10d.wait_tensor(c10d.all_reduce(x, "sum", "0"))


@pytest.mark.parametrize("reduce", [lambda x: ops.all_reduce(x, "0"), _functional], ids=["ir", "functional"])
def test_an_all_reduce_before_a_norm_is_fused(reduce: Callable[[Tensor], Tensor]) -> None:
    import torch.distributed._functional_collectives  # noqa: F401 - gives the collectives their fakes

    def norm(x: Tensor, w: Tensor) -> Any:
        total = reduce(x)
        return ops.rms_norm(total, w, 1e-5), total

    def add_norm(x: Tensor, r: Tensor, w: Tensor) -> Any:
        return ops.fused_add_rms_norm.maybe_inplace(reduce(x), r, w, 1e-5)

    for program, args, name in (
        (norm, (X, W), "all_reduce_rms_norm"),
        (add_norm, (X, R, W), "all_reduce_fused_add_rms_norm"),
    ):
        gm = traced(program, *args)
        fuse(gm.graph, BUILT_IN, GraphReport())
        assert [t for t in targets(gm.graph) if "getitem" not in t] == [f"opdock_ir.{name}.default"]


# -- switches and packages


def test_switches_leave_fusions_out() -> None:
    names = {f.name for f in BUILT_IN} | {*offered}
    assert {f.name for f in fusions_in_force([])} == names
    assert {f.name for f in fusions_in_force(["-add_rms_norm"])} == names - {"add_rms_norm"}
    assert {f.name for f in fusions_in_force(["none", "+add_rms_norm"])} == {"add_rms_norm"}
    assert not fusions_in_force(["none"])


def test_a_fusion_of_a_part_that_is_not_imported_can_be_switched_off() -> None:
    """In a process of its own, which has no attention; every name that is offered is one that may be said before."""
    program = (
        "import sys\n"
        "from opdock.compile.offered import NAMES, offered\n"
        "from opdock.compile.switches import fusions_in_force\n"
        "assert not offered and 'opdock.nn.attention' not in sys.modules\n"
        "assert len(fusions_in_force([f'-{name}' for name in NAMES])) == len(fusions_in_force([]))\n"
        "import opdock.nn.attention\n"
        "assert set(offered) == set(NAMES)\n"
        "assert len(fusions_in_force([f'-{name}' for name in NAMES])) == len(fusions_in_force([])) - len(NAMES)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        (["-add_rms_nrm"], "Did you mean 'add_rms_norm'"),
        (["all", "none"], "only one base mode"),
        (["+add_rms_norm", "-add_rms_norm"], "cannot both enable and disable"),
        (["add_rms_norm"], "Invalid syntax"),
    ],
)
def test_a_wrong_switch_is_an_error(switches: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fusions_in_force(switches)


def test_the_configuration_switches_what_is_compiled_afterwards() -> None:
    config = opdock.OpdockConfig(opdock.CompilationConfig(fusions=["-add_rms_norm"]))
    with opdock.set_current_config(config):
        assert "add_rms_norm" not in {f.name for f in fusions_in_force(None)}
    with opdock.set_current_config():
        assert "add_rms_norm" in {f.name for f in fusions_in_force(None)}


def test_options_of_torch_compile_switch_too() -> None:
    def count(switches: list[str]) -> int:
        torch._dynamo.reset()
        with opdock.compile.observing() as reports, torch.no_grad():
            torch.compile(_add, backend="opdock_eager", options={"fusions": switches})(X, R, W, S)
        return reports[0].fused.get("add_rms_norm", 0)

    assert (count([]), count(["none"])) == (1, 0)


def _applies(given: Mapping[str, Any]) -> bool | str:
    return given["x"].shape[-1] == 64 or "only 64 columns"


def test_a_fusion_of_a_package_is_tried_and_says_why_not() -> None:
    fusion = Fusion(
        "t_norm_of_norm",
        lambda x, w, e: ops.rms_norm(ops.rms_norm(x, w, e), w, e),
        lambda x, w, e: ops.rms_norm(x, w, e),  # noqa: PLW0108 - of the same parameters as the pattern
        _applies,
    )
    for hidden, reason in ((64, None), (32, "only 64 columns")):
        report = GraphReport()
        x, w = torch.randn(2, hidden), torch.rand(hidden)
        gm = traced(lambda x, w: ops.rms_norm(ops.rms_norm(x, w, 1e-5), w, 1e-5), x, w)
        fuse(gm.graph, [fusion], report)
        assert report.declined.get("t_norm_of_norm") == reason
        assert len(targets(gm.graph)) == (1 if reason is None else 2)


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (lambda x, w: ops.rms_norm(x, w, 1e-5), lambda x, v: ops.rms_norm(x, v, 1e-5), "the parameters are"),
        (lambda x: ops.silu_and_mul(x), lambda x: (ops.silu_and_mul(x), x), "1 and 2 results"),  # noqa: PLW0108
        (lambda x: torch.ops.aten.neg.default(x), lambda x: ops.silu_and_mul(x), "the pattern calls no IR op"),  # noqa: PLW0108
        (lambda x: ops.silu_and_mul(x), lambda x: ops.silu_and_mul(x.double()), "double is no torch op"),  # noqa: PLW0108
        (lambda x: ops.silu_and_mul(x) + 1, lambda x: ops.silu_and_mul(x), "add is no torch op"),  # noqa: PLW0108
        (lambda x: (ops.silu_and_mul(x), 1), lambda x: (ops.silu_and_mul(x), 1), "a result is a constant"),
    ],
)
def test_a_fusion_whose_halves_do_not_fit_is_refused(pattern: Any, replacement: Any, message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        Fusion("t_bad", pattern, replacement)


def test_a_fusion_that_would_change_a_result_or_raises_stays_out(caplog: pytest.LogCaptureFixture) -> None:
    aten = torch.ops.aten

    def once(x: Tensor) -> Any:
        return ops.silu_and_mul(x)

    def raises(given: Mapping[str, Any]) -> bool:
        raise KeyError(sorted(given))

    double = Fusion("t_double", once, lambda x: aten._to_copy.default(once(x), dtype=torch.float64))
    broken = Fusion("t_broken", once, once, raises)
    gm, report = traced(once, X), GraphReport()
    fuse(gm.graph, [double, broken], report)
    assert targets(gm.graph) == ["opdock_ir.silu_and_mul.default"]
    assert report.declined["t_double"].startswith("it returns float64[4, 32]")
    assert report.declined["t_broken"].startswith("it raised KeyError")
    assert "Fusion t_broken is left out" in caplog.text


def test_views_of_a_fused_result_stay_in_its_storage() -> None:
    """Alias analysis compares the storages of fake values."""
    gm = traced(lambda x, r, w: ops.rms_norm(x + r, w, 1e-5).view(-1), X, R, W)
    run(gm.graph)
    view = gm.graph.output_node().args[0]
    storages = [n.meta["val"].untyped_storage()._cdata for n in (view, view.args[0])]
    assert storages[0] == storages[1]
