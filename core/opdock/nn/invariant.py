"""Batch invariance: a request's bits do not depend on what runs beside it. ``VLLM_BATCH_INVARIANT=1`` asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdock import env, ir
from opdock.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import nn


class BatchInvarianceError(UnsupportedError):
    """``VLLM_BATCH_INVARIANT=1``, and something that runs cannot promise it; the message names it."""


def in_force() -> bool:
    """Return whether ``VLLM_BATCH_INVARIANT`` is on, as it stands now; a constant for Dynamo."""
    return env.batch_invariant()


in_force._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse(who: str | list[str], why: str | list[str], remedy: str = "") -> BatchInvarianceError:
    """Return the error for something that cannot promise it.

    Args:
        who: the layer and the op.
        why: it cannot.
        remedy: what to do instead of unsetting the variable.
    """
    unset = f"unset {env.VLLM_BATCH_INVARIANT}"
    return BatchInvarianceError(
        f"{env.VLLM_BATCH_INVARIANT}=1, and the bits of a request would depend on the others of its batch.",
        who=who,
        why=why,
        remedy=f"{remedy}, or {unset}." if remedy else f"{unset}.",
    )


def declares(cls: type) -> bool:
    """Return whether a class says ``batch_invariant = True`` in its own body: what it changes of its base may not."""
    return bool(vars(cls).get("batch_invariant", False))


def follow() -> None:
    """Let the IR ops follow the variable as it stands now: their calls read no environment."""
    for op in ir.registry.values():
        op.current()


def refuse_compiled(model: nn.Module) -> None:
    """Raise BatchInvarianceError for a model that runs compiled code."""
    if model._compiled_call_impl is not None:
        raise refuse(
            "the compiled model",
            "Compiled code fuses and orders sums by the shapes that it was made for.",
            "run it op by op: CompilationConfig(mode=0), --mode eager",
        )
