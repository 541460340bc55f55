"""What one step of a model launches: calls, kernels, host and device time of each op, by torch's profiler.

Ranges are put around IR ops and op classes while the trace runs, and nothing of them is left afterwards: a layer gets
forward hooks, an IR op a scoped priority whose code is that of the priority in force, with a range around it.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from opdock import context, ir
from opdock.errors import ConfigError
from opdock.nn.report import describe
from opdock.nn.trace_events import Key, StepEvents, Timeline, TraceRow, read_step
from opdock.registry import OpClass

if TYPE_CHECKING:
    from torch import nn

    from opdock.nn.models.config import ModelConfig
    from opdock.nn.models.decoder import CausalDecoder

SCHEMA = "opdock.trace/1"
RUNS = 5
"""Runs without the profiler, whose median is told."""


@dataclass(frozen=True)
class StepTrace:
    """One step.

    Args:
        step: ``prompt`` or ``token``.
        tokens: new tokens in it, of all sequences together.
        host_us: microseconds until the host has launched everything, without the profiler.
        wall_us: microseconds until the device is done, without the profiler.
        rows: what each op did.
        timeline: of the device; None without device activities.
    """

    step: str
    tokens: int
    host_us: float
    wall_us: float
    rows: tuple[TraceRow, ...]
    timeline: Timeline | None

    @property
    def kernels(self) -> int:
        """Kernels launched, or ops dispatched, in the step."""
        return sum(row.kernels for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the step for JSON."""
        rows = [{**asdict(r.key), **{k: v for k, v in asdict(r).items() if k != "key"}} for r in self.rows]
        device = [row.device_us for row in self.rows if row.device_us is not None]
        total = {
            "kernels": self.kernels,
            "copies": sum(row.copies for row in self.rows),
            "host_us": round(sum(row.host_us for row in self.rows), 3),
            "device_us": round(sum(device), 3) if device else None,
        }
        return {
            "step": self.step,
            "tokens": self.tokens,
            "host_us": self.host_us,
            "wall_us": self.wall_us,
            "total": total,
            "timeline": None if self.timeline is None else asdict(self.timeline),
            "rows": rows,
        }


