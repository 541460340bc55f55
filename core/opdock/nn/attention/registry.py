"""Attention backends by name: any number of them, out-of-tree ones under names of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TypeVar, overload

from opdock import journal
from opdock.errors import ConfigError, RegistrationError, UnknownNameError, suggest
from opdock.nn.attention.backend import AttentionBackend
from opdock.nn.attention.metadata import AttentionMetadata

B = TypeVar("B", bound=type[AttentionBackend])
_NAME = re.compile(r"[A-Z][A-Z0-9_]*\Z")
_backends: journal.Registry[str] = journal.Registry("attention backend")
backends: Mapping[str, str] = _backends.view
"""Class paths by name; read-only."""

_HERE = "opdock.nn.attention.backends"
for _name, _path in (
    ("NATIVE", f"{_HERE}.native:NativeAttentionBackend"),
    ("SDPA", f"{_HERE}.sdpa:SdpaAttentionBackend"),
    ("TRITON_ATTN", f"{_HERE}.triton:TritonAttentionBackend"),
):
    _backends.register(_name, _path)


@overload
def register_backend(name: str, class_path: str, *, override: bool = False) -> str: ...
@overload
def register_backend(name: str, class_path: None = None, *, override: bool = False) -> Callable[[B], B]: ...


def register_backend(name: str, class_path: str | None = None, *, override: bool = False) -> str | Callable[[B], B]:
    """Register a backend under ``name``, from now on; as a call with a class path, or as a decorator.

    Args:
        name: upper-case letters, digits and underscores; what ``get_name()`` of the class returns.
        class_path: ``package.module:Class`` or ``package.module.Class``, imported when the backend is first asked
            for. None: return a decorator for a class at module level.
        override: take the place of a backend of that name.

    Returns: the name, or the decorator, which returns the class as it is.
    Raises: RegistrationError for a bad name, path or class; DuplicateError for a name that is taken.
    """
    if not _NAME.match(str(name)):
        raise RegistrationError(
            f"Invalid or reserved backend name: {name!r}",
            remedy="use upper-case letters, digits and underscores, for example MY_ATTN.",
        )
    if class_path is not None:
        if not class_path or len(_split(class_path)) != 2:
            raise RegistrationError(
                f"{class_path!r} is not the path of a class.", who=f"attention backend {name}", remedy="pkg.mod:Class"
            )
        _backends.register(name, class_path, override=override, site=journal.Site.here(beyond=__name__))
        return name

    def decorate(cls: B) -> B:
        who = f"class {cls.__module__}.{cls.__qualname__}  {journal.Site.of(cls)}"
        if "." in cls.__qualname__:
            raise RegistrationError(
                f"{cls.__qualname__} cannot be found by a path.",
                who=who,
                why="It is defined inside a function or a class, and another process would not find it.",
                remedy="define it at module level.",
            )
        _check_class(name, cls, who)
        path = f"{cls.__module__}:{cls.__qualname__}"
        _backends.register(name, path, override=override, site=journal.Site.here(beyond=__name__))
        return cls

    return decorate


def unregister_backend(name: str) -> None:
    """Take a backend back; the next selection does without it. UnknownNameError if there is none."""
    _known(name)
    _backends.unregister(name)


def backend_class(name: str, *, who: str = "") -> type[AttentionBackend]:
    """Return the class of a registered backend, imported now.

    Args:
        name: as it was registered; ``auto`` is no backend.
        who: for messages, for example the layer.

    Raises: UnknownNameError naming the nearest; RegistrationError for a path that leads to no backend. What the
        import raises is raised as it is.
    """
    _known(name, who)
    return load_class(name, backends[name])


def where(name: str) -> str:
    """Return the path of a registered backend, and the place and the distribution that registered it."""
    return f"{backends[name]}  registered at {_backends.record_of(name).where()}"


def registered_by(distribution: str) -> list[str]:
    """Return the names that a distribution registered."""
    owners = {name: _backends.record_of(name).owner for name in backends}
    return [name for name, owner in owners.items() if owner is not None and owner.distribution == distribution]


def load_class(name: str, path: str) -> type[AttentionBackend]:
    """Return the backend class at ``path``; see ``backend_class``."""
    who = f"attention backend {name}  {path}"
    module_name, class_name = _split(path)
    module = import_module(module_name)
    cls = getattr(module, class_name, None)
    if cls is None:
        raise RegistrationError(
            f"The module {module_name} has no class {class_name}.", who=who, remedy="register an existing path."
        )
    _check_class(name, cls, who)
    return cls  # type: ignore[no-any-return]


def _check_class(name: str, cls: object, who: str) -> None:
    if not (isinstance(cls, type) and issubclass(cls, AttentionBackend)):
        raise RegistrationError(
            f"{cls!r} is no AttentionBackend.", who=who, remedy="subclass opdock.nn.attention.AttentionBackend."
        )
    if cls.__abstractmethods__:
        raise RegistrationError(
            f"{cls.__name__} does not define {', '.join(sorted(cls.__abstractmethods__))}.",
            who=who,
            remedy="define them as static methods.",
        )
    builder = cls.get_builder_cls()
    if builder is not AttentionMetadata:
        raise RegistrationError(
            f"{cls.__name__}.get_builder_cls() returns {builder!r}, which nobody would call.",
            who=who,
            why="The host makes each step's metadata itself, once for all backends: an AttentionMetadata.",
            remedy="leave get_builder_cls as it is, and make what the kernels need of the metadata in forward().",
        )
    if name and cls.get_name() != name:
        raise RegistrationError(
            f"{cls.__name__}.get_name() returns {cls.get_name()!r}, and it is registered as {name!r}.",
            who=who,
            remedy="let both be one name.",
        )


def _known(name: str, who: str = "") -> None:
    if name not in backends:
        raise UnknownNameError(
            f"Unknown attention backend: {name!r}.", who=who or (), remedy=suggest(str(name), backends)
        )


def _split(path: str) -> tuple[str, ...]:
    module, _, name = path.rpartition(":" if ":" in path else ".")
    return tuple(part for part in (module, name) if part)


def check_path(path: object, device_name: str) -> str:
    """Return the class path that a platform gave; ConfigError if it is none."""
    if isinstance(path, str) and len(_split(path)) == 2:
        return path
    raise ConfigError(
        f"Invalid attention backend for {device_name}: {path!r}",
        remedy='get_attn_backend_cls returns "pkg.mod:Class", or "" to leave the choice to the host.',
    )
