"""The steps a random program is made of: each adds a node or a few, or none where nothing fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fuzz import kernels
from fuzz.builder import Builder, aten
from fuzz.program import overlap, storage_of, val

functionalized = torch.ops.higher_order.auto_functionalized
functionalized_v2 = torch.ops.higher_order.auto_functionalized_v2


def clone(b: Builder) -> None:
    """Clone a value, in one case of eight into the standard layout."""
    x = b.pick()
    if b.chance(0.12):
        b.call(aten.clone.default, x, memory_format=torch.contiguous_format)
    else:
        b.call(aten.clone.default, x)


def view(b: Builder) -> None:
    """Take a view of any kind."""
    b.random.choice(VIEWS)(b, b.pick())


def _halves(b: Builder, x: Any, dim: int) -> None:
    size = val(x).shape[dim] if val(x).dim() else 0
    if size > 1:
        start = b.random.choice([0, size // 2])
        b.call(aten.slice.Tensor, x, dim, start, start + size // 2)


def _split(b: Builder, x: Any) -> None:
    dim = b.random.choice([0, -1])
    size = val(x).shape[dim] if val(x).dim() else 1
    if size % 2 == 0:
        parts = b.call(aten.split.Tensor, x, size // 2, dim, add=False)
        b.unpack(parts, b.random.sample([0, 1], b.random.randint(1, 2)))


def _part(b: Builder, x: Any) -> None:
    v = val(x)
    if v.is_contiguous() and v.numel() >= 4:
        start = int(v.storage_offset()) + b.random.choice([0, v.numel() // 2])
        b.call(aten.as_strided.default, x, [v.numel() // 2], [1], start)


VIEWS: tuple[Callable[[Builder, Any], object], ...] = (
    lambda b, x: b.call(aten.view.default, x, [val(x).numel()]),
    lambda b, x: b.call(aten.view.default, x, list(b.random.choice([(4, 6), (6, 4), (2, 3, 4), (4, 8), (8, 4)]))),
    lambda b, x: _halves(b, x, 0),
    lambda b, x: _halves(b, x, -1),
    lambda b, x: b.call(aten.select.int, x, 0, b.random.randrange(max(1, val(x).shape[0] if val(x).dim() else 1))),
    lambda b, x: b.call(aten.permute.default, x, list(reversed(range(val(x).dim())))),
    lambda b, x: b.call(aten.unsqueeze.default, x, 0),
    _split,
    lambda b, x: b.call(aten._unsafe_view.default, x, [val(x).numel()]) if val(x).is_contiguous() else None,
    _part,
    lambda b, x: b.call(aten.expand.default, x, [2, *val(x).shape]),
)


def functional(b: Builder) -> None:
    """Compute a new value with aten."""
    x: Any = b.pick()
    kind = b.random.randrange(5)
    if kind == 0:
        total = b.call(aten.add.Tensor, x, b.pick(tuple(val(x).shape)))
        b.call(aten.clamp.default, total, -8, 8) if total is not None else None
    elif kind == 1:
        b.call(aten.mul.Tensor, x, 0.5)
    else:
        b.call(b.random.choice([aten.relu.default, aten.neg.default, aten.abs.default]), x)


def write(b: Builder) -> None:
    """Write a value in place: by aten, with ``out=`` or by an opaque kernel."""
    target = b.pick_target()
    if target is None:
        return
    y = b.pick(tuple(val(target).shape))
    if y is not None:
        b.random.choice(WRITES)(b, target, y)


def _copy_back(b: Builder, x: Any, _: Any) -> None:
    """Copy a value onto one that it may have come from."""
    onto = b.pick_target(tuple(val(x).shape))
    if onto is not None:
        b.call(aten.copy_.default, onto, x)


def _write_both(b: Builder, x: Any, y: Any) -> None:
    other = b.pick_target(tuple(val(x).shape))
    if val(x).dim() and other is not None and not overlap(val(other), val(x)):
        b.call(kernels.both, x, other, y)


def _opaque(kernel: Any) -> Callable[[Builder, Any, Any], object]:
    return lambda b, x, y: b.call(kernel, x, y) if val(x).dim() else None


WRITES: tuple[Callable[[Builder, Any, Any], object], ...] = (
    lambda b, x, y: b.call(aten.add_.Tensor, x, y) and b.call(aten.clamp_.default, x, -8, 8),
    lambda b, x, y: b.call(aten.mul_.Tensor, x, 0.5),
    lambda b, x, y: b.call(aten.relu_.default, x),
    lambda b, x, y: b.call(aten.copy_.default, x, y),
    _copy_back,
    lambda b, x, y: b.call(aten.fill_.Scalar, x, 1.5) if b.chance(0.5) else b.call(aten.zero_.default, x),
    _opaque(kernels.mix),
    _opaque(kernels.accumulate),
    _opaque(kernels.returning),
    _write_both,
    lambda b, x, y: b.call(kernels.into, y, out=x) if val(x).dim() else None,
    lambda b, x, y: b.call(aten.add.out, y, b.pick(tuple(val(x).shape)), out=x),
)


def write_back(b: Builder) -> None:
    """Write half of a clone back, or its transpose in: only a copy of the whole restores."""
    clones = [n for n in b.alive() if n.target is aten.clone.default and val(n).dim()]
    clones = [n for n in clones if n.args[0] in b.alive() and b.writable(n.args[0]) and b.writable(n)]
    if not clones:
        return
    c: Any = b.random.choice(clones)
    s, rows = c.args[0], val(c).shape[0]
    kind = b.random.randrange(3)
    if kind == 0 and rows > 1:
        c, s = (b.call(aten.slice.Tensor, n, 0, 0, rows // 2) for n in (c, s))
    elif kind == 1 and val(c).dim() == 2 and rows == val(c).shape[1]:
        s = b.call(aten.permute.default, s, [1, 0])
    if b.chance(0.5):
        c, s = s, c
    b.call(b.random.choice([aten.copy_.default, aten.copy_.default, aten.add_.Tensor]), c, s)


def both_sides(b: Builder) -> None:
    """Clone a value, then write, overwrite and read the two sides and parts of them in turns."""
    source = b.pick_target()
    clone_of = b.call(aten.clone.default, source) if source is not None else None
    if source is None or clone_of is None:
        return
    for _ in range(b.random.randint(2, 5)):
        x: Any = b.random.choice([source, clone_of])
        if b.chance(0.25) and val(x).dim():
            _halves(b, x, 0)
            x = b.values[-1]
        y: Any = b.pick(tuple(val(x).shape))
        other = clone_of if x is source else source
        kind = b.random.randrange(8)
        if kind == 7 and b.hops and val(x).dim() and val(x).shape == val(other).shape:
            b.unpack(b.call(functionalized, kernels.mix, x=x, y=other, add=False), [1])
        elif kind == 0:
            b.call(aten.add_.Tensor, x, y)
            b.call(aten.clamp_.default, x, -8, 8)
        elif kind == 1:
            b.call(aten.mul_.Tensor, x, 0.5)
        elif kind == 2:
            b.call(aten.copy_.default, x, y)
        elif kind == 3:
            b.call(aten.fill_.Scalar, x, b.random.choice([1.5, -2.0]))
        elif kind == 4 and val(x).shape == val(other).shape:
            b.call(aten.copy_.default, other, x)
        else:
            b.call(b.random.choice([aten.neg.default, aten.relu.default]), x)


def higher_order(b: Builder) -> None:
    """Call a kernel that was made functional: it works on copies until Inductor decides otherwise."""
    x: Any = b.pick(where=lambda v: v.dim() > 0)
    y = b.pick(tuple(val(x).shape), where=lambda v: storage_of(v) != storage_of(val(x))) if x is not None else None
    if y is None or not b.hops:
        return
    kind = b.random.randrange(3)
    if kind == 0:
        b.unpack(b.call(functionalized, kernels.mix, x=x, y=y, add=False), [1])
    elif kind == 1:
        b.unpack(b.call(functionalized, kernels.accumulate, x=x, y=y, add=False), [b.random.choice([0, 1])])
    else:
        made = b.call(functionalized_v2, kernels.mix, y=y, _x_base_index=0, _all_bases=[x], add=False)
        b.unpack(made, [1])


STEPS: tuple[tuple[float, Callable[[Builder], object]], ...] = (
    (0.22, clone),
    (0.18, view),
    (0.12, functional),
    (0.22, write),
    (0.02, write_back),
    (0.06, both_sides),
    (0.05, higher_order),
)


def is_given(node: fx.Node, b: Builder) -> bool:
    """Return whether a value overlaps what was given away."""
    return any(overlap(val(node), val(g)) for g in b.gone)
