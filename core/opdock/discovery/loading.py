"""Loading what an entry point names, after checking without an import that it can be there at all."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from opdock.errors import OpdockError

if TYPE_CHECKING:
    from opdock.discovery.metadata import Candidate


class LoadError(OpdockError, ImportError):
    """The target of an entry point cannot be imported; the cause is chained."""


def split(value: str) -> tuple[str, str]:
    """Return module and attribute of ``pkg.mod:attr`` or of ``pkg.mod.Attr``."""
    module, colon, attribute = value.partition(":")
    if not colon:
        module, _, attribute = value.rpartition(".")
    return module.strip(), attribute.strip()


def find_spec(module: str) -> ModuleSpec | None:
    """Return the spec of a module, asking the finders without importing its parents."""
    path: Any = None
    spec: ModuleSpec | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = next(
            (s for f in sys.meta_path if hasattr(f, "find_spec") and (s := f.find_spec(name, path)) is not None),
            None,
        )
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def locate(candidate: Candidate) -> str | None:
    """Return why the target of the entry point cannot be loaded, None if it can; imports nothing."""
    module, _, _ = candidate.value.partition(":")
    if not module.strip() or not all(part.isidentifier() for part in module.strip().split(".")):
        return f"{candidate.value!r} names no module"
    try:
        spec = find_spec(module.strip())
    except Exception as err:  # noqa: BLE001 - a finder of somebody else's
        return f"module {module} cannot be looked up: {type(err).__name__}: {err}"
    if spec is None:
        return f"module {module} does not exist: {candidate.dist.name} does not ship it"
    if spec.origin is None:
        places = ", ".join(map(str, spec.submodule_search_locations or ()))
        return f"{module} is a namespace package without code, maybe a folder left over: {places}"
    return _not_its_own(candidate, module.strip(), spec.origin)


def _not_its_own(candidate: Candidate, module: str, origin: str) -> str | None:
    """Return that the module belongs to another distribution, as far as the records say."""
    dist = candidate.dist
    origin = os.path.realpath(origin)
    if dist.editable_root and os.path.commonpath([origin, os.path.realpath(dist.editable_root)]) == os.path.realpath(
        dist.editable_root
    ):
        return None
    files = dist.files()
    if files is None or dist.editable_root:
        return None
    relative = os.path.relpath(origin, os.path.realpath(dist.location)).replace(os.sep, "/")
    parts = module.split(".")
    mine = {f for f in files if f.endswith((".py", ".so", ".pyd"))}
    if relative in mine or any(f.endswith(("/".join(parts) + ".py", "/".join(parts) + "/__init__.py")) for f in mine):
        return None
    if not mine and any(f.endswith((".pth", ".egg-link")) for f in files):
        return None
    return f"{candidate.dist.name} does not ship module {module}; it belongs to another distribution ({origin})"


def load(candidate: Candidate) -> object:
    """Import the entry point's target and return it.

    Raises: LoadError, with the cause chained, when the import fails or the attribute is not there.
    """
    module, attribute = candidate.value.partition(":")[::2]
    return _get(module.strip(), attribute.strip(), candidate)


def resolve_class(path: str, candidate: Candidate) -> Any:
    """Return the object at a class path in either form, nested classes included.

    Raises: LoadError when it is not there or its module is none of the candidate's distribution.
    """
    module, attribute = split(path)
    while ":" not in path and module and find_spec_quietly(module) is None and "." in module:
        module, _, outer = module.rpartition(".")
        attribute = f"{outer}.{attribute}"
    top = module.partition(".")[0]
    if not module or not attribute:
        raise LoadError(f"{path!r} is no class path.", who=candidate.label, remedy="'package.module.Class'.")
    if top != candidate.value.partition(":")[0].partition(".")[0]:
        spec = find_spec_quietly(module)
        reason = _not_its_own(candidate, module, spec.origin or "") if spec else f"module {module} does not exist"
        if reason:
            raise LoadError(
                f"{path} is outside of {candidate.dist.name}.",
                who=candidate.label,
                why=reason,
                remedy="return a class of the plugin's own distribution.",
            )
    return _get(module, attribute, candidate)


def find_spec_quietly(module: str) -> ModuleSpec | None:
    """Return ``find_spec(module)``, None also where a finder raises."""
    try:
        return find_spec(module)
    except Exception:  # noqa: BLE001 - a finder of somebody else's
        return None


def _get(module: str, attribute: str, candidate: Candidate) -> Any:
    try:
        found: Any = importlib.import_module(module)
    except Exception as err:
        missing = getattr(err, "name", None) if isinstance(err, ModuleNotFoundError) else None
        why = f"{type(err).__name__}: {err}"
        if missing and missing.partition(".")[0] == "vllm":
            why += " (written for vLLM, which is not installed)"
        raise LoadError(
            f"{module} of {candidate.dist.name} cannot be imported: {why}",
            who=candidate.label,
            remedy=f"python -c 'import {module}' shows the whole traceback.",
        ) from err
    for part in filter(None, attribute.split(".")):
        try:
            found = getattr(found, part)
        except AttributeError as err:  # noqa: PERF203 - one or two parts
            loading = getattr(getattr(sys.modules.get(module), "__spec__", None), "_initializing", False)
            why = (
                f"{module} is only partially initialized: its own import is what asked for the platform, before "
                f"{attribute} was defined"
                if loading
                else f"{module} has no attribute {attribute!r}"
            )
            raise LoadError(
                f"{candidate.value} of {candidate.dist.name} cannot be loaded: {why}",
                who=candidate.label,
                remedy="define it before the module imports what needs current_platform."
                if loading
                else f"check the entry point {candidate.name!r}.",
            ) from err
    return found
