"""The rules about replacements of op classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from opdock.errors import nearest
from opdock.platforms.hook_check import misfit
from opdock.testing.contract.findings import NOTE, Finding, finding
from opdock.testing.contract.host import CUSTOM_OP, OP_BASES, Facts, OpClassFact, bound_methods
from opdock.testing.contract.literals import UNKNOWN, is_dynamic, keyword, parameters, value_of
from opdock.testing.contract.source import Found, Module
from opdock.testing.contract.world import World, members


@dataclass(frozen=True)
class Replacement:
    """One ``register_oot`` that text can tell.

    Args:
        cls: the replacing class, None where it is not known.
        base: the dotted name on which ``register_oot`` is called.
        name: the class name that it gives; None for none, UNKNOWN for one that is not known.
        node: where it stands.
        block: id of the list of statements that it stands in: two in one block both run.
    """

    cls: Found | None
    base: str
    name: object
    node: ast.AST
    module: Module
    block: int
    positional_name: bool = False


def registrations(world: World) -> Iterator[Replacement]:
    """Yield every ``register_oot`` of the package."""
    for module in world.package.modules():
        for node in module.nodes(ast.Attribute):
            if node.attr == "register_oot":
                found = _registration(world, module, node, module.above)
                if found is not None:
                    yield found
                else:
                    yield from _from_table(world, module, node)


def _registration(
    world: World, module: Module, node: ast.Attribute, above: dict[ast.AST, ast.AST]
) -> Replacement | None:
    base = module.qualify(node.value)
    if base is None:
        return None
    holder = above.get(node)
    call = holder if isinstance(holder, ast.Call) and holder.func is node else None
    if call is not None and is_dynamic(call):
        return None
    name: object = None
    cls: Found | None = None
    positional = False
    outer: ast.AST = node
    if call is not None:
        outer = call
        given = keyword(call, "name") or (call.args[1] if len(call.args) > 1 else None)
        name = None if given is None else value_of(module, given)
        first = call.args[0] if call.args else keyword(call, "_decorated_cls")
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            positional, name = True, first.value
        elif first is not None:
            cls = world.class_at(module.qualify(first))
    target = above.get(outer)
    if isinstance(target, ast.ClassDef) and outer in target.decorator_list:
        cls = Found(module, target)
    elif isinstance(target, ast.Call) and target.func is outer and target.args:
        cls = world.class_at(module.qualify(target.args[0]))
    elif (call is None or cls is None) and not positional:
        return None  # a reference, or a class that text cannot tell
    if isinstance(name, str) and cls is None and not positional:
        return None
    return Replacement(
        cls, base, name, outer, module, _block(target if cls and target is cls.node else outer, above), positional
    )


def _from_table(world: World, module: Module, node: ast.Attribute) -> Iterator[Replacement]:
    """Yield the registrations of ``for name, cls in TABLE.items(): CustomOp.register_oot(cls, name=name)``."""
    call, base = module.above.get(node), module.qualify(node.value)
    if not isinstance(call, ast.Call) or call.func is not node or base is None:
        return
    loop: ast.AST = call
    while loop in module.above and not isinstance(loop, ast.For):
        loop = module.above[loop]
    name = keyword(call, "name")
    if not isinstance(loop, ast.For) or not isinstance(name, ast.Name) or not isinstance(loop.target, ast.Tuple):
        return
    source = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    first = loop.target.elts[0]
    if not (isinstance(source, ast.Attribute) and source.attr == "items" and isinstance(first, ast.Name)):
        return
    if first.id != name.id or not isinstance(source.value, ast.Name):
        return
    for table in module.nodes(ast.Assign):
        names = [t.id for t in table.targets if isinstance(t, ast.Name)]
        if source.value.id in names and isinstance(table.value, ast.Dict):
            for key, value in zip(table.value.keys, table.value.values, strict=True):
                given = value_of(module, key)
                cls = world.class_at(module.qualify(value))
                if isinstance(given, str) and key is not None:
                    yield Replacement(cls, base, given, key, module, id(key))


def _block(node: ast.AST, above: dict[ast.AST, ast.AST]) -> int:
    """Return which list of statements a node stands in."""
    while node in above and not isinstance(node, ast.stmt):
        node = above[node]
    parent = above.get(node)
    for field in ("body", "orelse", "finalbody"):
        inside = getattr(parent, field, None)
        if isinstance(inside, list) and node in inside:
            return id(inside)
    return id(node)


def check(facts: Facts, found: list[Replacement], enums: set[str]) -> Iterator[Finding]:
    """Yield what is wrong with the package's replacements.

    Args:
        facts: op classes and IR ops.
        found: from ``registrations``.
        enums: members of PlatformEnum of the package's platforms; empty for a package without one.
    """
    taken: dict[tuple[str, int], Replacement] = {}
    for one in found:
        if one.base.startswith("vllm."):
            continue
        if one.positional_name:
            at = one.module.at(one.node)
            yield finding(
                "replacement-target",
                f"register_oot is given the text {one.name!r} by position.",
                at,
                why="the first argument is the class: it raises TypeError.",
                remedy=f'register_oot(name="{one.name}")',
            )
            continue
        target, findings = _target(facts, one)
        yield from findings
        if target is None or one.cls is None:
            continue
        yield from _class(facts, one, target, enums)
        key = (target.cls.name, one.block)
        if key in taken and taken[key].cls != one.cls:
            yield finding(
                "replacement-twice",
                f"{one.cls.name} and {_name(taken[key].cls)} both replace {target.cls.name}.",
                one.module.at(one.node),
                why="the second registration raises DuplicateError.",
                remedy="keep one.",
            )
        taken.setdefault(key, one)


def _name(found: Found | None) -> str:
    return found.name if found else "?"


def target_of(facts: Facts, one: Replacement) -> OpClassFact | None:
    """Return the op class that a registration replaces."""
    return _target(facts, one)[0]


def _target(facts: Facts, one: Replacement) -> tuple[OpClassFact | None, list[Finding]]:
    at = one.module.at(one.node)
    world = facts.world
    if one.name is UNKNOWN:
        return None, []
    if one.name is None:
        cls = world.class_at(one.base)
        if cls is None:
            missing = _missing_host(facts, one.base)
            return None, [missing_target(facts, missing, at)] if missing else []
        known = next((f for f in facts.op_classes.get(_short(cls), []) if f.cls.name == cls.name), None)
        if known is None and cls.name in OP_BASES:
            said = f"{one.base}.register_oot names no class to replace."
            return None, [finding("replacement-target", said, at, remedy='register_oot(name="RMSNorm")')]
        return known, []
    name = str(one.name)
    candidates = facts.op_classes.get(name, [])
    if candidates:
        return candidates[0], []
    if world.class_at(one.base) is None:
        return None, []
    return None, [missing_target(facts, name, at)]


def _short(found: Found) -> str:
    return str(getattr(found.node, "name", found.name))


def _missing_host(facts: Facts, base: str) -> str | None:
    """Return the last part of a name of the host that does not exist."""
    from opdock.testing.contract.world import Missing

    return base.rpartition(".")[2] if isinstance(facts.world.find(base), Missing) else None


def missing_target(facts: Facts, name: str, at: object) -> Finding:
    """Return the finding about a class that does not exist."""
    close = nearest(name, facts.op_classes)
    return finding(
        "replacement-target",
        f"No op class is called {name!r}: the replacement is never built.",
        at,  # type: ignore[arg-type]
        remedy=f"did you mean {close}?" if close else f"known: {', '.join(sorted(facts.op_classes))}",
    )


def _class(facts: Facts, one: Replacement, target: OpClassFact, enums: set[str]) -> Iterator[Finding]:
    assert one.cls is not None  # noqa: S101 - for the type checker
    world = facts.world
    lineage, unknown = world.lineage(one.cls)
    names = {c.name for c in lineage}
    cls, at = one.cls, one.cls.module.at(one.cls.node)
    if target.cls.name not in names:
        if not unknown:
            yield finding(
                "replacement-target",
                f"{cls.name} is no subclass of {target.cls.name}, which it replaces.",
                at,
                why="the registration refuses it: nothing of the layer's constructor would run.",
                remedy=f"class {_short(cls)}({_short(target.cls)}):",
            )
        return
    theirs = {c.name for c in world.lineage(target.cls)[0]}
    own = [c for c in lineage if c.name not in theirs]
    defined: dict[str, tuple[Found, ast.AST]] = {}
    for found in own:
        for name, node in members(found.node).items():  # type: ignore[arg-type]
            defined.setdefault(name, (found, node))
    yield from _methods(cls, target, defined, enums, complete=not unknown)
    for name, (found, node) in defined.items():
        if name == "__init__" or name.startswith("forward"):
            yield from _signature(world, target, name, found, node)


def _methods(
    cls: Found,
    target: OpClassFact,
    defined: dict[str, tuple[Found, ast.AST]],
    enums: set[str],
    *,
    complete: bool,
) -> Iterator[Finding]:
    at = cls.module.at(cls.node)
    forwards = sorted(n for n in defined if n.startswith("forward_"))
    if target.custom and "forward" in defined:
        found, node = defined["forward"]
        yield finding(
            "replacement-forward",
            f"{cls.name} defines forward, which goes past the dispatch.",
            found.module.at(node),
            why="the class cannot be defined: no forward_<platform> would run.",
            remedy="rename it to forward_oot (or forward_cuda, forward_cpu, ...).",
        )
        return
    if not complete:
        return
    if not target.custom:
        if forwards and "forward" not in defined:
            yield finding(
                "replacement-dead",
                f"{cls.name} defines {forwards[0]}; {_short(target.cls)} is a PluggableLayer and has no dispatch.",
                at,
                remedy="define forward.",
            )
        return
    usable = {m for enum in enums for m in bound_methods().get(enum, ())}
    if enums and forwards and not usable & set(forwards):
        wanted = sorted({bound_methods()[e][0] for e in enums if e in bound_methods()})
        yield finding(
            "replacement-dead",
            f"{cls.name} defines {', '.join(forwards)}; the platform binds {', '.join(wanted)}.",
            at,
            why=f"_enum is PlatformEnum.{', '.join(sorted(enums))}: its methods are never called.",
            remedy=f"def {wanted[0] if wanted else 'forward_oot'}(self, ...):",
        )
    elif not forwards and "dispatch_forward" not in defined and not set(defined) - {"__doc__", "name"}:
        yield finding(
            "replacement-dead", f"{cls.name} defines nothing: {_short(target.cls)} runs as before.", at, level=NOTE
        )


def _signature(world: World, target: OpClassFact, name: str, found: Found, node: ast.AST) -> Iterator[Finding]:
    if not isinstance(node, ast.FunctionDef):
        return
    asked = "forward_native" if name.startswith("forward") and target.custom else name
    for base in world.lineage(target.cls)[0]:
        theirs = members(base.node).get(asked)  # type: ignore[arg-type]
        if base.name == CUSTOM_OP or (asked == "forward" and base.name in OP_BASES):
            return
        if isinstance(theirs, ast.FunctionDef):
            said = misfit(parameters(theirs, skip_first=True), parameters(node, skip_first=True))
            if said:
                rule = "replacement-constructor" if name == "__init__" else "replacement-signature"
                text = said.replace("the host's", f"{_short(base)}.{asked}'s").replace("the host", "its caller")
                yield finding(
                    rule,
                    f"{_short(found)}.{name}{text}.",
                    found.module.at(node),
                    why="whoever uses the layer does not know of the replacement.",
                    remedy=f"keep the parameters of {_short(base)}.{asked}.",
                )
            return
