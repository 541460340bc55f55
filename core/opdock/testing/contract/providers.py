"""The rules about providers of IR ops: names, signatures, predicates."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

from opdock.errors import nearest
from opdock.testing.contract.findings import Finding, Place, finding
from opdock.testing.contract.host import IR_OPS, Facts, IrOpFact
from opdock.testing.contract.literals import UNKNOWN, is_dynamic, keyword, parameters, signature_text, value_of
from opdock.testing.contract.replacements import _block
from opdock.testing.contract.source import Found, Module
from opdock.testing.contract.world import World

_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
_RESERVED = ("native", "unfused")
_READERS = {"item", "tolist", "cpu", "numpy", "data_ptr", "untyped_storage", "storage", "nonzero", "__bool__"}
_COMPARERS = {"torch.equal", "torch.allclose", "torch.is_nonzero"}

Function = ast.FunctionDef | ast.Lambda


@dataclass(frozen=True)
class Provider:
    """One ``register_impl`` that text can tell.

    Args:
        op: name of the IR op.
        name: of the provider; UNKNOWN where only running would tell.
        call: of ``register_impl``.
        function: what is registered, None where it is not known.
        takes_all: whether it takes any arguments: no supports_args, and not known to be unsupported.
        block: id of the list of statements that it stands in.
    """

    op: str
    name: object
    call: ast.Call
    module: Module
    function: Found | None
    takes_all: bool
    block: int


def registrations(facts: Facts) -> Iterator[Provider]:
    """Yield every ``register_impl`` of the package on an op that text can tell."""
    for module in facts.world.package.modules():
        for node in module.nodes(ast.Call):
            if not isinstance(node.func, ast.Attribute) or node.func.attr != "register_impl":
                continue
            op = _op_of(facts, module, node.func.value)
            if op is not None:
                yield _provider(facts.world, module, node, op, module.above)


def _op_of(facts: Facts, module: Module, node: ast.expr) -> str | None:
    if isinstance(node, ast.Subscript):  # ir.registry["rms_norm"]
        base, name = module.qualify(node.value) or "", value_of(module, node.slice)
        return name if base in ("opdock.ir.registry", "opdock.ir.IrOp.registry") and isinstance(name, str) else None
    dotted = module.qualify(node) or ""
    for lead in IR_OPS:
        if dotted.startswith(lead):
            return dotted[len(lead) :].split(".")[0]
    found = facts.world.find(dotted)
    if isinstance(found, Found) and isinstance(found.node, ast.FunctionDef):
        return next((f.name for f in facts.ir_ops.values() if f.native is found.node), None)
    return None


def _provider(world: World, module: Module, call: ast.Call, op: str, above: dict[ast.AST, ast.AST]) -> Provider:
    first = call.args[0] if call.args else keyword(call, "provider")
    name = UNKNOWN if is_dynamic(call) else value_of(module, first)
    holder = above.get(call)
    function: Found | None = None
    if isinstance(holder, ast.FunctionDef) and call in holder.decorator_list:
        function = Found(module, holder)
    elif isinstance(holder, ast.Call) and holder.func is call and holder.args:
        function = function_at(world, module, holder.args[0])
    predicate, supported = keyword(call, "supports_args"), keyword(call, "supported")
    free = predicate is None or (isinstance(predicate, ast.Constant) and predicate.value is None)
    able = supported is None or (isinstance(supported, ast.Constant) and supported.value is True)
    takes_all = free and able and not is_dynamic(call)
    return Provider(op, name, call, module, function, takes_all, _block(holder or call, above))


def function_at(world: World, module: Module, node: ast.expr | None) -> Found | None:
    """Return the function that an expression names: of the module, of a function in it, or imported."""
    if isinstance(node, ast.Lambda):
        return Found(module, node)
    found = world.find(module.qualify(node))
    if isinstance(found, Found):
        plain = isinstance(found.node, ast.FunctionDef) and not found.node.decorator_list
        return found if plain else None
    if isinstance(node, ast.Name) and node.id not in module.local_imports:
        same = [n for n in module.nodes(ast.FunctionDef) if n.name == node.id]
        if len(same) == 1 and not same[0].decorator_list:
            return Found(module, same[0])
    return None


def check(facts: Facts, found: list[Provider]) -> Iterator[Finding]:
    """Yield what is wrong with the package's providers, priorities apart."""
    taken: dict[tuple[str, str, int], Provider] = {}
    for one in found:
        at = one.module.at(one.call)
        op = facts.ir_ops.get(one.op)
        if op is None:
            yield unknown_op(facts, one.op, at)
            continue
        yield from _name(one, at)
        yield from _signature(op, one)
        yield from _predicate(facts, op, one)
        inplace = keyword(one.call, "inplace")
        if isinstance(inplace, ast.Constant) and inplace.value is True and not op.allow_inplace:
            yield finding(
                "provider-inplace",
                f"{_who(one)} says inplace=True; {op.name} does not allow it.",
                at,
                remedy="return new tensors.",
            )
        key = (one.op, str(one.name), one.block)
        if isinstance(one.name, str) and key in taken:
            yield finding(
                "provider-twice",
                f"{_who(one)} is registered twice.",
                at,
                why=f"also at {_place(taken[key])}: the second registration raises DuplicateError.",
                remedy="give one of them another name.",
            )
        taken.setdefault(key, one)


