"""Why a predicate says no: its own reason, or the condition in its source that is false."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from opdock.ir.plan import is_yes
from opdock.ir.signature import site_of, unwrap


def refusal(predicate: Callable[..., object] | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why ``predicate`` does not take the arguments, "" if it does.

    A predicate that gives no reason is run once more under a trace function, to find where it returned and which
    of the conditions joined by ``and`` is false there.
    """
    if predicate is None:
        return ""
    said = predicate(*args, **kwargs)
    if is_yes(said):
        return ""
    if isinstance(said, str):
        return said or f"supports_args returned '' ({site_of(predicate)})"
    code = getattr(unwrap(predicate), "__code__", None)
    frame = _frame_at_return(predicate, code, args, kwargs) if code is not None else None
    if frame is None:
        return f"supports_args returned {said!r} ({site_of(predicate)})"
    file = Path(frame.f_code.co_filename).name
    condition = _false_condition(frame)
    if condition is not None:
        return f"supports_args: `{ast.unparse(condition)}` is false ({file}:{condition.lineno})"
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"supports_args returned {said!r} at `{line}` ({file}:{frame.f_lineno})"


def _frame_at_return(
    predicate: Callable[..., object], code: CodeType, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> FrameType | None:
    found: list[FrameType] = []

    def watch(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not code:
            return None
        if event == "return":
            found.append(frame)
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        predicate(*args, **kwargs)
    finally:
        sys.settrace(before)
    return found[-1] if found else None


def _false_condition(frame: FrameType) -> ast.expr | None:
    """Return the expression that made the predicate false, if it is one that explains itself."""
    expression = _returned_expression(frame)
    while isinstance(expression, ast.BoolOp) and isinstance(expression.op, ast.And):
        false = next((part for part in expression.values if not _evaluate(part, frame)), None)
        if false is None:
            return None
        expression = false
    return expression if isinstance(expression, ast.Compare | ast.BoolOp | ast.Call | ast.UnaryOp) else None


def _evaluate(expression: ast.expr, frame: FrameType) -> object:
    code = compile(ast.Expression(expression), frame.f_code.co_filename, "eval")
    return eval(code, frame.f_globals, dict(frame.f_locals))  # noqa: S307 - a part of the predicate itself


def _returned_expression(frame: FrameType) -> ast.expr | None:
    """Return what the predicate returned at the frame's line, as far as its source can be read."""
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        ast.increment_lineno(tree, first - 1)
    except (OSError, SyntaxError, TypeError):
        return None
    at = frame.f_lineno
    candidates = [
        node.value if isinstance(node, ast.Return) else node.body
        for node in ast.walk(tree)
        if isinstance(node, ast.Return | ast.Lambda) and node.lineno <= at <= (node.end_lineno or node.lineno)
    ]
    return candidates[0] if len(candidates) == 1 else None
