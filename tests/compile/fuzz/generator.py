"""Make a random program from a seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from fuzz.builder import Builder, aten
from fuzz.calls import CALLS, pair, scale
from fuzz.program import Program, first_misuse, nodes_in, storage_of, tensors_in, val, written_by
from fuzz.steps import STEPS, is_given
from opdock import ir

if TYPE_CHECKING:
    from torch import fx

TABLE = (*STEPS, *CALLS)


def generate(seed: int, *, size: int = 24, hops: bool = True, misuse: bool = False) -> Program:
    """Return the program of a seed.

    Args:
        seed: the same seed, arguments and code make the same program.
        size: most steps it has.
        hops: also functionalised higher-order ops.
        misuse: use something after it was given away; ``Program.misuse`` says how.
    """
    b = Builder(seed, hops=hops)
    _steps(b, b.random.randint(4, size))
    how = _misuse(b) if misuse else ""
    pool = b.alive()
    outputs: list[fx.Node] = [b.random.choice(pool[-max(4, len(pool) // 2) :]) for _ in range(b.random.randint(1, 4))]
    if b.chance(0.25):
        outputs.append(b.random.choice(pool))
    if how == "returned":
        outputs.append(b.random.choice([n for n in b.values if is_given(n, b)]))
    b.graph.output(tuple(outputs))
    if not misuse and b.chance(0.85):  # real graphs hold little dead code
        _prune(b.graph)
    b.graph.lint()
    _check_rule(b.graph, misuse=misuse)
    return Program(seed, b.graph, b.root, b.inputs, _priorities(b.random), how)


def _steps(b: Builder, count: int) -> None:
    steps = [step for _, step in TABLE]
    weights = [weight for weight, _ in TABLE]
    for step in b.random.choices(steps, weights, k=count):
        if b.alive():
            step(b)
    if not b.alive():  # everything was given away
        b.call(aten.clone.default, b.values[-1])


def _check_rule(graph: fx.Graph, *, misuse: bool) -> None:
    if (first_misuse(graph) is not None) != misuse:
        raise AssertionError(f"the generator broke its own rule:\n{graph}")


def _priorities(r: random.Random) -> dict[str, list[str]]:
    """Choose the providers: for most ops one that is not the definition comes first."""
    found = {}
    for name, op in sorted(ir.registry.items()):
        names = sorted(n for n in op.impls if n != "native")
        if names and r.random() < 0.9:
            found[name] = [*r.sample(names, r.randint(1, len(names))), "native"]
    return found


def _misuse(b: Builder) -> str:
    """Use something that was given away, itself or by another name."""
    while not b.gone:
        b.random.choice([scale, pair])(b)
        if not any(val(n).dim() for n in b.alive()):
            b.call(aten.expand.default, b.values[0], [2, *val(b.values[0]).shape])
    how = b.random.choice(["read", "written", "viewed", "returned", "given again", "read meanwhile"])
    dead = [n for n in b.values if is_given(n, b)]
    x: Any = b.random.choice(b.gone if b.chance(0.4) else dead)
    if how == "read":
        b.call(aten.neg.default, x)
    elif how == "written":
        b.call(aten.zero_.default, x)
    elif how == "viewed":
        made: Any = b.call(aten.slice.Tensor, x, 0, 0, 1) if val(x).dim() else b.call(aten.unsqueeze.default, x, 0)
        b.call(aten.neg.default, made)
    elif how == "given again":
        x = b.gone[-1]
        op: Any = ir.registry["fuzz_affine"]
        b.call(op.torch_ops.maybe_inplace, x, None, 0.5)
    elif how == "read meanwhile":
        op = ir.registry["fuzz_scale"]
        x = b.pick(where=lambda v: v.dim() > 0)
        b.call(op.torch_ops.maybe_inplace, x, x)
    if b.chance(0.5):
        _steps(b, 3)
    return how


def _prune(graph: fx.Graph) -> None:
    """Remove the calls that nothing sees: no result of theirs is used, and what they write is not."""
    output = graph.output_node()
    kept = {n for n in graph.nodes if n.op in ("placeholder", "get_attr", "output")}
    fixed = {storage_of(val(n)) for n in kept if n is not output}
    grown = True
    while grown:
        live = fixed | {
            storage_of(t) for n in kept for a in nodes_in(n.args, n.kwargs) for t in tensors_in(a.meta["val"])
        }
        more = {
            n
            for n in graph.nodes
            if n not in kept
            and (any(u in kept for u in n.users) or any(storage_of(val(w)) in live for w in written_by(n)))
        }
        kept |= more
        grown = bool(more)
    for node in reversed(list(graph.nodes)):
        if node not in kept and not node.users:
            graph.erase_node(node)
