"""The cache key changes with what compiled code depends on, and with nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from graphs import needs_compiler, traced
from torch import Tensor

from opdock import ir
from opdock.compile.fusions import BUILT_IN
from opdock.compile.key import cache_key
from opdock.ir import ops

X, W = torch.randn(4, 8), torch.ones(8)


def key_of(fn: Any, *args: Tensor, fusions: Any = BUILT_IN) -> str:
    return cache_key([traced(fn, *args).graph], fusions)


def _norm(x: Tensor, w: Tensor) -> Tensor:
    return ops.rms_norm(x, w, 1e-5)


def _copy(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return ir.native.rms_norm(x, weight, epsilon, variance_size)


def test_the_priority_of_an_op_in_the_graph_counts_and_comes_back() -> None:
    ops.rms_norm.register_impl("t_copy")(_copy)
    ops.rms_norm.set_default(["native"])
    before = key_of(_norm, X, W)
    ops.rms_norm.set_default(["t_copy"])
    assert key_of(_norm, X, W) != before
    ops.rms_norm.set_default(["native"])
    assert key_of(_norm, X, W) == before
    with ops.rms_norm.set_priority(["t_copy"]):
        assert key_of(_norm, X, W) != before
    assert key_of(_norm, X, W) == before


def test_other_ops_and_other_providers_do_not_count() -> None:
    """Building one more op, or an op that the graph does not have, invalidates nothing."""
    before = key_of(_norm, X, W)

    @ir.register_op(name="t_more")
    def more(x: Tensor) -> Tensor:
        return x + 1

    ops.rms_norm.register_impl("t_copy")(_copy)

    @ops.gelu_and_mul.register_impl("t_gelu")
    def gelu(x: Tensor, approximate: str = "none") -> Tensor:
        return ir.native.gelu_and_mul(x, approximate)

    ops.gelu_and_mul.set_default(["t_gelu"])
    assert key_of(_norm, X, W) == before


def test_an_op_that_a_fusion_makes_counts_while_the_fusion_is_on() -> None:
    on, off = key_of(_norm, X, W), key_of(_norm, X, W, fusions=())
    assert on != off

    @ops.fused_add_rms_norm.register_impl("t_sum")
    def provider(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        return ir.native.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)

    ops.fused_add_rms_norm.set_default(["t_sum"])
    assert key_of(_norm, X, W) != on
    assert key_of(_norm, X, W, fusions=()) == off


def test_an_op_that_a_provider_calls_counts() -> None:
    @ops.silu_and_mul.register_impl("t_calls")
    def provider(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return ops.rms_norm(torch.nn.functional.silu(gate), None, 1e-5) * up

    ops.silu_and_mul.set_default(["t_calls"])
    before = key_of(ops.silu_and_mul, X, fusions=())
    ops.rms_norm.register_impl("t_copy")(_copy)
    ops.rms_norm.set_default(["t_copy"])
    assert key_of(ops.silu_and_mul, X, fusions=()) != before


def test_the_source_of_a_provider_and_of_its_helper_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B39: each edit is seen by a process that starts afterwards, and undone with the edit."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    helper = tmp_path / "t_helper.py"
    provider = tmp_path / "t_provider.py"
    helper.write_text("def one():\n    return 1\n")
    provider.write_text(
        textwrap.dedent("""
        import t_helper
        from torch import Tensor
        from opdock.ir import ops

        @ops.silu_and_mul.register_impl("t_file")
        def provider(x: Tensor) -> Tensor:
            return x[..., : x.shape[-1] // 2] * t_helper.one()

        ops.silu_and_mul.set_default(["t_file"])
        """)
    )
    first = _key_in_a_process()
    assert _key_in_a_process() == first
    helper.write_text("def one():\n    return 2\n")
    second = _key_in_a_process()
    assert second != first
    provider.write_text(provider.read_text() + "\n# another comment\n")
    assert _key_in_a_process() not in (first, second)
    helper.write_text("def one():\n    return 1\n")
    provider.write_text(provider.read_text().removesuffix("\n# another comment\n"))
    assert _key_in_a_process() == first


_PRINT_KEY = """
import torch, t_provider
from torch.fx.experimental.proxy_tensor import make_fx
from opdock.compile.key import cache_key
from opdock.ir import ops
graph = make_fx(lambda x: ops.silu_and_mul(x), tracing_mode="fake")(torch.ones(2, 8)).graph
print(cache_key([graph], ()))
"""


def _key_in_a_process() -> str:
    run = subprocess.run([sys.executable, "-c", _PRINT_KEY], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


_COMPILE = """
import sys, torch
from torch import Tensor
from torch._dynamo.utils import counters
from opdock import ir
from opdock.compile import observing

@ir.ops.rms_norm.register_impl("t_other")
def other(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return ir.native.rms_norm(x, weight, epsilon, variance_size) + 1

ir.ops.rms_norm.set_default([sys.argv[1]])
fn = torch.compile(lambda x, w: ir.ops.rms_norm(x, w, 1e-5) * 2, backend="opdock", fullgraph=True)
with torch.no_grad(), observing() as reports:
    got = fn(torch.ones(4, 8), torch.ones(8))
print(counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"], int(got[0, 0].round()))
print(reports[0].selected_impls["rms_norm"], reports[0].cached)
"""


@needs_compiler
@pytest.mark.compiler
def test_another_process_uses_the_code_of_the_first_one_and_another_priority_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both caches hit; the report still tells what was chosen."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    script = tmp_path / "compile_it.py"
    script.write_text(_COMPILE)

    def run(priority: str) -> list[str]:
        done = subprocess.run([sys.executable, script, priority], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert run("native") == ["0 0 2", "{'rms_norm': 'native'} False"]
    hit = run("native")
    assert hit[0] in ("1 1 2", "0 1 2")
    assert hit[1].endswith("'native'} True")
    assert run("t_other") == ["0 0 4", "{'rms_norm': 't_other'} False"]
    assert run("native")[0] == hit[0]