def unknown_op(facts: Facts, name: str, at: Place) -> Finding:
    """Return the finding about an IR op that does not exist."""
    close = nearest(name, facts.ir_ops)
    return finding(
        "ir-op-unknown",
        f"No IR op is called {name!r}.",
        at,
        why="the attribute raises when it is looked up.",
        remedy=f"did you mean {close}?" if close else f"known: {', '.join(sorted(facts.ir_ops))}",
    )


def _who(one: Provider) -> str:
    return f"Provider {one.name if isinstance(one.name, str) else '?'!r} of {one.op}"


def _place(one: Provider) -> str:
    at = one.module.at(one.call)
    return f"{at.file}:{at.line}"


def _name(one: Provider, at: Place) -> Iterator[Finding]:
    if isinstance(one.name, str) and (one.name in _RESERVED or not _NAME.match(one.name)):
        why = "it is reserved." if one.name in _RESERVED else "lower-case letters, digits and underscores."
        yield finding("provider-name", f"{one.name!r} can be no provider's name.", at, why=why)


def differences(op: IrOpFact, given: list[inspect.Parameter], *, types: bool) -> str:
    """Return how parameters differ from the native definition's, or ""."""
    wanted = op.parameters()
    mine = [p.name for p in given if p.kind is not p.KEYWORD_ONLY]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in given):
        return "takes * or **; an op has named parameters only"
    if any(p.kind is p.KEYWORD_ONLY for p in given):
        return "has keyword-only parameters; arguments are passed by position"
    if mine != [p.name for p in wanted]:
        return f"has the parameters ({', '.join(mine)}), the native definition ({', '.join(p.name for p in wanted)})"
    for a, b in zip(given, wanted, strict=True):
        if not _same_default(a, b):
            return f"has {_default(a)} for {a.name}, the native definition {_default(b)}"
        if types and a.annotation is a.empty:
            return f"does not annotate {a.name}; the native definition says {b.annotation}"
        if types and a.annotation and b.annotation and a.annotation != b.annotation:
            return f"says {a.name}: {a.annotation}, the native definition {b.annotation}"
    return ""


def _same_default(a: inspect.Parameter, b: inspect.Parameter) -> bool:
    if a.default is a.empty or b.default is b.empty:
        return a.default is b.default
    literal = re.compile(r"(None|True|False|-?[\d.e+-]+|'.*')\Z")
    if not (literal.match(str(a.default)) and literal.match(str(b.default))):
        return True  # a name, which may be the same value
    return str(a.default) == str(b.default)


