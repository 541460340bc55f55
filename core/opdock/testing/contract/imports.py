"""The rules about what importing and asking a package does besides: heavy imports, patches, the environment, exits."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from opdock.testing.contract.findings import NOTE, WARNING, Finding, finding
from opdock.testing.contract.literals import parameters
from opdock.testing.contract.register import own_nodes
from opdock.testing.contract.source import Found, Module, statements
from opdock.testing.contract.world import World

HEAVY = ("torch", "triton", "jax", "tensorflow", "transformers", "vllm", "torchvision", "flax", "torchada")
_PLATFORM = ("opdock.current_platform", "opdock.platforms.current_platform", "vllm.platforms.current_platform")
_ENVIRON_CALLS = {"os.environ.setdefault", "os.environ.update", "os.environ.pop", "os.putenv", "os.unsetenv"}
_EXITS = {"sys.exit", "os._exit", "os.abort", "os.kill"}
_WRITERS = {"write_text", "write_bytes", "copy", "copy2", "copyfile", "move", "replace", "rename"}
_SETTINGS = {"config", "_config", "backends", "environ"}


@dataclass(frozen=True)
class Reached:
    """A module that an import reaches, and through which module."""

    module: Module
    through: str


def reached(world: World, names: list[str]) -> list[Reached]:
    """Return the package's modules that importing ``names`` imports, packages above them included."""
    out: dict[str, Reached] = {}
    queue = [(n, "") for n in names]
    while queue:
        name, through = queue.pop(0)
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            above = ".".join(parts[:i])
            module = world.package.module(above) if above not in out else None
            if module is None:
                continue
            out[above] = Reached(module, through)
            for node in at_import(module):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    targets = _modules_of(module, node)
                    queue += [(t, f"{through}{above} > ") for t in targets if world.package.owns(t)]
    return list(out.values())


