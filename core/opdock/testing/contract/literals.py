"""What an expression's value is, as far as text can tell, and the parameters of a function."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any, Final

from opdock.testing.contract.source import Module

UNKNOWN: Final = object()
"""The value of an expression that only running it would tell."""

_DEPTH = 10


def value_of(module: Module, node: ast.AST | None, depth: int = 0) -> Any:
    """Return the value of an expression made of constants, ``__name__`` and names of the module; else UNKNOWN."""
    if node is None or depth > _DEPTH:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        if node.id == "__name__":
            return module.name
        bound = module.bindings.get(node.id)
        return value_of(module, bound, depth + 1) if isinstance(bound, ast.AST) else UNKNOWN
    if isinstance(node, ast.JoinedStr):
        return _joined(module, node, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = value_of(module, node.left, depth + 1), value_of(module, node.right, depth + 1)
        return left + right if isinstance(left, str) and isinstance(right, str) else UNKNOWN
    if isinstance(node, ast.List | ast.Tuple):
        items = [value_of(module, e, depth + 1) for e in node.elts]
        return UNKNOWN if any(i is UNKNOWN for i in items) else items
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        inner = node.operand.value
        return -inner if isinstance(inner, int | float) else UNKNOWN
    return UNKNOWN


def _joined(module: Module, node: ast.JoinedStr, depth: int) -> Any:
    parts = [value_of(module, p.value if isinstance(p, ast.FormattedValue) else p, depth + 1) for p in node.values]
    return "".join(parts) if all(isinstance(p, str) for p in parts) else UNKNOWN


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the argument given as ``name=``."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def is_dynamic(call: ast.Call) -> bool:
    """Return whether the call has arguments through * or **."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def parameters(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, *, skip_first: bool = False
) -> list[inspect.Parameter]:
    """Return the parameters of a function; defaults and annotations are their text."""
    args = node.args
    kinds = inspect.Parameter
    found: list[inspect.Parameter] = []
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    for i, (arg, default) in enumerate(zip(positional, defaults, strict=True)):
        kind = kinds.POSITIONAL_ONLY if i < len(args.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD
        found.append(_parameter(arg, kind, default))
    if args.vararg:
        found.append(_parameter(args.vararg, kinds.VAR_POSITIONAL, None))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append(_parameter(arg, kinds.KEYWORD_ONLY, default))
    if args.kwarg:
        found.append(_parameter(args.kwarg, kinds.VAR_KEYWORD, None))
    return found[1:] if skip_first and found and found[0].kind is not kinds.KEYWORD_ONLY else found


def _parameter(arg: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    return inspect.Parameter(
        arg.arg if arg.arg.isidentifier() else "_",
        kind,
        default=inspect.Parameter.empty if default is None else text_of(default),
        annotation=inspect.Parameter.empty if arg.annotation is None else normal_type(arg.annotation),
    )


def text_of(node: ast.AST) -> str:
    """Return the expression as text; ``1e-06`` and ``0.000001`` become one."""
    try:
        return repr(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    try:
        return ast.unparse(node)
    except RecursionError:
        return "..."


_KNOWN = {"Tensor", "int", "float", "bool", "str", "dtype", "device", "None", "list", "tuple"}
_PREFIXES = re.compile(r"\b(?:torch|typing|typing_extensions|collections\.abc|t|types)\.")


def normal_type(node: ast.AST) -> str:
    """Return an annotation in one spelling; "" where it has names that are not of an op's schema."""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else text_of(node)
    text = _PREFIXES.sub("", text).replace("List[", "list[").replace("Tuple[", "tuple[").replace("Sequence[", "list[")
    try:
        found = _type(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "" if found is None else found


def _type(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and node.value is None:
        return "None"
    if isinstance(node, ast.Name):
        return node.id if node.id in _KNOWN else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([_type(node.left), _type(node.right)])
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        inner = [_type(e) for e in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
        if node.value.id == "Optional":
            return _union([*inner, "None"])
        if node.value.id == "Union":
            return _union(inner)
        if any(i is None for i in inner) or node.value.id not in ("list", "tuple"):
            return None
        return f"{node.value.id}[{', '.join(map(str, inner))}]"
    return None


def _union(parts: list[str | None]) -> str | None:
    if any(p is None for p in parts):
        return None
    flat = {q for p in parts for q in str(p).split(" | ")}
    return " | ".join(sorted(flat, key=lambda p: (p == "None", p)))


def decorators(node: ast.AST) -> list[ast.expr]:
    """Return the decorators of a function or class."""
    return list(getattr(node, "decorator_list", []))


def signature_text(found: list[inspect.Parameter]) -> str:
    """Return the parameters as people write them."""
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return ", ".join(
        marks.get(p.kind, "") + p.name + (f"={p.default}" if p.default is not p.empty else "") for p in found
    )
