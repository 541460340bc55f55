"""The rules about ``register()``: what it returns, whether it can decline, and to whom it answers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from opdock.discovery.entry_points import Line
from opdock.discovery.loading import split
from opdock.testing.contract.findings import NOTE, Finding, finding
from opdock.testing.contract.literals import UNKNOWN, keyword, value_of
from opdock.testing.contract.metadata import definition_of
from opdock.testing.contract.source import Found
from opdock.testing.contract.subject import Subject
from opdock.testing.contract.world import Missing, World

_MAKERS = ("opdock.platform_plugin", "opdock.discovery.selecting.platform_plugin")
_MOST_CALLS = 3  # of functions of the package that are followed
_DECLINE = ("opdock.decline", "opdock.discovery.selecting.decline")


@dataclass
class Answers:
    """What a ``register`` may return.

    Args:
        paths: class paths, with the place that each stands in.
        others: what else it returns.
        declines: whether it may return None.
        unknown: whether it returns something that text cannot tell.
        through_maker: whether ``opdock.platform_plugin`` made it.
    """

    found: Found
    paths: list[tuple[str, Found]] = field(default_factory=list)
    others: list[Found] = field(default_factory=list)
    declines: bool = False
    unknown: bool = False
    through_maker: bool = False


def answers_of(world: World, line: Line) -> Answers | None:
    """Return what the function that an entry point names may return; None where its text is not there."""
    found = definition_of(world, line)
    if found is None:
        return None
    answers = Answers(found)
    module = found.module
    if isinstance(found.node, ast.Call):
        if module.qualify(found.node.func) not in _MAKERS:
            return None
        answers.through_maker = True
        given = found.node.args[0] if found.node.args else keyword(found.node, "class_path")
        _take(answers, given, world, found)
        answers.declines = keyword(found.node, "probe") is not None
        return answers
    if not isinstance(found.node, ast.FunctionDef):
        return None
    _returns(answers, found.node, world, found, 0)
    return answers


def _returns(answers: Answers, function: ast.FunctionDef, world: World, found: Found, depth: int) -> None:
    for node in own_nodes(function):
        if isinstance(node, ast.Return):
            _take(answers, node.value, world, found, depth)
        elif isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
            answers.unknown = True
        elif isinstance(node, ast.Call):
            answers.unknown |= found.module.qualify(node.func) in _MAKERS
    answers.declines |= not _ends(function.body)


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function that are not of another function in it."""
    queue = list(ast.iter_child_nodes(function))
    while queue:
        node = queue.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            queue.extend(ast.iter_child_nodes(node))


def _take(answers: Answers, node: ast.expr | None, world: World, found: Found, depth: int = 0) -> None:
    module = found.module
    if isinstance(node, ast.IfExp):
        _take(answers, node.body, world, found, depth)
        _take(answers, node.orelse, world, found, depth)
        return
    inner = world.find(module.qualify(node.func)) if isinstance(node, ast.Call) and depth < _MOST_CALLS else None
    if isinstance(inner, Found) and isinstance(inner.node, ast.FunctionDef) and world.own(inner):
        _returns(answers, inner.node, world, inner, depth + 1)
        return
    value = None if node is None else value_of(module, node)
    if value is None or (isinstance(node, ast.Call) and module.qualify(node.func) in _DECLINE):
        answers.declines = True
    elif isinstance(value, str):
        answers.paths.append((value, Found(module, node or found.node)))
    elif value is UNKNOWN:
        answers.unknown = True
    else:
        answers.others.append(Found(module, node or found.node))


def _ends(body: list[ast.stmt]) -> bool:
    """Return whether a body certainly ends in a return or raise."""
    last = body[-1] if body else None
    if isinstance(last, ast.Return | ast.Raise):
        return True
    if isinstance(last, ast.If):
        return bool(last.orelse) and _ends(last.body) and _ends(last.orelse)
    if isinstance(last, ast.With):
        return _ends(last.body)
    if isinstance(last, ast.Try):
        if last.finalbody and _ends(last.finalbody):
            return True
        return _ends(last.orelse or last.body) and all(_ends(h.body) for h in last.handlers)
    return False


def check(world: World, subject: Subject, line: Line, answers: Answers) -> Iterator[Finding]:
    """Yield what is wrong with the function."""
    found = answers.found
    at, who = found.module.at(found.node), f"{line.name} = {line.value}"
    for other in answers.others:
        yield finding(
            "register-value",
            f"{who} returns {ast.unparse(other.node)}, expected a class path or None.",
            other.module.at(other.node),
            remedy='return "package.module:Class".',
        )
    for path, place in answers.paths:
        yield from _class_path(world, subject, who, path, place)
    if answers.unknown:
        return
    foreign = not any("opdock" in r.lower() for r in subject.requires)
    level = NOTE if foreign else ""
    if not answers.through_maker and answers.paths:
        yield finding(
            "port-register" if foreign else "register-answers-vllm",
            f"{who} answers whoever calls it, vLLM too.",
            at,
            why="both hosts read the group; installed beside vLLM, it would take vLLM's platform.",
            remedy=f'register = opdock.platform_plugin("{_colon(answers.paths[0][0])}", probe=...)',
            level=level,
        )
    if answers.paths and not answers.declines:
        yield finding(
            "register-unconditional",
            f"{who} never declines.",
            at,
            why="on a machine without the device it is active all the same, and with a second such package no "
            "platform can be chosen.",
            remedy="give platform_plugin a probe= that returns the reason why the device is not there."
            if answers.through_maker
            else "return opdock.decline(reason) where the device is not there.",
        )


def _colon(path: str) -> str:
    module, attribute = split(path)
    return f"{module}:{attribute}"


def platform_class(world: World, path: str) -> Found | Missing | None:
    """Return the class that a class path leads to."""
    module, attribute = split(path)
    found = world.find(f"{module}.{attribute}")
    if isinstance(found, Found) and isinstance(found.node, ast.IfExp):  # of two classes, the first stands for both
        return world.find(found.module.qualify(found.node.body)) or found
    return found


def _class_path(world: World, subject: Subject, who: str, path: str, place: Found) -> Iterator[Finding]:
    module, attribute = split(path)
    at = place.module.at(place.node)
    if not module or not all(p.isidentifier() for p in (*module.split("."), *attribute.split("."))):
        yield finding("class-path", f"{who} returns {path!r}, which is no class path.", at, remedy="'pkg.module:Class'")
        return
    top = module.partition(".")[0]
    if top not in world.package.tops:
        yield finding(
            "class-path",
            f"{who} returns {path}, which is outside of {subject.name}.",
            at,
            remedy="return a class of the plugin's own distribution.",
        )
        return
    if not world.package.has(module) and not world.class_at(module):
        yield finding("class-path", f"{who} returns {path}: {subject.name} ships no module {module}.", at)
        return
    leads = platform_class(world, path)
    if isinstance(leads, Missing):
        from opdock.errors import nearest

        close = nearest(leads.name, leads.module.bindings)
        yield finding(
            "class-path",
            f"{who} returns {path}: {leads.module.name} has no {leads.name!r}.",
            at,
            remedy=f"did you mean {close}?" if close else f"define {leads.name} there.",
        )
    elif isinstance(leads, Found) and not isinstance(leads.node, ast.ClassDef | ast.Call | ast.IfExp | ast.Subscript):
        yield finding("class-path", f"{who} returns {path}, which is no class.", at)
