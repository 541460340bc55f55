"""The two tables: op classes by registered op name, and replacements by in-tree class.

``op_registry`` is keyed by op name (``rms_norm``) and shared by CustomOp and PluggableLayer;
``op_registry_oot`` is keyed by in-tree class name (``RMSNorm``), as plugin authors know it. The match itself
is on the class object, so a class of the same name elsewhere is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from opdock import journal
from opdock.errors import DuplicateError, RegistrationError, nearest

_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")

_ops: journal.Registry[type] = journal.Registry("op")
_replacements: journal.Registry[type] = journal.Registry("replacement")
_targets: dict[type, str] = {}

op_registry: Mapping[str, type] = _ops.view
op_registry_oot: Mapping[str, type] = _replacements.view


def register_op_class(name: str, cls: type) -> None:
    """Put ``cls`` in ``op_registry``.

    Raises: RegistrationError for a bad name; DuplicateError naming both places.
    """
    if not _NAME.match(name):
        raise RegistrationError(
            f"Op name {name!r} is invalid.",
            who=f"class {cls.__qualname__}  {journal.Site.of(cls)}",
            remedy="use lower-case letters, digits and underscores, starting with a letter.",
        )
    _ops.register(name, cls)


def register_replacement(target: type, replacement: type) -> None:
    """Make ``replacement`` be built wherever ``target`` is asked for.

    Raises: DuplicateError if another class replaces ``target`` already, or ``target``'s name.
    """
    key = target.__name__
    other = next((t for t, k in _targets.items() if k == key and t is not target), None)
    if other is not None and not journal.same_definition(other, target):
        raise DuplicateError(
            f"Duplicate layer name: {key}",
            why=[
                f"replaced already: {other.__module__}.{other.__qualname__}",
                f"and now:          {target.__module__}.{target.__qualname__}",
            ],
            remedy="give one of the two in-tree classes another name.",
        )
    before = dict(_targets)
    entry = _replacements.register(key, replacement)
    _targets[target] = key
    if target not in before:
        journal.record("replaced class", key, lambda: _targets.pop(target, None), site=entry.site)


def replacement_of(cls: type) -> type | None:
    """Return the class that is built in place of exactly ``cls``, or None.

    A replacement may be replaced in turn, by a package that extends somebody else's platform.
    """
    found = None
    while (key := _targets.get(found or cls)) is not None and key in op_registry_oot:
        found = op_registry_oot[key]
    return found


def replacements() -> list[tuple[type, type, journal.Registration]]:
    """Return (in-tree class, replacement, where it was registered), in order of registration."""
    return [
        (target, op_registry_oot[key], _replacements.record_of(key))
        for target, key in _targets.items()
        if key in op_registry_oot
    ]


def is_replacement(cls: type) -> bool:
    """Return whether ``cls`` is registered as a replacement of some class."""
    return any(cls is found for _, found, _ in replacements())


def maybe_get_oot_by_class(class_type: type) -> type:
    """Return the class that is built when ``class_type`` is asked for: its replacement, or itself."""
    return replacement_of(class_type) or class_type


def where(name: str) -> str:
    """Return where the op class ``name`` was registered."""
    return _ops.record_of(name).where()


def known_class_names() -> dict[str, type]:
    """Return every registered op class by its class name."""
    return {cls.__name__: cls for cls in op_registry.values()}


def find_target(cls: type, name: str | None, base: type) -> type:
    """Return the in-tree class that ``cls`` wants to replace.

    Args:
        cls: the replacement.
        name: the in-tree class name given by the author, or None.
        base: the class on which ``register_oot`` was called.

    Raises: RegistrationError if there is no such class, or ``cls`` is no subclass of it: Python would skip
        ``__init__`` of an object of a foreign class, and nothing would be left of the layer.
    """
    who = f"class {cls.__module__}.{cls.__qualname__}  {journal.Site.of(cls)}"
    ancestors = {a.__name__: a for a in reversed(cls.__mro__[1:])}
    known = known_class_names()
    if name is None:
        target = base
    elif name in ancestors:
        target = ancestors[name]
    elif name in known:
        raise _no_subclass(cls, known[name], who)
    else:
        close = nearest(name, known)
        raise RegistrationError(
            f"No op class is called {name!r}; the replacement would never be built.",
            who=who,
            why=f"known op classes: {', '.join(sorted(known)) or 'none (is their module imported?)'}",
            remedy=f"register_oot(name={close!r})." if close else "import the module of the in-tree class first.",
        )
    if target is cls or not issubclass(cls, target):
        raise _no_subclass(cls, target, who)
    if "name" not in {k for a in target.__mro__ for k in vars(a)}:
        raise RegistrationError(
            f"{target.__name__} is not a registered op class; a replacement of it would never be built.",
            who=who,
            remedy="call register_oot on the op class itself, for example RMSNorm.register_oot, "
            'or give name="RMSNorm".',
        )
    return target


def _no_subclass(cls: type, target: type, who: str) -> RegistrationError:
    return RegistrationError(
        f"{cls.__name__} cannot replace {target.__name__}: it is not a subclass of it.",
        who=who,
        why=f"in-tree class {target.__module__}.{target.__qualname__}  {journal.Site.of(target)}",
        remedy=f"class {cls.__name__}({target.__name__}): ...",
    )
