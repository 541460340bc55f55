"""A key over everything in source that an implementation depends on.

It covers the implementation and its predicate: the module that defines each and, transitively, the modules of the
same distribution that those import; the versions of the other distributions; the content of the libraries that
define the torch ops they call; the values that a closure, a partial or a default holds, as far as they are plain.
It covers nothing that changes while a process runs, so two processes with the same source agree.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from opdock.ir import modules

_NOT_OF_LIBRARIES = {"aten", "prims", "opdock_ir", "higher_order", "loaded_libraries", "load_library", "import_module"}
_PLAIN = (int, float, str, bool, bytes, type(None), torch.dtype, torch.device)


def implementation_key(*functions: Callable[..., Any] | None) -> str:
    """Return a sha256 in hex over the functions; None stands for one that is not there."""
    digest = hashlib.sha256()
    for part in _parts(functions):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(functions: Iterable[Any]) -> Iterator[bytes]:
    reached: dict[tuple[str, Path], modules.Reach] = {}
    namespaces: set[str] = set()
    for fn in functions:
        for value in _values(fn, set()):
            if isinstance(value, FunctionType):
                file = Path(value.__code__.co_filename)
                yield value.__qualname__.encode()
                if file.is_file():
                    key = value.__module__ or "", file
                    reached.setdefault(key, modules.reach(*key))
                else:  # typed into an interpreter, or generated
                    yield _code(value.__code__)
            elif isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
                namespaces.add(str(value).partition(".")[0].partition("::")[0])
                yield str(getattr(value, "_schema", value)).encode()
            else:
                yield repr(value).encode()
    for name, path in sorted({item for found in reached.values() for item in found.files.items()}):
        yield name.encode()
        yield _content(path)
    for distribution in sorted({name for found in reached.values() for name in found.foreign}):
        yield f"{distribution}=={modules.version_of(distribution)}".encode()
    yield from _libraries(
        {path.parent for found in reached.values() for path in found.files.values()},
        namespaces.union(*(found.namespaces for found in reached.values())) - _NOT_OF_LIBRARIES,
    )


def _values(fn: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the functions, torch ops and plain values that make up ``fn``."""
    if id(fn) in seen:
        return
    seen.add(id(fn))
    if isinstance(fn, functools.partial):
        yield "partial"
        inner: Iterable[Any] = (fn.func, *fn.args, *(x for item in sorted(fn.keywords.items()) for x in item))
    elif isinstance(fn, FunctionType):
        yield fn
        wrapped = getattr(fn, "__wrapped__", None)
        held = (_cell(cell) for cell in fn.__closure__ or ())
        defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        inner = (*held, *defaults, *([wrapped] if wrapped is not None else ()))
    elif isinstance(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        yield fn
        inner = _python_kernels(fn)
    elif isinstance(fn, tuple | list):
        inner = fn
    elif isinstance(fn, _PLAIN):
        yield fn
        return
    elif isinstance(vars(type(fn)).get("__call__"), FunctionType):
        inner = (vars(type(fn))["__call__"],)
    else:
        # Its repr may hold an address; its type does not.
        yield f"{type(fn).__module__}.{type(fn).__qualname__}"
        return
    for value in inner:
        yield from _values(value, seen)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _python_kernels(op: Any) -> Iterator[Any]:
    """Yield the Python function behind an op of ``torch.library.custom_op``."""
    from torch._library.custom_ops import OPDEFS

    overloads = [op] if isinstance(op, torch._ops.OpOverload) else [getattr(op, name) for name in op.overloads()]
    for overload in overloads:
        definition = OPDEFS.get(overload._schema.name)
        if definition is not None:
            yield definition._init_fn


def _code(code: CodeType) -> bytes:
    """Return the code without the places where it stands."""
    constants = [
        _code(c) if isinstance(c, CodeType) else repr(sorted(map(repr, c)) if isinstance(c, frozenset) else c)
        for c in code.co_consts
    ]
    return repr((code.co_code, code.co_names, code.co_varnames, constants)).encode()


def _libraries(folders: set[Path], namespaces: set[str]) -> Iterator[bytes]:
    """Yield the hashes of the loaded libraries beside the source, and of those that define the namespaces."""
    contents = set()
    for path in map(Path, torch.ops.loaded_libraries):
        if not path.is_file():
            continue
        stat = path.stat()
        names = (_defines(path, stat.st_mtime_ns, stat.st_size, name) for name in namespaces)
        if any(path.is_relative_to(folder) for folder in folders) or any(names):
            contents.add(_content(path))
    yield from sorted(contents)


@functools.lru_cache(maxsize=1024)
def _defines(path: Path, _mtime: int, _size: int, namespace: str) -> bool:
    """Return whether the library may define ops of the namespace: then the name is in it as a string."""
    return f"\0{namespace}\0".encode() in path.read_bytes()


def _content(path: Path) -> bytes:
    if path.name.endswith((*EXTENSION_SUFFIXES, ".so")):
        stat = path.stat()
        return _hash_of_binary(path, stat.st_mtime_ns, stat.st_size)
    return hashlib.sha256(path.read_bytes()).digest()


@functools.lru_cache(maxsize=256)
def _hash_of_binary(path: Path, _mtime: int, _size: int) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()
