"""The rules about priorities: providers that are never reached, and names that nobody registers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from opdock.errors import nearest
from opdock.testing.contract.findings import WARNING, Finding, Place, finding
from opdock.testing.contract.host import PLATFORM, Facts
from opdock.testing.contract.literals import UNKNOWN, value_of
from opdock.testing.contract.platform_class import PlatformFact
from opdock.testing.contract.providers import Provider, unknown_op
from opdock.testing.contract.register import own_nodes
from opdock.testing.contract.source import Found, Module

HOOK = "get_default_ir_op_priority"
NATIVE = "native"


@dataclass
class Priorities:
    """The lists of providers that the package's text shows.

    Args:
        exact: whether these are all; False where only running it would tell.
        lists: by op, every list that is given for it, with its place.
        defaults: lists for ops that are not named.
        sources: how many functions gave them.
    """

    exact: bool = True
    lists: dict[str, list[tuple[list[str], Place]]] = field(default_factory=dict)
    defaults: list[list[str]] = field(default_factory=list)
    sources: int = 0

    def of(self, op: str) -> list[list[str]]:
        """Return every list that may be in force for an op."""
        return [names for names, _ in self.lists.get(op, [])] or self.defaults


def of_package(platforms: Sequence[PlatformFact], hooks: Sequence[Found]) -> Priorities:
    """Return the priorities of a package's platforms and of its ``default_ir_op_priority`` hooks."""
    out = Priorities()
    for fact in platforms:
        place = fact.lookup(HOOK)
        if place is None or place[0].name == PLATFORM:
            out.exact &= not fact.unknown
            out.defaults.append([NATIVE])
        elif isinstance(place[1], ast.FunctionDef):
            _read(out, place[0].module, place[1])
        else:
            out.exact = False
    for hook in hooks:
        _read(out, hook.module, hook.node)
    return out


def _read(out: Priorities, module: Module, function: ast.AST) -> None:
    out.sources += 1
    returned = [n.value for n in own_nodes(function) if isinstance(n, ast.Return) and n.value is not None]
    for value in returned:
        for one in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            if not _take(out, module, one):
                out.exact = False
    if any(isinstance(n, ast.Yield) for n in own_nodes(function)):
        out.exact = False


def _take(out: Priorities, module: Module, node: ast.expr) -> bool:
    if isinstance(node, ast.Constant) and node.value is None:
        return True
    if isinstance(node, ast.Dict):
        return _dict(out, module, node)
    if not isinstance(node, ast.Call):
        return False
    name = module.qualify(node.func) or ""
    if not name.startswith("opdock.") or "IrOpPriorityConfig" not in name:
        return False
    ok = True
    args = list(node.args)
    if name.endswith(".with_default"):
        default: Any = value_of(module, args[0]) if args else UNKNOWN
        ok = _is_names(default)
        out.defaults.append(list(default) if ok else [NATIVE])
        args = args[1:]
    else:
        out.defaults.append([NATIVE])
    for arg in args:
        ok &= isinstance(arg, ast.Dict) and _dict(out, module, arg)
    for word in node.keywords:
        if word.arg is None:
            ok &= isinstance(word.value, ast.Dict) and _dict(out, module, word.value)
        elif word.arg == "default":
            value = value_of(module, word.value)
            ok &= _is_names(value)
            out.defaults.append(list(value) if _is_names(value) else [NATIVE])
        else:
            ok &= _list(out, module, word.arg, word.value)
    return ok


def _dict(out: Priorities, module: Module, node: ast.Dict) -> bool:
    ok = True
    for key, value in zip(node.keys, node.values, strict=True):
        op = value_of(module, key)
        ok &= isinstance(op, str) and _list(out, module, op, value)
    return ok


def _list(out: Priorities, module: Module, op: str, node: ast.expr) -> bool:
    names = value_of(module, node)
    if isinstance(names, str):
        names = [n.strip() for n in names.split(",")]
    if not _is_names(names):
        out.lists.setdefault(op, [])
        return False
    out.lists.setdefault(op, []).append((names, module.at(node)))
    return True


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def check(facts: Facts, priorities: Priorities, providers: Sequence[Provider], *, alone: bool) -> Iterator[Finding]:
    """Yield providers that are never tried, and names in priorities that nobody registers.

    Args:
        facts: op classes and IR ops.
        priorities: of the package.
        providers: of the package.
        alone: whether no other package that it requires could register providers.
    """
    named = {(p.op, p.name) for p in providers}
    dynamic = any(not isinstance(p.name, str) for p in providers)
    if not dynamic:
        yield from _unknown(facts, priorities, {(o, str(n)) for o, n in named}, alone=alone)
    seen = set()
    for one in providers:
        if not isinstance(one.name, str) or one.op not in facts.ir_ops or (one.op, one.name) in seen:
            continue
        seen.add((one.op, one.name))
        if priorities.exact:
            yield from _reach(priorities, one, providers)


def _unknown(facts: Facts, priorities: Priorities, named: set[tuple[str, str]], *, alone: bool) -> Iterator[Finding]:
    level = "" if alone else WARNING
    for op, lists in priorities.lists.items():
        if op not in facts.ir_ops and lists:
            found = unknown_op(facts, op, lists[0][1])
            yield finding(
                "ir-op-unknown", f"A priority names {op!r}, no IR op.", lists[0][1], remedy=found.remedy, level=level
            )
            continue
        mine = sorted(n for o, n in named if o == op)
        for names, at in lists:
            for name in dict.fromkeys(n.removeprefix("-") for n in names):
                if name != NATIVE and name not in mine:
                    close = nearest(name, mine)
                    yield finding(
                        "priority-unknown",
                        f"The priority of {op} names {name!r}, a provider that the package does not register.",
                        at,
                        why="with a name that nobody registers no priority can be put in force.",
                        remedy=f"did you mean {close}?"
                        if close
                        else f"registered for {op}: {', '.join(mine) or 'none'}",
                        level=level,
                    )


def _reach(priorities: Priorities, one: Provider, providers: Sequence[Provider]) -> Iterator[Finding]:
    lists, at = priorities.of(one.op), one.module.at(one.call)
    who = f"Provider {one.name!r} of {one.op}"
    if not any(one.name in names for names in lists):
        default = f"its priority is {', '.join(lists[0])}" if lists else "no list of the package names it"
        if not priorities.sources:
            default = "the package gives no priority, and the default is native alone"
        yield finding(
            "provider-unlisted",
            f"{who} is never tried: {default}.",
            at,
            remedy=f'IrOpPriorityConfig.with_default(["native"], {one.op}=["{one.name}", "native"])',
        )
        return
    behind = [_blocker(names, one, providers) for names in lists if one.name in names]
    if behind and all(behind):
        yield finding(
            "provider-shadowed",
            f"{who} is never tried: {behind[0]} comes before it and takes any arguments.",
            at,
            remedy=f"put {one.name!r} before {behind[0]!r}, or give {behind[0]!r} a supports_args."
            if behind[0] != NATIVE
            else f"put {one.name!r} before native.",
        )


def _blocker(names: list[str], one: Provider, providers: Sequence[Provider]) -> str:
    """Return what comes before a provider in a list and takes any arguments, or ""."""
    for name in names[: names.index(str(one.name))]:
        same = [p for p in providers if p.op == one.op and p.name == name]
        if name == NATIVE or (same and all(p.takes_all for p in same)):
            return name
    return ""
