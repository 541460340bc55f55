"""Loading what an entry point names."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from opdock.discovery.locating import find_spec, foreign_module, is_namespace, locate
from opdock.errors import OpdockError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from opdock.discovery.metadata import Candidate

__all__ = ["LoadError", "load", "locate", "resolve_class", "split"]


class LoadError(OpdockError, ImportError):
    """The target of an entry point cannot be imported; the cause is chained."""


def split(value: str) -> tuple[str, str]:
    """Return module and attribute of ``pkg.mod:attr`` or of ``pkg.mod.Attr``."""
    module, colon, attribute = value.partition(":")
    if not colon:
        module, _, attribute = value.rpartition(".")
    return module.strip(), attribute.strip()


def load(candidate: Candidate) -> object:
    """Import the entry point's target and return it; a value without ``:`` names a module.

    Raises: LoadError, with the cause chained, when the import fails or the attribute is not there.
    """
    module, _, attribute = candidate.value.partition(":")
    return _get(module.strip(), attribute.strip(), candidate)


def resolve_class(path: str, candidate: Candidate) -> Any:
    """Return the object at a class path in either form, nested classes included.

    Raises: LoadError when it is not there or its module is none of the candidate's distribution.
    """
    module, attribute = split(path)
    while ":" not in path and "." in module and _find_quietly(module) is None:
        module, _, outer = module.rpartition(".")
        attribute = f"{outer}.{attribute}"
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise LoadError(f"{path!r} is no class path.", who=candidate.label, remedy="'package.module.Class'.")
    reason = _outside(module, candidate)
    if reason:
        raise LoadError(
            f"{path} is outside of {candidate.dist.name}.",
            who=candidate.label,
            why=reason,
            remedy="return a class of the plugin's own distribution.",
        )
    return _get(module, attribute, candidate)


def _outside(module: str, candidate: Candidate) -> str | None:
    top = module.partition(".")[0]
    package = _find_quietly(top)
    if package is None:
        return f"module {top} does not exist"
    # a package with code is its owner's whole; folders of a namespace are of many owners
    if top == candidate.value.partition(":")[0].partition(".")[0].strip() and not is_namespace(package):
        return None
    spec = _find_quietly(module)
    return foreign_module(candidate.dist, module, spec) if spec else f"module {module} does not exist"


def _find_quietly(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except Exception:  # noqa: BLE001 - a finder of somebody else's
        return None


def _get(module: str, attribute: str, candidate: Candidate) -> Any:
    try:
        found: Any = importlib.import_module(module)
    except Exception as err:
        raise LoadError(
            f"{module} of {candidate.dist.name} cannot be imported: {_because(err)}",
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


def _because(err: Exception) -> str:
    missing = (err.name or "").partition(".")[0] if isinstance(err, ModuleNotFoundError) else ""
    if not missing or _find_quietly(missing) is not None:
        return f"{type(err).__name__}: {err}"
    written = ": written for vLLM" if missing == "vllm" else ""
    return f"it needs module {err.name}, which is not installed{written}"  # type: ignore[attr-defined]
