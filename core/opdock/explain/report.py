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
from opdock.platforms.interface import Platform
from opdock.registry import ClassChoice, choose_class, op_registry, switches, tables

SCHEMA = "opdock.explain/1"


@dataclass(frozen=True)
class Candidate:
    """What became of one platform plugin, and why."""

    name: str
    distribution: str
    version: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class ClassRow:
    """What is built for one op class, and why.

    Args:
        op: registered op name.
        in_tree: the class that model code asks for.
        built: the class that is built.
        method: the method that a CustomOp binds; None for a PluggableLayer, whose forward runs.
        runs: the method whose body runs in the end.
        defined_in: the class that defines that body.
        native_ir: whether the IR ops inside run native because of an explicit ``-op``.
        reason: why this class and method.
        source: ``file:line`` and distribution of the registration.
    """

    op: str
    in_tree: str
    built: str
    method: str | None
    runs: str
    defined_in: str | None
    native_ir: bool
    reason: str
    source: str


@dataclass(frozen=True)
class OpRow:
    """Which provider serves one IR op for the given arguments, with a verdict for each provider.

    Args:
        op: name of the IR op.
        provider: what runs; None where it cannot be told, for ``problem``.
        priority: the providers that are tried, in order.
        arguments: the arguments that were asked about.
        verdicts: one for every registered provider.
        sources: where each provider was registered, by its name.
        problem: why no provider could be told, or "".
    """

    op: str
    provider: str | None
    priority: tuple[str, ...]
    arguments: str
    verdicts: tuple[Verdict, ...]
    sources: dict[str, str]
    problem: str = ""


@dataclass(frozen=True)
class Report:
    """The answer over all levels; ``to_dict`` has a stable schema."""

    platform: str
    platform_reason: str
    device_type: str
    candidates: tuple[Candidate, ...]
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
        op: the name of an op class or IR op, or a class name; None reports all that are registered.
        shape: of the activation, (num_tokens, hidden_size); None takes a small one.
        dtype: of the activation; None takes the platform's first.
        config: None uses the defaults.

    Raises: UnknownNameError for an op that is not registered; ConfigError for an impossible shape;
        PlatformError if no platform can be had.
    """
    sizes = _sizes(shape)
    config = config or OpdockConfig()
    with configure.set_current_config(config):  # first: a plugin may register ops of its own
        platform = context.platform()
        wanted = _wanted(op)
        classes = [
            _class_row(name, choose_class(cls, config.compilation_config, platform), platform)
            for name, cls in sorted(op_registry.items())
            if name in wanted
        ]
        given = {"dtype": dtype or platform.supported_dtypes[0], "device": platform.device_type or "cpu", **sizes}
        ops = [_op_row(ir.registry[name], given) for name in sorted(ir.registry) if name in wanted]
    selection = current.chosen_selection()
    return Report(
        platform.device_name,
        selection.reason if selection else "put in force by a test",
        platform.device_type,
        tuple(
            Candidate(v.name, v.distribution, v.version, v.verdict, v.reason)
            for v in (selection.verdicts if selection else ())
        ),
        tuple(config.compilation_config.custom_ops),
        tuple(classes),
        tuple(ops),
    )


def _sizes(shape: Sequence[int] | None) -> dict[str, int]:
    if shape is None:
        return {}
    if len(shape) != 2 or min(shape) < 1:
        text = "x".join(map(str, shape))
        raise ConfigError(f"The shape {text!r} is not of the form TOKENSxHIDDEN.", remedy="--shape 1x4096")
    return {"num_tokens": shape[0], "hidden_size": shape[1]}


def _wanted(op: str | None) -> set[str]:
    """Return the names of the ops to report."""
    known = {*op_registry, *ir.registry}
    if op is None:
        return known
    by_class = {cls.__name__: name for name, cls in op_registry.items()}
    name = op if op in known else by_class.get(op)
    if name is None:
        raise UnknownNameError(f"No op is called {op!r}.", remedy=suggest(op, known))
    return {name}


def _class_row(name: str, choice: ClassChoice, platform: Platform) -> ClassRow:
    runs, owner = "forward", None
    if choice.method is not None:
        runs, owner = switches.definer(choice.chosen, choice.method, platform)
    source = tables.where(name)
    if choice.chosen is not choice.in_tree:
        source = next(entry.where() for _, cls, entry in tables.replacements() if cls is choice.chosen)
    return ClassRow(
        name,
        _path(choice.in_tree),
        _path(choice.chosen),
        choice.method,
        runs,
        _path(owner) if owner is not None else None,
        choice.native_ir,
        choice.reason,
        source,
    )


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _op_row(op: ir.IrOp, given: dict[str, Any]) -> OpRow:
    """Return the row of an op; what a plugin's generator or predicate raises becomes its ``problem``."""
    priority = tuple(op.get_priority())
    sources = {p: f"{i.site}" + (f"  {i.owner}" if i.owner else "") for p, i in op.impls.items()}
    if not op.has_input_generator:
        return _untold(op, priority, sources, "the op has no input generator, so no arguments can be made")
    try:
        with FakeTensorMode():
            args = op.generate_inputs(**given)
    except Exception as err:  # noqa: BLE001 - code of whoever registered the op
        return _untold(op, priority, sources, f"its input generator raised {type(err).__name__}: {err}")
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            choice = op.explain(*args)
    except Exception as err:  # noqa: BLE001 - a predicate is a provider's code
        problem = f"a provider's supports_args raised {type(err).__name__}: {err}"
        return _untold(op, priority, sources, problem, _describe(op, args))
    return OpRow(op.name, choice.winner.provider, priority, _describe(op, args), choice.verdicts, sources)


def _untold(
    op: ir.IrOp, priority: tuple[str, ...], sources: dict[str, str], problem: str, arguments: str = ""
) -> OpRow:
    verdicts = tuple(Verdict(p, chosen=False, reason=i.reason or problem) for p, i in op.impls.items())
    return OpRow(op.name, None, priority, arguments, verdicts, sources, problem)


def _describe(op: ir.IrOp, args: Sequence[Any]) -> str:
    def one(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}[{'x'.join(map(str, value.shape))}]"
        return repr(value)

    return ", ".join(f"{name}={one(value)}" for name, value in zip(op.signature.parameters, args, strict=False))
