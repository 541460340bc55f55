"""Steps that call IR ops, by the default overload or, where it can be given away, by ``maybe_inplace``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from fuzz.builder import Builder, aten
from fuzz.program import nodes_in, val
from opdock import ir

EPSILON = 1e-5


def _has_rows(v: Tensor) -> bool:
    return v.dim() > 0 and v.numel() > 0


def _call(b: Builder, name: str, args: Sequence[Any], *, give: float = 0.6) -> fx.Node | None:
    """Call an op; ``give`` is how often its activations are given away."""
    op = ir.registry[name]
    overload = op.torch_ops.default
    if op.torch_ops.maybe_inplace is not None and b.chance(give):
        given = nodes_in([args[i] for i in op.activation_indices])
        if b.can_give(given, args):
            overload = op.torch_ops.maybe_inplace
    results = len(op.torch_op._schema.returns)
    keywords = dict(zip(op.parameters[1:], args[1:], strict=False)) if b.chance(0.1) else {}
    made = b.call(overload, *(args[:1] if keywords else args), add=results == 1, **keywords)
    if results > 1:
        b.unpack(made, b.random.choice([[0], [1], [0, 1], [0, 1], [1, 0]]))
    return made


def scale(b: Builder) -> None:
    """Call the op of one activation that has every kind of provider."""
    x = b.pick(where=_has_rows)
    if x is not None:
        _call(b, "fuzz_scale", [x, b.pick(tuple(val(x).shape))])


def pair(b: Builder) -> None:
    """Call the op of two activations."""
    x = b.pick(where=_has_rows)
    if x is not None:
        factor = b.random.choice([[], [1.0], [0.5]])
        _call(b, "fuzz_pair", [x, b.pick(tuple(val(x).shape)), *factor])


def affine(b: Builder) -> None:
    """Call the op with an optional tensor and a flag."""
    x = b.pick(where=_has_rows)
    if x is not None:
        weight = b.pick((val(x).shape[-1],)) if b.chance(0.5) else None
        _call(b, "fuzz_affine", [x, weight, b.random.choice([-1.0, 0.5]), *b.random.choice([[], [True], [False]])])


def turn_or_join(b: Builder) -> None:
    """Call an op that is never in place and returns views of its own memory."""
    x = b.pick(where=_has_rows)
    if x is not None and b.chance(0.5):
        _call(b, "fuzz_turn", [x])
    elif x is not None:
        _call(b, "fuzz_join", [x, b.pick(tuple(val(x).shape))])


def norm(b: Builder) -> None:
    """Call an op of the host that works on rows."""
    x: Any = b.pick(where=_has_rows)
    if x is None:
        return
    width = val(x).shape[-1]
    kind = b.random.randrange(3)
    if kind == 0 and width % 2 == 0:
        _call(b, "silu_and_mul", [x])
        return
    weight = b.pick((width,)) if b.chance(0.5) else None
    if kind == 1:
        _call(b, "rms_norm", [x, weight, EPSILON, *b.random.choice([[], [None], [max(1, width // 2)]])])
    else:
        _call(b, "fused_add_rms_norm", [x, b.pick(tuple(val(x).shape)), weight, EPSILON])


def rotary(b: Builder) -> None:
    """Rotate the first two column blocks of one projection, as attention layers do."""
    x: Any = b.pick(where=lambda v: v.dim() == 2 and v.shape[1] in (4, 6, 8))
    if x is None:
        return
    rows, width = val(x).shape
    parts = [2, 2, 2] if width == 6 else [width // 2, width // 2]
    before = len(b.values)
    b.unpack(b.call(aten.split_with_sizes.default, x, parts, 1, add=False), range(len(parts)))
    q, k = b.values[before : before + 2]
    positions = b.constant(f"positions{rows}", lambda: torch.randperm(8)[:rows])
    cache = b.constant("cache", lambda: torch.randint(-2, 3, (8, 2)).float() / 2)
    _call(b, "rotary_embedding", [positions, q, k, 2, cache, *b.random.choice([[], [True], [False]])], give=0.8)


CALLS: tuple[tuple[float, Callable[[Builder], object]], ...] = (
    (0.10, scale),
    (0.08, pair),
    (0.05, affine),
    (0.03, turn_or_join),
    (0.04, norm),
    (0.03, rotary),
)
