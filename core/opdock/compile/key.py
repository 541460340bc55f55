"""What compiled code depends on beside the graph: the part of Inductor's cache key that is ours."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from opdock import ir
from opdock.compile.fusion import Fusion, GraphFusion
from opdock.compile.nodes import calls_in
from opdock.ir.cachekey import implementation_key

if TYPE_CHECKING:
    from torch import fx


def cache_key(graphs: Iterable[fx.Graph], fusions: Iterable[Fusion | GraphFusion]) -> str:
    """Return a key over the passes, the fusions, and the providers that may be put into the graphs.

    An op counts if a graph calls it, a fusion can make it out of ops that count, or a provider that counts names it.
    Two processes with the same source and priorities have the same key.
    """
    fusions = list(fusions)
    parts = [own_source()]
    reached = _reached({call.op.name for graph in graphs for call in calls_in(graph)}, fusions)
    made = [f for f in fusions if {op.name for op in f.products} <= reached]
    parts += [f"{f.name}: {implementation_key(*f.functions)}" for f in made]
    for name in sorted(reached):
        op = ir.registry[name]
        providers = " ".join(f"{impl.provider}{'!' if impl.inplace else ''}={impl.uuid()}" for impl in _tried(op))
        parts.append(f"{op.torch_op}{op.schema}: {providers}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _tried(op: ir.IrOp) -> tuple[ir.IrOpImpl, ...]:
    return op.current().impls or (op.impls["native"],)


def _reached(names: set[str], fusions: Iterable[Fusion | GraphFusion]) -> set[str]:
    found: set[str] = set()
    new = set(names)
    while new:
        found |= new
        new = {op.name for f in fusions if {p.name for p in f.parts} <= found for op in f.products}
        new |= {n for name in found for impl in _tried(ir.registry[name]) for n in _named_by(impl.impl_fn)}
        new = (new & ir.registry.keys()) - found
    return found


def _named_by(fn: object) -> Iterator[str]:
    """Yield the names that a function uses, and those that the functions of its module use which it calls."""
    waiting, seen = [fn], set()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, types.FunctionType) or each in seen:
            continue
        seen.add(each)
        names = list(_names_in(each.__code__))
        yield from names
        near = (each.__globals__.get(n) for n in names)
        waiting += [f for f in near if isinstance(f, types.FunctionType) and f.__globals__ is each.__globals__]


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


@functools.cache
def own_source() -> str:
    """Return a hash of the passes' own source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
