"""Writes the generated parts of the documentation from the code; run it to renew the pages."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opdock import env, errors
from opdock.discovery import hookspecs
from opdock.platforms.engine_hooks import EngineHooks
from opdock.platforms.interface import Platform
from opdock.testing.check import all_checks

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _documented_names(module: Any, kind: type = ast.Assign) -> Iterator[tuple[str, str]]:
    """Yield each name that a module or class assigns, with the text that follows it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(module)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else tree.body
    for node, after in itertools.pairwise(body):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name):
                yield target.id, " ".join(str(after.value.value).split())


def _first(obj: object) -> str:
    return (inspect.getdoc(obj) or "").splitlines()[0]


def _signature(fn: Callable[..., Any]) -> str:
    text = str(inspect.signature(fn))
    return re.sub(r"'([^']*)'", r"\1", text).replace("(self, ", "(").replace("(self)", "()").replace("|", r"\|")


def _methods(cls: type) -> Iterator[str]:
    """Yield a row for each public method of a class, in the order of its source."""
    for name, value in vars(cls).items():
        if name.startswith("_") or not (callable(value) or isinstance(value, (classmethod, property))):
            continue
        if isinstance(value, property):
            yield f"| property `{name}` | {_first(value)} |"
        else:
            decorator = "" if inspect.isfunction(value) else "classmethod "
            yield f"| {decorator}`{name}{_signature(getattr(cls, name))}` | {_first(value)} |"


def attributes() -> list[str]:
    return ["| attribute | meaning |", "| --- | --- |", *(f"| `{n}` | {t} |" for n, t in _documented_names(Platform))]


def methods() -> list[str]:
    return ["| method | what it does |", "| --- | --- |", *_methods(Platform)]


def engine() -> list[str]:
    return ["| method | what it does |", "| --- | --- |", *_methods(EngineHooks)]


def hooks() -> list[str]:
    found = [value for value in vars(hookspecs).values() if hasattr(value, "opdock_spec")]
    rows = [f"| `{fn.__name__}{_signature(fn)}` | {_first(fn)} |" for fn in found]
    return ["| hook | what it is for |", "| --- | --- |", *rows]


def error_tree() -> list[str]:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.OpdockError)]
    rows = []
    for cls in classes:
        bases = ", ".join(b.__name__ for b in cls.__bases__ if b is not Exception)
        rows.append(f"| `{cls.__name__}` | {bases or 'Exception'} | {_first(cls)} |")
    return ["| error | is also | raised when |", "| --- | --- | --- |", *rows]


def environment() -> list[str]:
    rows = [f"| `{name}` | {text} |" for name, text in _documented_names(env)]
    return ["| variable | meaning |", "| --- | --- |", *rows]


def checks() -> list[str]:
    rows = [f"| `{c.name}` | {c.kind} | {c.rule} |" for c in all_checks().values()]
    return ["| check | of each | what must be true |", "| --- | --- | --- |", *rows]


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "attributes": attributes,
    "methods": methods,
    "engine": engine,
    "hooks": hooks,
    "errors": error_tree,
    "environment": environment,
    "checks": checks,
}


def renewed(text: str) -> str:
    """Return a page with every generated block as the code has it now."""
    return _BLOCK.sub(lambda m: m[1] + "\n" + "\n".join(BLOCKS[m[2]]()) + "\n\n" + m[3], text)


def pages() -> list[Path]:
    """Return the pages that have generated blocks."""
    return [path for path in sorted(DOCS.glob("*.md")) if _BLOCK.search(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    for page in pages():
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
