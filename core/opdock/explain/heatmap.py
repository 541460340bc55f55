"""Every IR op against every provider: who runs, who would, who declines, as data; ``heatmap_page`` shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch._subclasses.fake_tensor import FakeTensorMode

from opdock import context, ir
from opdock.config import OpdockConfig
from opdock.explain.report import _describe, _sizes
from opdock.ir.predicate import refusal
from opdock.platforms import configure

if TYPE_CHECKING:
    import torch

CHOSEN, TAKES, DECLINED, UNSUPPORTED = "chosen", "would take", "declined", "unsupported here"
UNTOLD, ABSENT = "not told", "not registered"
STATES = (CHOSEN, TAKES, DECLINED, UNSUPPORTED, UNTOLD, ABSENT)
MEANING = {
    CHOSEN: "it runs for these arguments",
    TAKES: "it takes these arguments, but another provider comes first or it is not in the priority",
    DECLINED: "its supports_args does not take these arguments",
    UNSUPPORTED: "it cannot run in this process",
    UNTOLD: "it could not be asked",
    ABSENT: "no such provider of this op is registered",
}


@dataclass(frozen=True)
class Cell:
    """What one provider does for one op.

    Args:
        provider: its name.
        state: one of ``STATES``, never ``ABSENT``.
        reason: why.
        source: where it was registered, and by which distribution.
    """

    provider: str
    state: str
    reason: str
    source: str


@dataclass(frozen=True)
class HeatRow:
    """One op.

    Args:
        op: name of the IR op.
        arguments: that the providers were asked about.
        cells: one for every registered provider, in the order of the priority.
        use: what a model does with it, for example how often it calls it; "" if it does not, or without a model.
    """

    op: str
    arguments: str
    cells: tuple[Cell, ...]
    use: str = ""


def judge(op: ir.IrOp, args: Sequence[Any]) -> tuple[Cell, ...]:
    """Return what each provider of ``op`` does for these arguments, real or fake; what one raises is its reason."""
    try:
        choice = op.explain(*args)
    except Exception as err:  # noqa: BLE001 - a predicate is a provider's code
        return untold(op, f"a provider's supports_args raised {type(err).__name__}: {err}")
    cells = []
    for verdict in choice.verdicts:
        impl = op.impls[verdict.provider]
        state, reason = (CHOSEN, verdict.reason) if verdict.chosen else _loser(impl, args, verdict.reason)
        cells.append(Cell(impl.provider, state, reason, _source(impl)))
    return tuple(cells)


def _source(impl: ir.IrOpImpl) -> str:
    """Return module, line and distribution: a page is passed on, and folders are nobody else's business."""
    return f"{impl.site.module}, line {impl.site.line}" + (f", {impl.owner}" if impl.owner else "")


def _loser(impl: ir.IrOpImpl, args: Sequence[Any], reason: str) -> tuple[str, str]:
    if not impl.supported:
        return UNSUPPORTED, impl.reason
    try:
        declined = refusal(impl.predicate, args, {})
    except Exception as err:  # noqa: BLE001 - a predicate is a provider's code
        return UNTOLD, f"supports_args raised {type(err).__name__}: {err}"
    return (DECLINED, declined) if declined else (TAKES, reason)


def untold(op: ir.IrOp, reason: str) -> tuple[Cell, ...]:
    """Return the cells of an op whose providers cannot be asked."""
    return tuple(
        Cell(p, UNTOLD if i.supported else UNSUPPORTED, i.reason or reason, _source(i)) for p, i in op.impls.items()
    )


def heat_rows(
    op: str | None = None,
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    config: OpdockConfig | None = None,
    model: Mapping[str, HeatRow] | None = None,
) -> tuple[HeatRow, ...]:
    """Return a row for one IR op, or for all that are registered on this platform.

    Args:
        op: name of an IR op; None takes all.
        shape: of the activation, (num_tokens, hidden_size); None takes a small one.
        dtype: of the activation; None takes the platform's first.
        config: None uses the defaults.
        model: rows of the ops that a model calls, asked with the model's own arguments; they come first.

    Raises: ConfigError for an impossible shape; PlatformError if no platform can be had.
    """
    sizes, model = _sizes(shape), dict(model or {})
    with configure.set_current_config(config or OpdockConfig()):
        platform = context.platform()
        given = {"dtype": dtype or platform.supported_dtypes[0], "device": platform.device_type or "cpu", **sizes}
        names = [name for name in sorted(ir.registry) if op in (None, name)]
        rows = [model.get(name) or _row(ir.registry[name], given) for name in names]
    return tuple(sorted(rows, key=lambda row: row.op not in model))


def _row(op: ir.IrOp, given: Mapping[str, Any]) -> HeatRow:
    if not op.has_input_generator:
        return HeatRow(op.name, "", untold(op, "the op has no input generator, so no arguments can be made"))
    try:
        with FakeTensorMode():
            args = op.generate_inputs(**given)
    except Exception as err:  # noqa: BLE001 - code of whoever registered the op
        return HeatRow(op.name, "", untold(op, f"its input generator raised {type(err).__name__}: {err}"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        return row_of(op, args)


def row_of(op: ir.IrOp, args: Sequence[Any], use: str = "") -> HeatRow:
    """Return the row of ``op`` for these arguments, real or fake."""
    return HeatRow(op.name, _describe(op, args), judge(op, args), use)


def used(row: HeatRow, use: str) -> HeatRow:
    """Return the row with what a model does with it."""
    return replace(row, use=use)


def providers_of(rows: Sequence[HeatRow]) -> list[str]:
    """Return the columns: the providers by name, native last, as it is tried last."""
    names = {cell.provider for row in rows for cell in row.cells}
    return sorted(names - {"native"}) + sorted(names & {"native"})
