"""How much of a model is served by other than the native definitions, found out without weights or computing.

The model runs twice on fake tensors, eagerly, as generation runs it: a prompt, then one token behind it, logits
included. What it calls is counted like this, so that every piece of work is counted once, where it is done:

- an **IR op** that is called is an op of the model. It is served by the provider that the priority in force chooses
  for the arguments of that call.
- an **op class** (CustomOp or PluggableLayer) is an op of the model for those of its calls in which neither an IR op
  nor another op class is called: what is inside is counted instead. So RMSNorm is its IR ops as long as its body calls
  them; once a vendor's ``forward_<platform>`` does the work itself, the layer is the op, and that method serves it.
- plain torch code around them is not counted.

An op class is served by a vendor if its class is replaced by one that changes a method, or if a method other than
``forward_native`` is bound. **Covered** is an op none of whose calls, in the prompt and for the single token, is served
by native; one native call makes it a native op. The share is over ops, not over calls or time.

Fusions of compiled mode are not looked at: ``explain_compiled`` shows those.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock import context
from opdock.errors import ConfigError, OpdockError
from opdock.explain.heatmap import HeatRow, used
from opdock.nn.calls import Call, Calls, recording_calls
from opdock.nn.loading import load_without_weights

SCHEMA = "opdock.coverage/1"


class CoverageError(OpdockError, RuntimeError):
    """Less of a model is served by other than native than was asked for."""


@dataclass(frozen=True)
class Served:
    """What serves an op in some of its calls.

    Args:
        served_by: name of the provider, or qualified name of the class.
        method: that runs, for an op class; "" for an IR op.
        native: whether that is the native definition.
        prompt_calls: calls in the step of the prompt.
        token_calls: calls in the step of one token.
        arguments: of the first such call; "" for an op class.
        reason: why it was chosen.
        losers: for native, why each other provider did not serve it; else empty.
        distribution: that brings it, or "".
    """

    served_by: str
    method: str
    native: bool
    prompt_calls: int
    token_calls: int
    arguments: str
    reason: str
    losers: tuple[str, ...] = ()
    distribution: str = ""


@dataclass(frozen=True)
class ModelOp:
    """One op of a model, and everything that serves it.

    Args:
        level: ``ir`` for an IR op, ``layer`` for an op class.
        op: registered name.
        covered: whether no call is served by native.
        served: one entry for each thing that serves it.
    """

    level: Literal["ir", "layer"]
    op: str
    covered: bool
    served: tuple[Served, ...]

    @property
    def prompt_calls(self) -> int:
        """Calls in the step of the prompt."""
        return sum(s.prompt_calls for s in self.served)

    @property
    def token_calls(self) -> int:
        """Calls in the step of one token."""
        return sum(s.token_calls for s in self.served)

    def why_native(self) -> str:
        """Return the reasons of what native serves, "" if it serves nothing."""
        reasons = (s.reason + "".join(f"; {loser}" for loser in s.losers) for s in self.served if s.native)
        return " | ".join(dict.fromkeys(reasons))


@dataclass(frozen=True)
class Coverage:
    """The ops of a model on a platform; the module's docstring says what counts.

    Args:
        model: name of the checkpoint, without its folder.
        platform: that serves it.
        num_tokens: length of the prompt.
        dtype: of the model.
        ops: IR ops first, by name.
        rows: of the IR ops, for a heat map, asked with the model's arguments.
    """

    model: str
    platform: str
    num_tokens: int
    dtype: str
    ops: tuple[ModelOp, ...]
    rows: tuple[HeatRow, ...]

    @property
    def covered(self) -> int:
        """Number of covered ops."""
        return sum(op.covered for op in self.ops)

    @property
    def share(self) -> float:
        """Covered ops over all ops, 1 for a model without any."""
        return self.covered / len(self.ops) if self.ops else 1.0

    def at_level(self, level: str) -> tuple[int, int]:
        """Return (covered, all) of one level."""
        ops = [op for op in self.ops if op.level == level]
        return sum(op.covered for op in ops), len(ops)

    def require(self, share: float) -> None:
        """Raise CoverageError, listing the native ops, if the share is below ``share`` (0 to 1)."""
        if self.share >= share:
            return
        native = [op for op in self.ops if not op.covered]
        raise CoverageError(
            f"{self.covered} of {len(self.ops)} ops of {self.model} are served by other than native: "
            f"{100 * self.share:.3g} %, and {100 * share:.3g} % are required.",
            who=f"platform {self.platform}",
            why=[f"native: {_LEVELS[op.level]} {op.op}: {op.why_native()}" for op in native],
            remedy="install or register providers and replacements for these, or require less.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        told = asdict(self)
        rows = told.pop("rows")
        return {"schema": SCHEMA, "covered": self.covered, "total": len(self.ops), "share": self.share, **told} | {
            "providers": rows
        }


_LEVELS = {"ir": "IR op", "layer": "layer"}


def model_coverage(
    path: str | os.PathLike[str], *, num_tokens: int = 16, dtype: torch.dtype | str | None = None
) -> Coverage:
    """Return what serves each op of a checkpoint's model; call it inside ``opdock.set_current_config()``.

    Args:
        path: what ``load_model`` takes; its weights are not read.
        num_tokens: length of the prompt.
        dtype: of the weights and all computation; None takes the checkpoint's.

    Raises: as ``load_model``; ConfigError for a prompt that leaves no room for one more token; UnsupportedError for a
        layer or predicate that fails on fake tensors.
    """
    with FakeTensorMode(), torch.no_grad():
        model = load_without_weights(path, dtype=dtype)
        longest = model.config.max_position - 1
        if not 0 < num_tokens <= longest:
            raise ConfigError(
                f"A prompt of {num_tokens} tokens and one more token do not fit.",
                why=f"The model's context holds {longest + 1}.",
                remedy=f"use a number from 1 to {longest}.",
            )
        weight = next(model.parameters())
        cache = model.new_cache(num_tokens + 1)
        steps: list[Calls] = []
        for start, count in ((0, num_tokens), (num_tokens, 1)):
            tokens = torch.zeros(count, dtype=torch.long, device=weight.device)
            positions = torch.arange(start, start + count, device=weight.device)
            with recording_calls(model) as calls:
                hidden = model(tokens, positions, cache)
                model.compute_logits(hidden[-1:])
            steps.append(calls)
    ops, rows = _ops(*steps), _rows(*steps)
    name = Path(path).name or str(path)
    return Coverage(
        name, context.platform().device_name, num_tokens, str(weight.dtype).removeprefix("torch."), ops, rows
    )


def _ops(prompt: Calls, token: Calls) -> tuple[ModelOp, ...]:
    kinds: dict[tuple[Literal["ir", "layer"], str], list[Call]] = {}
    for call in (*prompt.counts, *(c for c in token.counts if c not in prompt.counts)):
        kinds.setdefault((call.level, call.op), []).append(call)
    return tuple(
        ModelOp(*key, not any(c.native for c in calls), tuple(_served(c, prompt, token) for c in calls))
        for key, calls in sorted(kinds.items())
    )


def _served(call: Call, prompt: Calls, token: Calls) -> Served:
    return Served(
        call.served_by,
        call.method,
        call.native,
        prompt.counts[call],
        token.counts[call],
        prompt.arguments.get(call) or token.arguments.get(call, ""),
        call.reason,
        call.losers if call.native else (),
        call.distribution,
    )


def _rows(prompt: Calls, token: Calls) -> tuple[HeatRow, ...]:
    """Return one row for each IR op: the first in which native serves it, else the first."""
    found: dict[str, list[HeatRow]] = {}
    for calls in (prompt, token):
        for call, row in calls.rows.items():
            found.setdefault(call.op, []).append(row)
    return tuple(_with_use(_worst(rows), op, prompt, token) for op, rows in sorted(found.items()))


def _worst(rows: Sequence[HeatRow]) -> HeatRow:
    return next((r for r in rows if any(c.provider == "native" and c.state == "chosen" for c in r.cells)), rows[0])


def _with_use(row: HeatRow, op: str, prompt: Calls, token: Calls) -> HeatRow:
    counts = [sum(n for c, n in calls.counts.items() if c.level == "ir" and c.op == op) for calls in (prompt, token)]
    return used(row, f"calls for the prompt: {counts[0]}, for one token: {counts[1]}")
