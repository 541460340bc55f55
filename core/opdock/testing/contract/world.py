"""Names followed from one package into another: the checked package, and the host's own source."""

from __future__ import annotations

import ast
import builtins
import functools
from dataclasses import dataclass
from pathlib import Path

import opdock
from opdock.testing.contract.source import Found, Module, Package, statements

_MOST_STEPS = 20


@dataclass(frozen=True)
class Missing:
    """A name that its module would have if it existed: the module is there and shows all its names."""

    module: Module
    name: str


class World:
    """The checked package and the host; both are read as text."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.host = host_package()

    def find(self, dotted: str | None, steps: int = 0) -> Found | Missing | None:
        """Return the definition behind a dotted name, None where text cannot tell."""
        if not dotted or steps > _MOST_STEPS:
            return None
        home = self.package if self.package.owns(dotted) else self.host if self.host.owns(dotted) else None
        if home is None:
            return None
        parts = dotted.split(".")
        for n in range(len(parts), 0, -1):
            module = home.module(".".join(parts[:n]))
            if module is not None:
                return self._inside(home, module, parts[n:], steps)
        return None

    def _inside(self, home: Package, module: Module, rest: list[str], steps: int) -> Found | Missing | None:
        if not rest:
            return Found(module, module.tree)
        bound = module.bindings.get(rest[0])
        if bound is None:
            if module.is_open or home.has(f"{module.name}.{rest[0]}"):
                return self._through_stars(module, rest, steps)
            return Missing(module, rest[0])
        if isinstance(bound, str):
            return self.find(".".join([bound, *rest[1:]]), steps + 1)
        if isinstance(bound, ast.Name | ast.Attribute):
            return self.find(".".join([module.qualify(bound) or "", *rest[1:]]), steps + 1)
        node: ast.AST = bound
        for part in rest[1:]:
            inner = members(node).get(part) if isinstance(node, ast.ClassDef) else None
            if inner is None:
                return None
            node = inner
        return Found(module, node)

    def _through_stars(self, module: Module, rest: list[str], steps: int) -> Found | Missing | None:
        for star in module.stars:
            found = self.find(".".join([star, *rest]), steps + 1)
            if isinstance(found, Found):
                return found
        return None

    def class_at(self, dotted: str | None) -> Found | None:
        """Return the class behind a dotted name, if it is one whose text is there."""
        found = self.find(dotted)
        return found if isinstance(found, Found) and isinstance(found.node, ast.ClassDef) else None

    def canonical(self, dotted: str | None) -> str:
        """Return the name of the place where it is defined, or the name itself."""
        found = self.find(dotted)
        return found.name if isinstance(found, Found) else dotted or ""

    def lineage(self, cls: Found) -> tuple[list[Found], list[str]]:
        """Return a class and its bases in order, and the names of the bases whose text is not there."""
        out: list[Found] = []
        unknown: list[str] = []
        queue = [cls]
        while queue:
            found = queue.pop(0)
            if found in out or not isinstance(found.node, ast.ClassDef):
                continue
            out.append(found)
            inner = []
            for base in found.node.bases:
                name = found.module.qualify(base.value if isinstance(base, ast.Subscript) else base)
                known = self.class_at(name)
                if known is None:
                    if self.own(found) and not _is_harmless(name, base):
                        unknown.append(name or "?")
                else:
                    inner.append(known)
            queue[:0] = inner
        return out, unknown

    def own(self, found: Found) -> bool:
        """Return whether a definition is the package's."""
        return self.package.owns(found.module.name)


def members(cls: ast.ClassDef) -> dict[str, ast.AST]:
    """Return what a class body defines: functions, classes, and the values of attributes."""
    found: dict[str, ast.AST] = {}
    for node in statements(cls.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found.update({t.id: node.value for t in node.targets if isinstance(t, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
    return found


def _is_harmless(name: str | None, base: ast.expr) -> bool:
    """Return whether a base brings nothing that the rules look for."""
    if name is None:
        return isinstance(base, ast.Name) and hasattr(builtins, base.id)
    return name.partition(".")[0] in ("torch", "abc", "typing", "enum")


@functools.cache
def host_package() -> Package:
    """Return the host's own source, read as text like any package."""
    folder = Path(opdock.__file__).parent
    return Package.in_folder(folder.parent) if folder.parent.name == "core" else _only(folder)


def _only(folder: Path) -> Package:
    from opdock.testing.contract.files import FolderFiles, walk

    names = [f"{folder.name}/{name}" for name in walk(folder, source_tree=False)]
    return Package(FolderFiles(str(folder.parent), names))
