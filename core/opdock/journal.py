"""The journal: every registration with its place, its owner and the way back.

A hook runs inside ``transaction(owner)``: what it registers is recorded there and, if it raises, undone in
reverse order. A module that registered while it was imported there is forgotten then, so that importing it again
registers again. Loaded libraries and monkeypatches are not registrations and cannot be taken back.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType, FunctionType, MappingProxyType, MethodType
from typing import Generic, TypeVar

from opdock.errors import DuplicateError, UnknownNameError, suggest

T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    """A place in source code: ``file``, ``line`` (1-based) and the module's name."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @classmethod
    def here(cls, *, beyond: str = "opdock.journal") -> Site:
        """Return the nearest caller outside the host's own machinery, and outside the package or module ``beyond``."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if not _is_machinery(module) and not _inside(module, (beyond,)):
                return cls(frame.f_code.co_filename, frame.f_lineno, module)
            frame = frame.f_back
        return cls("<unknown>", 0, "")

    @classmethod
    def of(cls, obj: object) -> Site:
        """Return where a class or function is defined, as far as it says so."""
        code = getattr(obj, "__code__", None)
        module = getattr(obj, "__module__", "") or ""
        if code is not None:
            return cls(code.co_filename, code.co_firstlineno, module)
        file = getattr(sys.modules.get(module), "__file__", None)
        return cls(file or f"<{module}>", getattr(obj, "__firstlineno__", 0), module)


_MACHINERY = (
    "importlib",
    "opdock.journal",
    "opdock.registry",
    "opdock.ir",
    "opdock.discovery",
    "opdock.platforms",
)
_CONTENT = ("opdock.ir.ops",)  # modules of the host that register things themselves


_HOSTS_OWN = ("opdock.nn", *_CONTENT)  # what they register stays, whoever imports them first


def _inside(module: str, roots: tuple[str, ...]) -> bool:
    return any(module == root or module.startswith(root + ".") for root in roots)


def _is_machinery(module: str) -> bool:
    return module == "opdock" or (_inside(module, _MACHINERY) and not _inside(module, _CONTENT))


@dataclass(frozen=True)
class Owner:
    """Who registers: an entry point of an installed distribution."""

    distribution: str
    version: str
    entry_point: str = ""

    def __str__(self) -> str:
        name = f"{self.distribution} {self.version}".strip()
        return f"{name} (entry point {self.entry_point!r})" if self.entry_point else name


@dataclass(eq=False)
class Registration:
    """One recorded registration; ``undo()`` takes it back, once."""

    kind: str
    name: str
    site: Site
    owner: Owner | None
    _undo: Callable[[], object] | None = field(repr=False)
    modules: tuple[str, ...] = ()
    """Modules that were being imported, in the open transaction, when it was made; innermost first."""

    def undo(self) -> None:
        """Take the registration back; a second call does nothing."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
            with _lock:
                if self in _entries:
                    _entries.remove(self)

    def where(self) -> str:
        """Return ``file:line`` and, where known, the distribution."""
        return f"{self.site}" + (f"  {self.owner}" if self.owner else "")


class _Scope(list[Registration]):
    """The registrations of an open transaction, and the modules that were there before it."""

    def __init__(self, modules: frozenset[str]) -> None:
        super().__init__()
        self.modules = modules


_lock = threading.RLock()
_entries: list[Registration] = []
_owner: ContextVar[Owner | None] = ContextVar("opdock.owner", default=None)
_open: ContextVar[_Scope | None] = ContextVar("opdock.transaction", default=None)


