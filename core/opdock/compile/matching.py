"""Matching a pattern of calls against a graph: what each node of the pattern stands for."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from opdock.compile.nodes import find_call

Bound = dict[fx.Node, Any]
"""For each node of a pattern, what it stands for in a graph."""


def same_op(pattern: fx.Node, node: Any) -> bool:
    """Return whether a node calls what a node of a pattern calls; both overloads of an IR op are one."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    if pattern.target is node.target:
        return True
    mine, theirs = find_call(pattern), find_call(node)
    return mine is not None and theirs is not None and mine.op is theirs.op


def match(pattern: Any, node: Any, bound: Bound) -> bool:
    """Bind ``pattern`` and what it depends on to ``node`` and what that depends on; False if they differ."""
    if not isinstance(pattern, fx.Node):
        if isinstance(pattern, tuple | list):
            same_length = isinstance(node, tuple | list) and len(node) == len(pattern)
            return same_length and all(match(p, n, bound) for p, n in zip(pattern, node, strict=True))
        return type(pattern) is type(node) and bool(pattern == node)
    if pattern in bound:
        return bound[pattern] is node or (not isinstance(node, fx.Node) and bound[pattern] == node)
    if pattern.op == "placeholder":
        bound[pattern] = node
        return True
    if not same_op(pattern, node):
        return False
    bound[pattern] = node
    mine, theirs = _arguments(pattern), _arguments(node)
    return len(mine) == len(theirs) and all(match(p, n, bound) for p, n in zip(mine, theirs, strict=True))


def _arguments(node: fx.Node) -> list[Any]:
    """Return all arguments in the order of the schema, so that calls that say the same look the same."""
    call = find_call(node)
    if call is not None:
        return list(call.arguments.values())
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return [*node.args, *node.kwargs.values()]
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    return [given.get(a.name, a.default_value) for a in schema.arguments]


def match_other_results(pattern_graph: fx.Graph, bound: Bound) -> None:
    """Bind the results that the anchor does not depend on, where the graph uses them: items of a tuple."""
    for pattern in pattern_graph.nodes:
        if pattern.op == "call_function" and pattern not in bound and pattern.target is operator.getitem:
            source = bound.get(pattern.args[0])
            users = source.users if isinstance(source, fx.Node) else ()
            found = next((u for u in users if u.target is operator.getitem and u.args[1] == pattern.args[1]), None)
            if found is not None:
                bound[pattern] = found
