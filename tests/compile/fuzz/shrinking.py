"""Make a failing program small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from fuzz.program import Program, first_misuse, nodes_in, val

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails) -> Program:
    """Return a smaller program for which ``fails`` is still true, and which is as valid as the first."""
    grown = True
    while grown:
        grown = False
        for cut in (*_fewer_outputs(program), *_fewer_nodes(program), *_fewer_providers(program)):
            candidate = cut()
            if (
                candidate is not None
                and bool(first_misuse(candidate.graph)) == bool(program.misuse)
                and fails(candidate)
            ):
                program, grown = candidate, True
                break
    return program


def _fewer_providers(program: Program) -> list[Callable[[], Program | None]]:
    def without(name: str) -> Program:
        return replace(program, priorities={k: v for k, v in program.priorities.items() if k != name})

    def first(name: str) -> Program:
        return replace(program, priorities={**program.priorities, name: [program.priorities[name][0], "native"]})

    return [
        *(lambda n=n: without(n) for n in program.priorities),
        *(lambda n=n: first(n) for n, names in program.priorities.items() if len(names) > 2),
    ]


def _fewer_outputs(program: Program) -> list[Callable[[], Program | None]]:
    count = len(nodes_in(_output(program.graph).args))

    def without(i: int) -> Program | None:
        graph = program.module().graph
        outputs = list(_output(graph).args[0])
        del outputs[i]
        _output(graph).args = (tuple(outputs),)
        return _finished(program, graph)

    return [lambda i=i: without(i) for i in range(count)] if count > 1 else []


def _fewer_nodes(program: Program) -> list[Callable[[], Program | None]]:
    calls = [i for i, n in enumerate(program.graph.nodes) if n.op == "call_function"]

    def without(i: int, place: int | None) -> Program | None:
        graph = program.module().graph
        node = list(graph.nodes)[i]
        if place is not None:
            args = nodes_in(node.args, node.kwargs)
            like = [a for a in args if _alike(a, node)]
            if place >= len(like):
                return None
            node.replace_all_uses_with(like[place])
        if node.users:
            return None
        graph.erase_node(node)
        return _finished(program, graph)

    return [lambda i=i, p=p: without(i, p) for i in reversed(calls) for p in (None, 0, 1)]


def _alike(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    return isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape and x.dtype == y.dtype


def _output(graph: fx.Graph) -> Any:
    return graph.output_node()


def _finished(program: Program, graph: fx.Graph) -> Program | None:
    """Return the program with another graph, whose fake values are made anew; None if it cannot run."""
    mode, specs = FakeTensorMode(), iter(program.inputs)
    constants = dict(program.root.named_buffers())
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
            continue
        with mode:
            if node.op == "placeholder":
                node.meta["val"] = next(specs).empty()
            elif node.op == "get_attr":
                constant = constants[node.target]
                node.meta["val"] = torch.empty(constant.shape, dtype=constant.dtype)
            elif node.op == "call_function":
                args, kwargs = fx.map_arg((node.args, node.kwargs), val)
                try:
                    node.meta["val"] = node.target(*args, **kwargs)
                except (RuntimeError, ValueError, TypeError, IndexError):
                    return None
    return replace(program, graph=graph)