def _default(parameter: inspect.Parameter) -> str:
    return "no default" if parameter.default is parameter.empty else f"the default {parameter.default}"


def _signature(op: IrOpFact, one: Provider) -> Iterator[Finding]:
    if one.function is None or not isinstance(one.function.node, ast.FunctionDef | ast.Lambda):
        return
    node = one.function.node
    if isinstance(node, ast.FunctionDef) and any(d is not one.call for d in node.decorator_list):
        return  # another decorator may give it another signature
    said = differences(op, parameters(node), types=True)
    if not said and isinstance(node, ast.FunctionDef) and node.returns is None:
        said = "does not annotate its result"
    if said:
        yield finding(
            "provider-signature",
            f"{_who(one)} {said}.",
            one.function.module.at(node),
            why="the registration raises SchemaMismatchError.",
            remedy=f"def {getattr(node, 'name', 'provider')}({_annotated(op)}): ...",
        )


def _annotated(op: IrOpFact) -> str:
    return ", ".join(
        f"{p.name}: {p.annotation}" + (f" = {p.default}" if p.default is not p.empty else "") for p in op.parameters()
    )


def _predicate(facts: Facts, op: IrOpFact, one: Provider) -> Iterator[Finding]:
    given = keyword(one.call, "supports_args")
    found = function_at(facts.world, one.module, given)
    if found is None or not isinstance(found.node, ast.FunctionDef | ast.Lambda):
        return
    said = differences(op, parameters(found.node), types=False)
    if said:
        yield finding(
            "provider-predicate",
            f"supports_args of {_who(one)[0].lower()}{_who(one)[1:]} {said}.",
            found.module.at(found.node),
            why="the registration raises SchemaMismatchError.",
            remedy=f"def supports_args({signature_text(op.parameters())}): ...",
        )
    for node, what in reads(found.module, found.node, op.tensors()):
        yield finding(
            "predicate-reads-data",
            f"supports_args of {one.op}'s provider {one.name!r} reads data: {what}.",
            found.module.at(node),
            why="under torch.compile it is asked with fake tensors, which have neither data nor addresses.",
            remedy="decide by shape, dtype, stride and device.",
        )


def reads(module: Module, function: ast.AST, tensors: set[str]) -> Iterator[tuple[ast.AST, str]]:
    """Yield what in a predicate reads the data of one of its tensor parameters."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in _READERS and isinstance(node.func, ast.Attribute) and _is_tensor(node.func.value, tensors):
            yield node, f".{method}()"
        elif isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "bool") and node.args:
            if isinstance(node.args[0], ast.Name) and node.args[0].id in tensors:
                yield node, f"{node.func.id}({node.args[0].id})"
        elif module.qualify(node.func) in _COMPARERS and any(_is_tensor(a, tensors) for a in node.args):
            yield node, f"{module.qualify(node.func)}()"


_NO_TENSORS = {"shape", "dtype", "device", "size", "stride", "dim", "ndim", "numel", "is_contiguous", "element_size"}


def _is_tensor(node: ast.expr, tensors: set[str]) -> bool:
    """Return whether an expression is made of tensor parameters by operations whose result is a tensor."""
    if isinstance(node, ast.Name):
        return node.id in tensors
    if isinstance(node, ast.Attribute):
        return node.attr not in _NO_TENSORS and _is_tensor(node.value, tensors)
    if isinstance(node, ast.Call):
        return _is_tensor(node.func, tensors)
    if isinstance(node, ast.Subscript):
        return _is_tensor(node.value, tensors)
    if isinstance(node, ast.Compare):
        return _is_tensor(node.left, tensors)
    if isinstance(node, ast.BinOp):
        return _is_tensor(node.left, tensors) or _is_tensor(node.right, tensors)
    return False
