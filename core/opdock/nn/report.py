"""What served each op during a run: classes and methods of layers, providers of IR ops, and how often.

Counting costs; it is on only inside ``recording``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from opdock import ir
from opdock.compile import observing
from opdock.registry import CustomOp, OpClass

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, order=True)
class Row:
    """One line of the report.

    Args:
        level: ``layer`` for an op class, ``ir`` for an IR op.
        op: registered name.
        served_by: qualified name of the class that ran, or the name of the provider.
        method: the method that a CustomOp bound, for other layers the backend that they chose or ``forward``, "" for
            an IR op.
        calls: number of calls.
    """

    level: Literal["layer", "ir"]
    op: str
    served_by: str
    method: str
    calls: int


class Recording:
    """The counts of one ``recording`` block; still readable after it."""

    def __init__(self, providers: Counter[tuple[str, str]]) -> None:
        """Start with no layer called."""
        self.layers: Counter[tuple[str, str, str]] = Counter()
        self.providers = providers

    def rows(self) -> list[Row]:
        """Return one row for each op and what served it: layers first, then IR ops, by name."""
        layers = [Row("layer", *key, calls) for key, calls in self.layers.items()]
        providers = [Row("ir", op, name, "", calls) for (op, name), calls in self.providers.items()]
        return sorted(layers) + sorted(providers)


@contextlib.contextmanager
def recording(model: nn.Module) -> Iterator[Recording]:
    """Count, while the block runs, the calls of the model's op classes and of every IR op.

    Args:
        model: its op classes are counted through forward hooks, so only calls of the module itself count.
    """
    with ir.counting() as providers, contextlib.ExitStack() as undo:
        record = Recording(providers)
        for module in model.modules():
            if isinstance(module, OpClass):
                hook = _counter(record.layers, describe(module))
                undo.callback(module.register_forward_pre_hook(hook).remove)
        yield record


@contextlib.contextmanager
def recording_compiled() -> Iterator[Recording]:
    """Count, while the block runs, the IR ops in the graphs that are compiled: each once, however often it runs.

    Layers do not count: in compiled code they are gone.
    """
    providers: Counter[tuple[str, str]] = Counter()
    with ir.counting() as eager, observing() as reports:
        record = Recording(providers)
        yield record
    providers.update(eager)
    providers.update((choice.op, choice.provider) for report in reports for choice in report.choices)


def describe(module: OpClass) -> tuple[str, str, str]:
    """Return (op name, class, method) of a built op class."""
    cls = type(module)
    # a layer that chose among backends says which one it runs
    method = module.__dict__["_bound"][0] if isinstance(module, CustomOp) else getattr(module, "served_by", "forward")
    return getattr(module, "name", cls.__name__), f"{cls.__module__}.{cls.__qualname__}", method


@dataclass(frozen=True)
class LinearChoice:
    """How one quantised linear layer is applied.

    Args:
        layer: its path in the model.
        method: name of the quantisation method.
        spec: its facts, in a line.
        kernel: the class that was chosen.
        rejected: (class, reason) of those that were tried before.
    """

    layer: str
    method: str
    spec: str
    kernel: str
    rejected: tuple[tuple[str, str], ...]


def linear_choices(model: nn.Module) -> list[LinearChoice]:
    """Return how each quantised linear layer of a model is applied, and why not by the kernels before.

    The reasons are those of now: call it under the configuration that the model was built under.
    """
    from opdock.nn.quantization.selection import explain_linear_kernel

    found = []
    for name, module in model.named_modules():
        method: Any = getattr(module, "quant_method", None)
        kernel, spec = getattr(method, "kernel", None), getattr(method, "spec", None)
        if kernel is None or spec is None:
            continue
        verdicts = explain_linear_kernel(spec)[1]
        rejected = tuple((v.kernel, v.reason) for v in verdicts if not v.chosen)
        config: Any = module.quant_config
        found.append(LinearChoice(name, config.get_name(), spec.describe(), type(kernel).__name__, rejected))
    return found


def backends(model: nn.Module) -> dict[str, list[str]]:
    """Return, for each layer that chose among backends when it was built, a line for each: chosen, or why not.

    Args:
        model: its layers are named by their paths in it.
    """
    found = {name: getattr(module, "selection", None) for name, module in model.named_modules()}
    return {name: selection.lines() for name, selection in found.items() if selection is not None}


def _counter(counts: Counter[tuple[str, str, str]], key: tuple[str, str, str]) -> Any:
    def count(_module: nn.Module, _args: object) -> None:
        counts[key] += 1

    return count