def _after_fork_in_child() -> None:
    """Give the child a fresh lock: another thread of the parent may have held this one."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def entries() -> tuple[Registration, ...]:
    """Return every registration in force, oldest first."""
    with _lock:
        return tuple(_entries)


def current_owner() -> Owner | None:
    """Return whose hook is running, or None outside any hook."""
    return _owner.get()


def record(kind: str, name: str, undo: Callable[[], object], *, site: Site | None = None) -> Registration:
    """Record that ``name`` was registered in ``kind``; ``undo`` takes it back.

    What a module of the host registers belongs to nobody's transaction, whoever imported it first.
    """
    site = site or Site.here()
    hosts_own = _inside(site.module, _HOSTS_OWN)
    owner, scope = (None, None) if hosts_own else (_owner.get(), _open.get())
    entry = Registration(kind, name, site, owner, undo, _being_imported(scope.modules) if scope is not None else ())
    with _lock:
        _entries.append(entry)
    if scope is not None:
        scope.append(entry)
    return entry


def _being_imported(before: frozenset[str]) -> tuple[str, ...]:
    found = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "") not in before:
            found.append(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return tuple(name for name in found if not _inside(name, ("", "opdock")))


def roll_back(made: Iterable[Registration]) -> None:
    """Undo registrations, newest first, and forget the modules whose import made them.

    A module that stayed would not run again when it is imported again, and what it registers would be missing
    without a word.
    """
    made = list(made)
    for entry in reversed(made):
        entry.undo()
    for name in dict.fromkeys(name for entry in made for name in entry.modules):
        module = sys.modules.pop(name, None)
        parent, _, attribute = name.rpartition(".")
        if module is not None and vars(sys.modules.get(parent, object)).get(attribute) is module:
            delattr(sys.modules[parent], attribute)  # `from package import module` would find it there


@contextlib.contextmanager
def transaction(owner: Owner | None = None) -> Iterator[list[Registration]]:
    """Record what is registered inside; undo all of it, newest first, when the block raises.

    Args:
        owner: who registers; None keeps the surrounding owner.

    Yields: the list of registrations made so far. A block inside another one hands its own up on success.
    """
    outer = _open.get()
    scope = _Scope(outer.modules if outer is not None else frozenset(sys.modules))
    owner_token = _owner.set(owner if owner is not None else _owner.get())
    open_token = _open.set(scope)
    try:
        yield scope
    except BaseException:
        roll_back(scope)
        raise
    else:
        if outer is not None:
            outer.extend(scope)
    finally:
        _open.reset(open_token)
        _owner.reset(owner_token)


def same_definition(first: object, second: object) -> bool:
    """Return whether two functions or classes come from the same lines of the same file.

    True for a module that was reloaded or imported under two names and for a hook that ran twice; False for
    what one factory makes of different values, and for two lambdas, or two pieces of code without a file, that
    do not do the same.
    """
    first, second = getattr(first, "__wrapped__", first), getattr(second, "__wrapped__", second)
    return first is second or (_definition(first) == _definition(second) is not None)


def _definition(obj: object) -> tuple[object, ...] | None:
    if isinstance(obj, FunctionType):
        code = obj.__code__
        exact = obj.__name__ == "<lambda>" or code.co_filename.startswith("<")  # the line does not tell them apart
        return obj.__qualname__, code.co_filename, code.co_firstlineno, _captured(obj), code if exact else None
    if isinstance(obj, MethodType):
        definition = _definition(obj.__func__)
        return None if definition is None else (id(obj.__self__), *definition)
    if isinstance(obj, type):
        methods = sorted((k, v) for k, v in vars(obj).items() if isinstance(v, FunctionType))
        return (obj.__qualname__, *((k, _definition(v)) for k, v in methods)) if methods else None
    return None


def _captured(function: FunctionType) -> tuple[object, ...]:
    """Return what tells the closures of one factory apart; ``super()``'s own cell differs for each class."""
    found: list[object] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            try:
                found.append(id(cell.cell_contents))
            except ValueError:  # not assigned yet
                found.append(id(cell))
    return tuple(found)


class Registry(Generic[T]):
    """Names to objects, with the place and owner of each.

    The same object again is a no-op, and the same definition again (a reloaded module) replaces it. Another
    object under the same name is an error that shows both places, unless ``override=True``. ``view`` is a
    read-only mapping that follows the registry.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._items: dict[str, T] = {}
        self._records: dict[str, Registration] = {}
        self.view: Mapping[str, T] = MappingProxyType(self._items)

    def register(self, name: str, value: T, *, override: bool = False, site: Site | None = None) -> Registration:
        """Put ``value`` under ``name``.

        Raises: DuplicateError if another object has the name and ``override`` is False.
        """
        site = site or Site.here()
        with _lock:
            if name in self._items:
                if self._items[name] is value:
                    return self._records[name]
                if not override and not same_definition(self._items[name], value):
                    raise self._duplicate(name, site)
            previous = (self._items.get(name), self._records.get(name))
            self._items[name] = value
            entry = record(self.label, name, lambda: self._restore(name, value, previous), site=site)
            self._records[name] = entry
            return entry

    def _restore(self, name: str, value: T, previous: tuple[T | None, Registration | None]) -> None:
        with _lock:
            if self._items.get(name) is not value:
                return  # somebody overrode it since: theirs stays
            if previous[1] is None:
                del self._items[name], self._records[name]
            else:
                self._items[name], self._records[name] = previous  # type: ignore[assignment]

    def _duplicate(self, name: str, site: Site) -> DuplicateError:
        owner = current_owner()
        return DuplicateError(
            f"Duplicate {self.label} name: {name}",
            why=[
                f"registered at  {self._records[name].where()}",
                f"again at       {site}" + (f"  {owner}" if owner else ""),
            ],
            remedy="register one of the two under another name, or uninstall one of the two distributions.",
        )

    def get(self, name: str) -> T:
        """Return the object; UnknownNameError with the nearest known names if there is none."""
        try:
            return self._items[name]
        except KeyError:
            raise UnknownNameError(f"No {self.label} is called {name!r}.", remedy=suggest(name, self._items)) from None

    def record_of(self, name: str) -> Registration:
        """Return where and by whom ``name`` was registered."""
        self.get(name)
        return self._records[name]

    def unregister(self, name: str) -> None:
        """Take ``name`` out again; UnknownNameError if it is not there."""
        self.record_of(name).undo()

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._items))

    def __len__(self) -> int:
        return len(self._items)
