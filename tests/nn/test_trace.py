"""What a step launches: ranges around ops and layers, and what is read from the events of a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock import ir, journal
from opdock.errors import ConfigError
from opdock.nn.generation import load_model
from opdock.nn.layers import RowParallelLinear
from opdock.nn.trace import Trace, ranges, trace_model
from opdock.nn.trace_events import OUTSIDE, Gap, Key, Timeline, TraceRow, read_step

NORM, LAYER = Key("ir", "rms_norm", "cuda"), Key("layer", "rms_norm", "pkg.RMSNorm", "forward_cuda")
LABELS = {key.label(): key for key in (NORM, LAYER)}


@pytest.fixture
def undo() -> Iterator[None]:
    """Take back what the test registers."""
    before = set(map(id, journal.entries()))
    yield
    for entry in reversed(journal.entries()):
        if id(entry) not in before:
            entry.undo()


def event(name: str, cat: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "tid": tid, "args": args}


def a_step() -> list[dict[str, Any]]:
    """A layer with an IR op in it, one kernel in each and one outside, and what belongs to another step."""
    return [
        event("step", "user_annotation", 100, 100),
        event(LAYER.label(), "user_annotation", 110, 50),
        event("cudaLaunchKernel", "cuda_runtime", 112, 2, correlation=1),
        event(NORM.label(), "user_annotation", 120, 30),
        event("cuLaunchKernelEx", "cuda_driver", 125, 5, correlation=2),
        event("cudaLaunchKernel", "cuda_runtime", 170, 5, correlation=3),
        event("cudaMemsetAsync", "cuda_runtime", 180, 5, correlation=4),
        event("cudaLaunchKernel", "cuda_runtime", 250, 5, correlation=5),
        event("copy_kernel", "kernel", 130, 10, 7, correlation=1),
        event("norm_kernel", "kernel", 145, 5, 7, correlation=2),
        event("add_kernel", "kernel", 190, 10, 7, correlation=3),
        event("Memset (Device)", "gpu_memset", 210, 1, 7, correlation=4),
        event("late_kernel", "kernel", 260, 10, 7, correlation=5),
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]


def test_a_kernel_belongs_to_the_innermost_range_that_launched_it() -> None:
    """Whenever it runs; times on the host leave out what is inside another op."""
    found = read_step(a_step(), "step", LABELS, device=True)
    assert found.rows == (
        TraceRow(NORM, 1, 1, 0, 30.0, 5.0, {"norm_kernel": 1}),
        TraceRow(LAYER, 1, 1, 0, 20.0, 10.0, {"copy_kernel": 1}),
        TraceRow(OUTSIDE, 0, 1, 1, 50.0, 11.0, {"add_kernel": 1, "Memset (Device)": 1}),
    )


def test_gaps_of_the_device_are_told_with_what_it_waited_for() -> None:
    """From the first kernel of the step to the end of its last; the other step's is not in it."""
    found = read_step(a_step(), "step", LABELS, device=True)
    longest = (Gap(40.0, "add_kernel", ""), Gap(10.0, "Memset (Device)", ""), Gap(5.0, "norm_kernel", "rms_norm"))
    assert found.timeline == Timeline(81.0, 26.0, 3, longest)


def test_kernels_that_overlap_leave_no_gap() -> None:
    """On two streams."""
    events = [
        event("step", "user_annotation", 0, 10),
        *(event("launch", "cuda_runtime", k, 1, correlation=k) for k in (1, 2, 3)),
        event("a", "kernel", 20, 30, 7, correlation=1),
        event("b", "kernel", 25, 5, 8, correlation=2),
        event("c", "kernel", 40, 20, 8, correlation=3),
    ]
    assert read_step(events, "step", {}, device=True).timeline == Timeline(40.0, 40.0, 0, ())


def test_without_device_activities_the_outermost_ops_are_counted() -> None:
    """What an op calls in its turn, other threads' ops and the profiler's own are not."""
    events = [
        event("step", "user_annotation", 0, 100),
        event("profiler::_record_function_enter_new", "cpu_op", 5, 1),
        event(NORM.label(), "user_annotation", 10, 50),
        event("aten::linear", "cpu_op", 20, 20),
        event("aten::addmm", "cpu_op", 25, 10),
        event("aten::mul", "cpu_op", 42, 5, 2),
        event("aten::mul", "cpu_op", 45, 5),
        event("aten::cat", "cpu_op", 70, 5),
    ]
    found = read_step(events, "step", LABELS, device=False)
    assert found.timeline is None
    assert [(row.key, row.kernels, row.device_us) for row in found.rows] == [(NORM, 2, None), (OUTSIDE, 1, None)]
    assert found.rows[0].kernel_names == {"aten::linear": 1, "aten::mul": 1}


def test_a_step_that_is_not_in_the_trace_is_empty() -> None:
    """And no error."""
    assert read_step([], "step", LABELS, device=True).rows == ()