def _modules_of(module: Module, node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    base = module.base_of(node)
    return [base, *(f"{base}.{a.name}" for a in node.names if a.name != "*")]


def at_import(module: Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module is imported; class bodies too."""
    queue = [s for s in module.tree.body if not _is_guard(module, s)]
    for node in statements(queue):
        if isinstance(node, ast.ClassDef):
            yield from statements(node.body)
        elif not (isinstance(node, ast.If) and _is_guard(module, node)):
            yield node


def _is_guard(module: Module, node: ast.stmt) -> bool:
    """Return whether a branch does not run at import: for a type checker, or for the program alone."""
    if not isinstance(node, ast.If):
        return False
    test = node.test
    if isinstance(test, ast.Name | ast.Attribute):
        return str(module.qualify(test) or getattr(test, "id", "")).rpartition(".")[2] == "TYPE_CHECKING"
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def check(world: World, entries: list[str], registers: list[Found], classes: list[str]) -> Iterator[Finding]:
    """Yield what the package does besides what it is asked for.

    Args:
        world: the package and the host.
        entries: modules that platform entry points name.
        registers: their functions.
        classes: modules of the platform classes.
    """
    first = reached(world, entries)
    for one in first:
        yield from _heavy(world, one, entries)
    for one in reached(world, [*entries, *classes]):
        yield from _reentry(one)
    for one in first:
        for node in _executed(one.module):
            yield from _effects(one.module, node, "at import")
    for found in registers:
        if isinstance(found.node, ast.FunctionDef):
            for node in own_nodes(found.node):
                yield from _effects(found.module, node, f"in {found.node.name}()")
    for module in world.package.modules():
        yield from patches(world, module)
        yield from _rewrites(world, module)


def _executed(module: Module) -> Iterator[ast.AST]:
    """Yield every node that is evaluated at import."""
    for statement in at_import(module):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield statement
        for child in ast.iter_child_nodes(statement):
            if not isinstance(child, ast.stmt | ast.ExceptHandler):
                yield child
                yield from own_nodes(child)


def _heavy(world: World, one: Reached, entries: list[str]) -> Iterator[Finding]:
    seen = set()
    for node in at_import(one.module):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for name in _modules_of(one.module, node):
            top = name.partition(".")[0]
            extension = name in world.package.extensions
            if (top in HEAVY or extension) and (name if extension else top) not in seen:
                seen.add(name if extension else top)
                via = "" if one.module.name in entries else f" ({one.through}{one.module.name})"
                yield finding(
                    "import-heavy",
                    f"Importing {entries[0]} imports {name if extension else top}{via}.",
                    one.module.at(node),
                    why="it is imported in every process, on machines without the device too.",
                    remedy="import it inside the functions that need it; name the class as text.",
                )


def _reentry(one: Reached) -> Iterator[Finding]:
    for node in _executed(one.module):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [target for _, target in one.module.imported(node)]
        elif isinstance(node, ast.Attribute | ast.Call):
            names = [one.module.qualify(node.func if isinstance(node, ast.Call) else node) or ""]
        for name in names:
            if name in _PLATFORM:
                foreign = name.startswith("vllm.")
                yield finding(
                    "import-reentry",
                    f"{one.module.name} asks for {name} while it is imported.",
                    one.module.at(node),
                    why="it is imported while the platform is being decided"
                    + (": vLLM may decide without the package." if foreign else "; opdock raises ReentryError."),
                    remedy="look at it inside functions.",
                    level=WARNING if foreign else "",
                )


def _effects(module: Module, node: ast.AST, when: str) -> Iterator[Finding]:
    at = module.at(node)
    if isinstance(node, ast.Call):
        name = module.qualify(node.func) or (node.func.id if isinstance(node.func, ast.Name) else "")
        if name in _EXITS or name in ("exit", "quit"):
            yield finding("exits", f"{module.name} calls {name}() {when}.", at, remedy="return opdock.decline(reason).")
        if name in _ENVIRON_CALLS:
            yield _environ(module, node, f"{name}({_first(node)})", when)
    elif isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(raised, ast.Name) and raised.id == "SystemExit":
            yield finding(
                "exits", f"{module.name} raises SystemExit {when}.", at, remedy="return opdock.decline(reason)."
            )
    elif isinstance(node, ast.Assign | ast.Delete | ast.AugAssign):
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Subscript) and module.qualify(target.value) == "os.environ":
                yield _environ(module, node, f"os.environ[{ast.unparse(target.slice)}]", when)


def _first(node: ast.Call) -> str:
    return ast.unparse(node.args[0]) if node.args else ""


def _environ(module: Module, node: ast.AST, what: str, when: str) -> Finding:
    return finding(
        "import-environ",
        f"{module.name} changes the environment {when}: {what}.",
        module.at(node),
        remedy="do it in import_kernels, when the platform is chosen.",
    )


def patches(world: World, module: Module) -> Iterator[Finding]:
    """Yield the places where a module changes objects of other packages."""
    kinds: list[ast.AST] = []
    for kind in (ast.Assign, ast.AugAssign, ast.Delete, ast.Call):
        kinds += module.nodes(kind)
    for node in kinds:
        for target, name in _targets(module, node):
            top = name.partition(".")[0]
            if world.package.owns(name) or (name == "sys.modules" and not isinstance(target, ast.Subscript)):
                continue
            if not _is_imported(module, target):
                continue
            setting = bool(_SETTINGS & set(name.split(".")[1:])) or name.startswith(
                ("sys.path", "warnings.", "torch.ops.")
            )
            if name.startswith("os.environ"):
                continue
            yield finding(
                "monkeypatch",
                f"{module.name} changes {name}.",
                module.at(node),
                why="a setting of the whole process."
                if setting
                else f"{'the standard library' if top in sys.stdlib_module_names else top} is not the package's own.",
                remedy="register a replacement or a provider, or ask for the hook that is missing.",
                level=NOTE if setting else "",
            )


def _targets(module: Module, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name | ast.Attribute):
                    name = module.qualify(part)
                elif isinstance(part, ast.Subscript) and module.qualify(part.value) == "sys.modules":
                    name = "sys.modules"
                else:
                    continue
                if name:
                    yield part, name
    elif isinstance(node, ast.Call):
        called = module.qualify(node.func) or (node.func.id if isinstance(node.func, ast.Name) else "")
        if called == "setattr" and len(node.args) == 3 and isinstance(node.args[0], ast.Name | ast.Attribute):
            owner = module.qualify(node.args[0])
            shown = str(node.args[1].value) if isinstance(node.args[1], ast.Constant) else "<name>"
            if owner:
                yield node.args[0], f"{owner}.{shown}"
        elif called in ("sys.modules.setdefault", "sys.modules.pop", "sys.modules.update"):
            yield ast.Subscript(value=node.func, slice=node.func), "sys.modules"


def _is_imported(module: Module, target: ast.AST) -> bool:
    """Return whether the object was imported, and is no object that the module made or a local of a function."""
    root = target
    while isinstance(root, ast.Attribute | ast.Subscript) and hasattr(root, "value"):
        root = root.value
    if not isinstance(root, ast.Name):
        return isinstance(target, ast.Subscript)
    function = function_around(module, root)
    while isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        imported, local = _names_of(module, function)
        if root.id in imported or root.id in local:
            return root.id in imported
        function = function_around(module, function)
    bound = module.bindings.get(root.id)
    return _is_imported(module, bound) if isinstance(bound, ast.Name | ast.Attribute) else isinstance(bound, str)


def _names_of(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[set[str], set[str]]:
    """Return the names that a function imports, and those that are its own parameters and variables."""
    imported: set[str] = set()
    local = {p.name for p in parameters(function)}
    for node in own_nodes(function):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {name for name, _ in module.imported(node)}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            local.add(node.id)
    return imported, local


def _rewrites(world: World, module: Module) -> Iterator[Finding]:
    """Yield where a module that finds the files of another package writes files."""
    for node in module.nodes(ast.Call):
        if not _writes(module, node):
            continue
        place = node.args[0] if node.args else None
        onto = isinstance(place, ast.Attribute) and place.attr == "origin"  # of a spec that was looked up
        finds = "" if onto else _others_file(world, module, function_around(module, node))
        if finds or onto:
            what = "files that it found by their spec" if onto else f"files, and finds those of {finds}"
            yield finding(
                "rewrites-files",
                f"{module.name} writes {what}.",
                module.at(node),
                why="what it changes there stays changed for everybody, and an upgrade undoes it.",
                remedy="register a replacement or a provider.",
                level="" if onto else NOTE,
            )
            return


def function_around(module: Module, node: ast.AST) -> ast.AST:
    """Return the function that a node stands in, the module's tree if in none."""
    while node in module.above:
        node = module.above[node]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return node
    return module.tree


def _others_file(world: World, module: Module, around: ast.AST) -> str:
    """Return the package whose files a function, or a module's own code, finds; "" for none."""
    for node in module.nodes(ast.Attribute):
        if function_around(module, node) is not around:
            continue
        owner = module.qualify(node.value) if node.attr == "__file__" else None
        if owner and not world.package.owns(owner) and _is_imported(module, node):
            return owner
    for call in module.nodes(ast.Call):
        inside = function_around(module, call) is around
        if inside and (module.qualify(call.func) or "").endswith("util.find_spec") and call.args:
            name = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
            if isinstance(name, str) and not world.package.owns(name):
                return name
    return ""


def _writes(module: Module, node: ast.Call) -> bool:
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method in ("write_text", "write_bytes"):
        return True
    name = str(module.qualify(node.func) or getattr(node.func, "id", ""))
    if name.startswith("shutil.") and method in _WRITERS:
        return True
    if name == "open" or method == "open":
        mode = next((k.value for k in node.keywords if k.arg == "mode"), node.args[1] if len(node.args) > 1 else None)
        return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set("wax+") & set(mode.value))
    return False
