"""The rules about packages in ``opdock.plugins``: hookimpls and their arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from opdock.errors import nearest
from opdock.testing.contract.findings import Finding, Place, finding
from opdock.testing.contract.host import hookspecs
from opdock.testing.contract.literals import keyword, parameters, value_of
from opdock.testing.contract.source import Found, Module
from opdock.testing.contract.world import World

_MARKERS = ("opdock.hookimpl", "opdock.discovery.hookspecs.hookimpl")


def implementations(targets: list[Found]) -> list[tuple[str, Found, bool]]:
    """Return (hook, function, whether it may be unknown) of every marked function that the entry points reach."""
    found = []
    for target in targets:
        inside = target.module.tree if isinstance(target.node, ast.Module | ast.Call | ast.Name) else target.node
        for node in ast.walk(inside):
            if isinstance(node, ast.FunctionDef):
                mark = _mark(target.module, node)
                if mark is not None:
                    found.append((mark[0], Found(target.module, node), mark[1]))
    return found


def _mark(module: Module, node: ast.FunctionDef) -> tuple[str, bool] | None:
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        if module.qualify(call.func if call else decorator) in _MARKERS:
            given = value_of(module, keyword(call, "specname")) if call else None
            optional = bool(call and value_of(module, keyword(call, "optionalhook")) is True)
            return (given if isinstance(given, str) else node.name), optional
    return None


def check(world: World, targets: list[Found]) -> Iterator[Finding]:
    """Yield what is wrong with the hooks that the entry points reach."""
    specs = hookspecs()
    found = implementations(targets)
    for name, function, optional in found:
        at = function.module.at(function.node)
        if name not in specs:
            close = nearest(name, specs)
            if not optional:
                yield finding(
                    "hookimpl-unknown",
                    f"{function.name} implements {name!r}, which is no hook.",
                    at,
                    why="the whole package is left out.",
                    remedy=f"did you mean {close}?" if close else f"known: {', '.join(specs)}",
                )
            continue
        assert isinstance(function.node, ast.FunctionDef)  # noqa: S101 - for the type checker
        given = [p.name for p in parameters(function.node) if p.default is p.empty]
        inside = given[1:] if given[:1] == ["self"] else given
        for argument in inside:
            if argument not in specs[name]:
                yield finding(
                    "hookimpl-argument",
                    f"{function.name} takes {argument!r}, which the hook does not give.",
                    at,
                    why="the whole package is left out.",
                    remedy=f"def {name}({', '.join(specs[name])}): ...",
                )
    for target in targets:
        marks = any(f.module is target.module for _, f, _ in found) or target.module.is_open
        if not marks and not any(_imports_marked(world, target)):
            yield finding(
                "hookimpl-none",
                f"{target.module.name} marks no function with opdock.hookimpl.",
                Place(target.module.file, 1),
                remedy="@opdock.hookimpl",
            )


def _imports_marked(world: World, target: Found) -> Iterator[bool]:
    """Yield whether names of the module lead to marked functions elsewhere."""
    for bound in target.module.bindings.values():
        found = world.find(bound) if isinstance(bound, str) else None
        if isinstance(found, Found) and isinstance(found.node, ast.FunctionDef):
            yield _mark(found.module, found.node) is not None
