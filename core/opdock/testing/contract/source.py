"""A package as text: its modules parsed, and names in it followed through imports. Nothing is imported."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from opdock.testing.contract.files import EXTENSIONS, Files, FolderFiles, UnderPrefix, Unreadable, walk
from opdock.testing.contract.findings import Finding, Place, finding

_MOST_STEPS = 20  # of re-exports that are followed
N = TypeVar("N", bound=ast.AST)


@dataclass(frozen=True)
class Found:
    """A definition: the module that it stands in, and its node (a module's own tree for a module)."""

    module: Module
    node: ast.AST

    @property
    def name(self) -> str:
        """Its dotted name."""
        if isinstance(self.node, ast.Module):
            return self.module.name
        return f"{self.module.name}.{getattr(self.node, 'name', '?')}"


class Module:
    """One parsed module."""

    def __init__(self, name: str, file: str, tree: ast.Module, *, is_package: bool) -> None:
        self.name, self.file, self.tree, self.is_package = name, file, tree, is_package

    def at(self, node: ast.AST) -> Place:
        """Return the place of a node."""
        column = getattr(node, "col_offset", -1) + 1
        return Place(self.file, getattr(node, "lineno", 0), column)

    @cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[ast.AST]]:
        kinds: dict[type[ast.AST], list[ast.AST]] = {}
        for node in ast.walk(self.tree):
            kinds.setdefault(type(node), []).append(node)
        return kinds

    def nodes(self, kind: type[N]) -> list[N]:
        """Return every node of exactly this type."""
        return self._by_kind.get(kind, [])  # type: ignore[return-value]

    @cached_property
    def above(self) -> dict[ast.AST, ast.AST]:
        """The parent of every node."""
        return {node: parent for parent in ast.walk(self.tree) for node in ast.iter_child_nodes(parent)}

    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """Return every import, those in functions included."""
        return [*self.nodes(ast.Import), *self.nodes(ast.ImportFrom)]

    @cached_property
    def _bound(self) -> tuple[dict[str, str | ast.AST], list[str]]:
        names: dict[str, str | ast.AST] = {}
        stars: list[str] = []
        for node in statements(self.tree.body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, target in self.imported(node):
                    if name == "*":
                        stars.append(target)
                    else:
                        names.setdefault(name, target)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if not isinstance(names.get(node.name), str):
                    names[node.name] = node
            else:
                for name, value in _assigned(node):
                    names.setdefault(name, value)
        return names, stars

    @property
    def bindings(self) -> dict[str, str | ast.AST]:
        """Names of the module: a dotted name for an import, the node of a definition, or what is assigned."""
        return self._bound[0]

    @property
    def stars(self) -> list[str]:
        """Modules of which every name is imported."""
        return self._bound[1]

    @cached_property
    def local_imports(self) -> dict[str, str]:
        """Names that are imported inside functions."""
        found: dict[str, str] = {}
        for node in self.imports():
            for name, target in self.imported(node):
                found.setdefault(name, target)
        return found

    @property
    def is_open(self) -> bool:
        """Whether it may have names that its text does not show."""
        if self.stars or "__getattr__" in self.bindings:
            return True
        return any(_called(n) in ("globals", "setattr", "exec", "vars") for n in self.nodes(ast.Call))

    def imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
        """Yield (name bound, dotted name of what it is bound to); "*" for all of a module."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
            return
        base = self.base_of(node)
        for alias in node.names:
            yield ("*", base) if alias.name == "*" else (alias.asname or alias.name, f"{base}.{alias.name}")

    def base_of(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module that a ``from`` names."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        keep = len(parts) - node.level + self.is_package
        return ".".join([*parts[: max(keep, 0)], *([node.module] if node.module else [])])

    def qualify(self, node: ast.AST | None, depth: int = 0) -> str | None:
        """Return the dotted name that an expression stands for, None where text cannot tell."""
        if isinstance(node, ast.Attribute):
            base = self.qualify(node.value, depth)
            return f"{base}.{node.attr}" if base else None
        if not isinstance(node, ast.Name):
            return None
        bound = self.bindings.get(node.id) or self.local_imports.get(node.id)
        if isinstance(bound, str):
            return bound
        if isinstance(bound, ast.Name | ast.Attribute) and depth < _MOST_STEPS:
            return self.qualify(bound, depth + 1)
        return f"{self.name}.{node.id}" if bound is not None else None


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when ``body`` does, branches included; not what is in functions or classes."""
    queue = list(body)
    while queue:
        node = queue.pop(0)
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner: list[ast.stmt] = []
        for part in ("body", "orelse", "finalbody"):
            inner += getattr(node, part, [])
        for handler in getattr(node, "handlers", []):
            inner += handler.body
        for case in getattr(node, "cases", []):
            inner += case.body
        queue[:0] = inner


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        if node.value is not None:
            yield node.target.id, node.value
        return
    for target in node.targets if isinstance(node, ast.Assign) else []:
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(part, ast.Name):
                yield part.id, node.value if part is target else part  # type: ignore[attr-defined]
    if isinstance(node, ast.For | ast.With | ast.AsyncWith):
        targets = [node.target] if isinstance(node, ast.For) else [i.optional_vars for i in node.items]
        for found in targets:
            if isinstance(found, ast.Name):
                yield found.id, node


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def parse(data: bytes) -> ast.Module:
    """Return the tree of a source file; Unreadable for what is no Python."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bad escape in somebody's text is not our matter
            return ast.parse(text)
    except (SyntaxError, ValueError, LookupError) as err:
        line = getattr(err, "lineno", None)
        raise Unreadable(f"{type(err).__name__}: {err}".splitlines()[0] + (f" (line {line})" if line else "")) from None
    except (RecursionError, MemoryError):
        raise Unreadable("it is nested too deeply") from None


class Package:
    """The modules of a package, parsed when they are first asked for."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.findings: list[Finding] = []
        self._parsed: dict[str, Module | None] = {}
        self.paths: dict[str, str] = {}
        self.extensions: set[str] = set()
        for name in files.names:
            module = module_name(name)
            if module and name.endswith(".py"):
                self.paths.setdefault(module, name)
            elif module:
                self.extensions.add(module)
        self.tops = {name.partition(".")[0] for name in (*self.paths, *self.extensions)}

    @classmethod
    def in_folder(cls, root: Path, prefix: str = "", *, source_tree: bool = False) -> Package:
        """Return the package whose import root is ``root/prefix``."""
        files: Files = FolderFiles(str(root), walk(root, source_tree=source_tree))
        return cls(UnderPrefix(files, prefix) if prefix else files)

    def shown(self, name: str) -> str:
        """Return a file's name as it is shown, relative to the root that the user named."""
        return self.files.shown(name) if isinstance(self.files, UnderPrefix) else name

    def has(self, module: str) -> bool:
        """Return whether it ships a module or folder of the name."""
        lead = module + "."
        return module in self.paths or module in self.extensions or any(m.startswith(lead) for m in self.paths)

    def owns(self, dotted: str) -> bool:
        """Return whether a dotted name is inside of the package."""
        return dotted.partition(".")[0] in self.tops

    def module(self, name: str) -> Module | None:
        """Return a module, None if there is no readable source of it."""
        if name not in self._parsed:
            self._parsed[name] = self._parse(name)
        return self._parsed[name]

    def modules(self) -> Iterator[Module]:
        """Yield every module that can be read."""
        for name in sorted(self.paths):
            module = self.module(name)
            if module is not None:
                yield module

    def _parse(self, name: str) -> Module | None:
        file = self.paths.get(name)
        if file is None:
            return None
        try:
            tree = parse(self.files.read(file))
        except Unreadable as err:
            self.findings.append(
                finding("unreadable-file", f"{self.shown(file)} cannot be read: {err}", Place(self.shown(file)))
            )
            return None
        return Module(name, self.shown(file), tree, is_package=file.endswith("__init__.py"))


def module_name(file: str) -> str | None:
    """Return the module that a file is, None if its path is no dotted name."""
    stem, dot, _ = file.rpartition("/")[2].partition(".")
    if not dot or not file.endswith((".py", *EXTENSIONS)):
        return None
    parts = [*file.rpartition("/")[0].split("/"), stem] if "/" in file else [stem]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts) if parts and all(p.isidentifier() for p in parts) else None
