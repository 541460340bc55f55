"""What would run, and why, as data; no model is built and no kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock import context, ir
from opdock.config import OpdockConfig
from opdock.errors import ConfigError, UnknownNameError, suggest
from opdock.ir import Verdict
from opdock.platforms import configure, current
from opdock.registry import ClassChoice, choose_class, op_registry, tables

SCHEMA = "opdock.explain/1"


@dataclass(frozen=True)
class ClassRow:
    """What is built for one op class: names of classes and methods, the reason, where it is defined."""

    op: str
    in_tree: str
    built: str
    method: str | None
    reason: str
    source: str


@dataclass(frozen=True)
class OpRow:
    """Which provider serves one IR op for the given arguments, with a verdict for each provider."""

    op: str
    provider: str
    priority: tuple[str, ...]
    arguments: str
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class Report:
    """The answer over all levels; ``to_dict`` has a stable schema."""

    platform: str
    platform_reason: str
    device_type: str
    custom_ops: tuple[str, ...]
    classes: tuple[ClassRow, ...]
    ops: tuple[OpRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {"schema": SCHEMA, **asdict(self)}


def explain(
    op: str | None = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    config: OpdockConfig | None = None,
) -> Report:
    """Return what runs for one op, or for all.

    Args:
        op: the name of an op class or IR op; None reports all that are registered.
        shape: of the activation, (num_tokens, hidden_size); None takes a small one.
        dtype: of the activation; None takes the platform's first.
        config: None uses the defaults.

    Raises: UnknownNameError for an op that is not registered; PlatformError if no platform can be had.
    """
    known = {*op_registry, *ir.registry}
    if op is not None and op not in known:
        raise UnknownNameError(f"No op is called {op!r}.", remedy=suggest(op, known))
    config = config or OpdockConfig()
    with configure.set_current_config(config):
        platform = context.platform()
        rows = [
            _class_row(name, choose_class(cls, config.compilation_config, platform))
            for name, cls in sorted(op_registry.items())
            if op in (None, name)
        ]
        dtype = dtype or platform.supported_dtypes[0]
        device = platform.device_type or "cpu"
        ops = [_op_row(ir.registry[name], shape, dtype, device) for name in sorted(ir.registry) if op in (None, name)]
    selection = current.chosen_selection()
    reason = selection.reason if selection else "put in force by a test"
    switches = tuple(config.compilation_config.custom_ops)
    return Report(platform.device_name, reason, platform.device_type, switches, tuple(rows), tuple(ops))


def _class_row(name: str, choice: ClassChoice) -> ClassRow:
    method = choice.method
    if choice.defined_in is not None and method is not None:
        runs = next(m for m in (method, "forward_cuda", "forward_native") if m in vars(choice.defined_in))
        method = method if runs == method else f"{method} -> {runs}"
    source = tables.where(name)
    if choice.chosen is not choice.in_tree:
        source = next(entry.where() for _, cls, entry in tables.replacements() if cls is choice.chosen)
    return ClassRow(name, _path(choice.in_tree), _path(choice.chosen), method, choice.reason, source)


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _op_row(op: ir.IrOp, shape: Sequence[int] | None, dtype: torch.dtype, device: str) -> OpRow:
    args: tuple[Any, ...] = ()
    priority = tuple(op.get_priority())
    if not op.has_input_generator:
        reason = "no input generator is registered: the arguments cannot be made"
        verdicts = tuple(Verdict(p, chosen=False, reason=reason) for p in op.impls)
        return OpRow(op.name, "?", priority, reason, verdicts)
    sizes = {}
    if shape is not None:
        if len(shape) != 2 or min(shape) < 0:
            raise ConfigError(
                f"The shape {'x'.join(map(str, shape))} is not of the form TOKENSxHIDDEN.", remedy="--shape 1x4096"
            )
        sizes = {"num_tokens": shape[0], "hidden_size": shape[1]}
    with FakeTensorMode():
        args = op.generate_inputs(dtype=dtype, device=device, **sizes)
        choice = op.explain(*args)
    return OpRow(op.name, choice.winner.provider, priority, _describe(op, args), choice.verdicts)


def _describe(op: ir.IrOp, args: Sequence[Any]) -> str:
    def one(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}[{'x'.join(map(str, value.shape))}]"
        return repr(value)

    return ", ".join(f"{name}={one(value)}" for name, value in zip(op.parameters, args, strict=False))