def rows_of(trace: Trace, step: int) -> dict[tuple[str, str], TraceRow]:
    return {(row.key.level, row.key.op): row for row in trace.steps[step].rows}


@pytest.mark.usefixtures("config")
def test_every_call_of_both_steps_is_counted(folder: Path) -> None:
    """Three layers; a batch changes no number of calls."""
    model = load_model(folder, dtype=torch.float32).model
    trace = trace_model(model, tokens=5, batch=2)
    assert [(step.step, step.tokens) for step in trace.steps] == [("prompt", 10), ("token", 2)]
    for step in (0, 1):
        rows = rows_of(trace, step)
        assert rows["ir", "fused_add_rms_norm"].calls == 6 and rows["ir", "silu_and_mul"].calls == 3
        assert rows["layer", "rms_norm"].calls == 7 and rows["layer", "rms_norm"].kernels == 0
        assert rows["layer", "row_parallel_linear"].kernel_names == {"aten::linear": 6}
        assert rows["layer", "attention"].calls == 3 and rows["layer", "attention"].key.method
        assert rows["ir", "rms_norm"].key.served_by == "native"
        assert trace.steps[step].kernels == sum(row.kernels for row in rows.values())
    assert trace.counted == "ops" and "no device time" in trace.note and trace.steps[0].timeline is None


@pytest.mark.usefixtures("config")
def test_a_step_under_ranges_computes_the_same_bits(folder: Path) -> None:
    """Also a second time, with the cache put back."""
    model = load_model(folder, dtype=torch.float32).model
    ids, positions = torch.tensor([5, 6, 7]), torch.arange(3)
    want = model(ids, positions)
    with ranges(model):
        assert torch.equal(model(ids, positions), want)
    trace_model(model, tokens=3)
    assert torch.equal(model(ids, positions), want)


@pytest.mark.usefixtures("config")
def test_nothing_is_left_after_a_trace(folder: Path) -> None:
    """No hook and no scope, also after an error in a forward."""
    model = load_model(folder, dtype=torch.float32).model
    plans = {name: op.fn.__globals__["_plan"] for name, op in ir.registry.items()}
    with pytest.raises(IndexError), ranges(model):
        model(torch.tensor([10**6]), torch.arange(1))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert all(op.fn.__globals__["_plan"] is plans[name] for name, op in ir.registry.items())
    assert not any(op._scopes.count for op in ir.registry.values())


@pytest.mark.usefixtures("undo")
def test_a_vendors_layer_and_provider_are_named(folder: Path) -> None:
    """As an out-of-tree package registers them; a priority that is scoped counts."""

    @RowParallelLinear.register_oot
    class VendorLinear(RowParallelLinear):
        pass

    @ir.ops.silu_and_mul.register_impl("vendor")
    def vendor(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).mul_(up)

    with opdock.set_current_config(), ir.ops.silu_and_mul.set_priority(["vendor"]):
        model = load_model(folder, dtype=torch.float32).model
        rows = rows_of(trace_model(model, tokens=2), 1)
    assert rows["ir", "silu_and_mul"].key.served_by == "vendor"
    assert rows["ir", "silu_and_mul"].kernel_names == {"aten::chunk": 3, "aten::silu": 3, "aten::mul_": 3}
    assert rows["layer", "row_parallel_linear"].key.served_by.endswith("VendorLinear")


@pytest.mark.usefixtures("config")
def test_the_chrome_trace_holds_both_steps_and_the_ranges(folder: Path, tmp_path: Path) -> None:
    """In the format that viewers open."""
    file = tmp_path / "chrome.json"
    trace_model(load_model(folder, dtype=torch.float32).model, tokens=2, chrome=file)
    names = [e["name"] for e in json.loads(file.read_text())["traceEvents"] if e.get("cat") == "user_annotation"]
    assert {"opdock step: prompt", "opdock step: token"} < set(names)
    assert names.count("ir silu_and_mul [native]") == 2 * 3


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(("tokens", "batch", "said"), [(0, 1, "--tokens 0"), (1, -1, "--batch -1"), (640, 1, "640")])
def test_sizes_that_cannot_be_are_refused(folder: Path, tokens: int, batch: int, said: str) -> None:
    """A prompt must leave room for one token."""
    model = load_model(folder, dtype=torch.float32).model
    with pytest.raises(ConfigError, match=said):
        trace_model(model, tokens=tokens, batch=batch)


@pytest.mark.usefixtures("config")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody can make a file")
def test_a_chrome_trace_that_cannot_be_written_is_an_error_in_words(folder: Path) -> None:
    """Only the attempt tells: the folder is there."""
    model = load_model(folder, dtype=torch.float32).model
    with pytest.raises(ConfigError, match="The trace cannot be written to '/proc/no_such_trace.json'"):
        trace_model(model, tokens=2, chrome=Path("/proc/no_such_trace.json"))
