"""What the host has, for the rules: op classes, IR ops, hooks and hookspecs. Most of it is read from its source."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

from opdock.testing.contract.literals import keyword, parameters, value_of
from opdock.testing.contract.source import Found, Module
from opdock.testing.contract.world import World, host_package, members

CUSTOM_OP = "opdock.registry.custom_op.CustomOp"
PLUGGABLE = "opdock.registry.pluggable_layer.PluggableLayer"
OP_CLASS = "opdock.registry.op_class.OpClass"
OP_BASES = (CUSTOM_OP, PLUGGABLE, OP_CLASS)
PLATFORM = "opdock.platforms.interface.Platform"
IR_OPS = ("opdock.ir.ops.", "opdock.ir.registry.")


@dataclass(frozen=True)
class OpClassFact:
    """An in-tree op class: the host's or the package's own."""

    cls: Found
    op: str | None
    custom: bool


@dataclass(frozen=True)
class IrOpFact:
    """An IR op: its name, native definition, and what it allows."""

    name: str
    native: ast.FunctionDef
    allow_inplace: bool
    module: Module

    def parameters(self) -> list[inspect.Parameter]:
        """Return the parameters of the native definition."""
        return parameters(self.native)

    def tensors(self) -> set[str]:
        """Return the names of the parameters that hold tensors."""
        return {p.name for p in self.parameters() if "Tensor" in str(p.annotation)}


@dataclass
class Facts:
    """What rules may ask for: op classes by class name and IR ops by op name, of host and package."""

    world: World
    op_classes: dict[str, list[OpClassFact]] = field(default_factory=dict)
    ir_ops: dict[str, IrOpFact] = field(default_factory=dict)

    @classmethod
    def of(cls, world: World) -> Facts:
        """Collect the facts of a package and of the host."""
        facts = cls(world)
        own = list(world.package.modules())
        for module in [*_host_layers(), *own]:
            facts._add_classes(module)
        for module in [*_host_ops(), *own]:
            facts._add_ops(module)
        return facts

    def _add_classes(self, module: Module) -> None:
        for node in module.nodes(ast.ClassDef):
            cls = Found(module, node)
            bases = {b.name for b in self.world.lineage(cls)[0]}
            if not bases & set(OP_BASES) or cls.name in OP_BASES:
                continue
            if self.world.own(cls) and _registered_name(module, node) is None:
                continue  # a replacement, or a helper: not an op class of its own
            fact = OpClassFact(cls, self._op_name(cls), CUSTOM_OP in bases)
            self.op_classes.setdefault(node.name, []).append(fact)

    def _op_name(self, cls: Found) -> str | None:
        for found in self.world.lineage(cls)[0]:
            name = _registered_name(found.module, found.node)
            if name:
                return name
        return None

    def _add_ops(self, module: Module) -> None:
        for node in module.nodes(ast.FunctionDef):
            for decorator in node.decorator_list:
                call = decorator if isinstance(decorator, ast.Call) else None
                target = module.qualify(call.func if call else decorator) or ""
                if target.rpartition(".")[2] != "register_op" or not target.startswith("opdock."):
                    continue
                given = value_of(module, keyword(call, "name")) if call else None
                name = given if isinstance(given, str) else node.name
                inplace = bool(call and value_of(module, keyword(call, "allow_inplace")) is True)
                self.ir_ops[name] = IrOpFact(name, node, inplace, module)


def _registered_name(module: Module, node: ast.AST) -> str | None:
    for decorator in getattr(node, "decorator_list", []):
        call = decorator if isinstance(decorator, ast.Call) and decorator.args else None
        if call is not None and isinstance(call.func, ast.Attribute) and call.func.attr == "register":
            name = value_of(module, call.args[0])
            return name if isinstance(name, str) else "?"
    return None


def _host_modules(*prefixes: str) -> list[Module]:
    host = host_package()
    names = [n for n in host.paths if n.startswith(prefixes)]
    return [m for n in sorted(names) if (m := host.module(n)) is not None]


@functools.cache
def _host_layers() -> tuple[Module, ...]:
    return tuple(_host_modules("opdock.nn.layers", "opdock.nn.attention"))


@functools.cache
def _host_ops() -> tuple[Module, ...]:
    return tuple(_host_modules("opdock.ir.ops."))


@functools.cache
def bound_methods() -> Mapping[str, tuple[str, ...]]:
    """Return, for each member of PlatformEnum, the methods that a CustomOp binds, as the host's table has them."""
    module = host_package().module("opdock.registry.switches")
    table = module.bindings.get("METHODS") if module else None
    return ast.literal_eval(table) if isinstance(table, ast.Dict) else {}


@functools.cache
def hookspecs() -> Mapping[str, tuple[str, ...]]:
    """Return the hooks of ``opdock.plugins`` and their arguments."""
    from opdock.discovery import hookspecs as specs

    return {
        name: tuple(inspect.signature(spec).parameters)
        for name, spec in vars(specs).items()
        if inspect.isfunction(spec) and hasattr(spec, "opdock_spec")
    }


def defined(cls: Found) -> dict[str, ast.AST]:
    """Return what the class itself defines."""
    return members(cls.node) if isinstance(cls.node, ast.ClassDef) else {}