@dataclass(frozen=True)
class Trace:
    """The steps of a model.

    Args:
        platform: that serves it.
        device: where it runs.
        dtype: of its weights.
        tokens: length of a prompt.
        batch: number of sequences.
        counted: ``kernels``, or ``ops`` where the profiler does not see the device.
        note: what that means, in words; "" for kernels.
        steps: the prompt, then one token behind it.
    """

    platform: str
    device: str
    dtype: str
    tokens: int
    batch: int
    counted: str
    note: str
    steps: tuple[StepTrace, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the trace for JSON."""
        facts = {k: v for k, v in vars(self).items() if k != "steps"}
        return {"schema": SCHEMA, **facts, "steps": [step.to_dict() for step in self.steps]}


def check_sizes(tokens: int, batch: int, config: ModelConfig | None = None) -> None:
    """Raise ConfigError for a prompt or batch that cannot be run, as far as ``config`` tells."""
    for name, value in (("--tokens", tokens), ("--batch", batch)):
        if value < 1:
            raise ConfigError(f"{name} {value} is not possible.", remedy="use a number from 1.")
    if config is not None and tokens >= config.max_position:
        raise ConfigError(
            f"A prompt of {tokens} tokens and one more token do not fit.",
            why=f"The model's context holds {config.max_position}.",
            remedy=f"use a number from 1 to {config.max_position - 1}.",
        )


def trace_model(model: CausalDecoder, *, tokens: int = 16, batch: int = 1, chrome: Path | None = None) -> Trace:
    """Run a prompt and one token behind it, greedily and eagerly, and return what each op did.

    The model has run both before it is looked at, so nothing of the first calls (compiling kernels, loading
    libraries) is seen.

    Args:
        model: with loaded weights, not compiled; call it inside ``opdock.set_current_config()``.
        tokens: length of the prompt of each sequence.
        batch: number of sequences.
        chrome: file for the trace of both steps, for a trace viewer.

    Raises: ConfigError for sizes that cannot be, or under a configuration that compiles.
    """
    check_sizes(tokens, batch, model.config)
    if context.get_current_config().compilation_config.compiles:
        raise ConfigError(
            "A trace is about eager calls, and this configuration compiles.",
            why="In compiled code ops and layers are gone.",
            remedy="leave the mode out; opdock explain --compiled MODEL explains compiled code.",
        )
    device = model.model.embed_tokens.weight.device
    activity = _activity_of(device)
    with context.platform().inference_mode():
        steps = _steps(model, tokens, batch, device)
        for run in steps.values():
            run()
        times = {name: _times(run, device) for name, run in steps.items()}
        with ranges(model) as labels:
            activities = [ProfilerActivity.CPU] + ([activity] if activity is not None else [])
            with profile(
                activities=activities, acc_events=True
            ):  # the first profile of a process takes milliseconds to get going
                for run in steps.values():
                    run()
                _wait(device)
            with profile(activities=activities, acc_events=True) as seen:
                for name, run in steps.items():
                    with record_function(_label(name)):
                        run()
                    _wait(device)
    events = _events(seen, chrome)
    told = []
    for name in steps:
        found: StepEvents = read_step(events, _label(name), labels, device=activity is not None)
        count = batch * (tokens if name == "prompt" else 1)
        told.append(StepTrace(name, count, *times[name], found.rows, found.timeline))
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    note = "" if activity is not None else _note(device)
    counted = "kernels" if activity is not None else "ops"
    return Trace(context.platform().device_name, str(device), dtype, tokens, batch, counted, note, tuple(told))


@contextlib.contextmanager
def ranges(model: nn.Module) -> Iterator[dict[str, Key]]:
    """Put a profiler's range around every call of the model's op classes and of every IR op while the block runs.

    Yields: the ranges that were entered, by their names in the trace.
    """
    labels: dict[str, Key] = {}
    with contextlib.ExitStack() as undo:
        for module in model.modules():
            if isinstance(module, OpClass):
                key = Key("layer", *describe(module))
                labels[key.label()] = key
                entered, left = _hooks(key.label())
                undo.callback(module.register_forward_pre_hook(entered).remove)
                undo.callback(module.register_forward_hook(left, always_call=True).remove)
        for op in tuple(ir.registry.values()):
            plan = op.current()
            codes = [_traced(op, code, labels) for code in (plan.call, plan.inplace)]
            undo.enter_context(op._scopes.enter(op._scopes.make_plan(plan.key, plan.impls, *codes)))
        yield labels


def _hooks(label: str) -> tuple[Callable[..., None], Callable[..., None]]:
    open_ranges: list[record_function] = []

    def entered(_module: nn.Module, _args: object) -> None:
        open_ranges.append(record_function(label))
        open_ranges[-1].__enter__()

    def left(_module: nn.Module, _args: object, _out: object) -> None:
        if open_ranges:
            open_ranges.pop().__exit__(None, None, None)

    return entered, left


def _traced(op: ir.IrOp, code: Callable[..., Any] | None, labels: dict[str, Key]) -> Callable[..., Any] | None:
    if code is None:
        return None

    def traced(*args: Any) -> Any:
        key = Key("ir", op.name, op.dispatch(*args).provider)
        label = key.label()
        labels[label] = key
        with record_function(label):
            return code(*args)

    return traced


def _steps(model: CausalDecoder, tokens: int, batch: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """Return the two steps; each puts the cache to the length that it starts from, so it can run again."""
    cache = model.new_cache(tokens + 1, batch=batch)

    def step(start: int, count: int) -> Callable[[], object]:
        ids = torch.arange(batch * count, device=device) % model.config.vocab_size
        positions = torch.arange(start, start + count, device=device).repeat(batch)

        def run() -> object:
            cache.length = start
            hidden = model(ids, positions, cache)
            last = hidden if count == 1 else hidden.view(batch, count, -1)[:, -1]
            return model.compute_logits(last).argmax(dim=-1)

        return run

    return {"prompt": step(0, tokens), "token": step(tokens, 1)}


def _times(run: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return the median microseconds to launch a step, and until it is done."""
    launched, done = [], []
    for _ in range(RUNS):
        _wait(device)
        start = time.perf_counter()
        run()
        launched.append((time.perf_counter() - start) * 1e6)
        _wait(device)
        done.append((time.perf_counter() - start) * 1e6)
    return round(statistics.median(launched), 1), round(statistics.median(done), 1)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _activity_of(device: torch.device) -> ProfilerActivity | None:
    """Return what the profiler calls the device's activities; None if it sees none."""
    if device.type == "cpu":
        return None
    found = getattr(ProfilerActivity, device.type.upper(), ProfilerActivity.PrivateUse1)
    return found if found in supported_activities() else None


def _note(device: torch.device) -> str:
    ops = "ops that torch dispatches are counted in place of kernels, views included; there is no device time"
    if device.type == "cpu":
        return f"On a CPU nothing is launched: {ops}."
    return f"The profiler of this torch does not see devices of type {device.type}: {ops}."


def _label(step: str) -> str:
    return f"opdock step: {step}"


def _events(seen: profile, chrome: Path | None) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        text = file.read_text(encoding="utf-8")
    if chrome is not None:
        try:
            chrome.write_text(text, encoding="utf-8")
        except OSError as err:
            raise ConfigError(
                f"The trace cannot be written to {str(chrome)!r}.",
                why=err.strerror or str(err),
                remedy="name a file in a folder that can be written to.",
            ) from err
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return found
