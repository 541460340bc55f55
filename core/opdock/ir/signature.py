"""Reading signatures: annotations become types, wherever the names in them were imported."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import typing
from types import FrameType
from typing import Any

import torch

from opdock.errors import RegistrationError
from opdock.journal import Site

# What annotations of ops are made of, for modules that import it only for a type checker.
_COMMON: dict[str, Any] = {
    "torch": torch,
    "Tensor": torch.Tensor,
    **{name: getattr(typing, name) for name in ("List", "Optional", "Sequence", "Tuple", "Union")},
}


def unwrap(fn: Any) -> Any:
    """Return the function inside partials and ``functools.wraps`` wrappers."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.unwrap(fn) if callable(fn) else fn


def site_of(fn: Any) -> Site:
    """Return where the function inside ``fn`` is defined."""
    return Site.of(unwrap(fn))


def name_of(fn: Any) -> str:
    """Return the module and qualified name of the function inside ``fn``, for messages."""
    inner = unwrap(fn)
    if isinstance(inner, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return f"torch.ops.{inner}"
    return f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', repr(inner))}"


def resolved_signature(fn: Any, label: str) -> inspect.Signature:
    """Return ``fn``'s signature with every annotation as a type.

    Under ``from __future__ import annotations`` they are strings, and may name what was imported inside the
    function that defines ``fn``: names are looked up in its globals, its closure and the running frames of its
    module.

    Raises: RegistrationError naming the function and the name that means nothing there, or the parameter that
        has no annotation.
    """
    inner = unwrap(fn)
    who = f"{name_of(fn)}  {site_of(fn)}"
    try:
        signature = inspect.signature(fn)
        source = inner if inspect.isroutine(inner) else type(inner).__call__
        inner_hints = inspect.get_annotations(
            source, globals=_globals_of(source), locals=_locals_of(source), eval_str=True
        )
    except NameError as err:
        raise RegistrationError(
            f"An annotation of {label} cannot be resolved: name {err.name!r} is not defined.",
            who=who,
            why=f"annotations: {_written(inner)}",
            remedy=f"import {err.name} in the module, or in the function that defines this one.",
        ) from None
    except (TypeError, ValueError, SyntaxError) as err:
        raise RegistrationError(f"The signature of {label} cannot be read: {err}.", who=who) from None
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RegistrationError(
                f"Parameter *{name} of {label}: an op has named parameters only.",
                who=who,
                remedy="write the parameters out.",
            )
        if name not in inner_hints:
            raise RegistrationError(
                f"Parameter {name!r} of {label} has no annotation.",
                who=who,
                remedy=f"annotate it, for example {name}: torch.Tensor.",
            )
    if "return" not in inner_hints:
        raise RegistrationError(
            f"The result of {label} has no annotation.", who=who, remedy="add -> torch.Tensor, or a tuple of them."
        )
    parameters = [p.replace(annotation=inner_hints[n]) for n, p in signature.parameters.items()]
    return signature.replace(parameters=parameters, return_annotation=inner_hints["return"])


def _globals_of(fn: Any) -> dict[str, Any]:
    return {**_COMMON, **getattr(fn, "__globals__", {})}


def _locals_of(fn: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    module = getattr(fn, "__globals__", None)
    running: list[dict[str, Any]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is module and frame.f_locals is not module:
            running.append(frame.f_locals)
        frame = frame.f_back
    for names in reversed(running):  # the innermost frame wins
        found.update(names)
    closure = getattr(fn, "__closure__", None) or ()
    for name, cell in zip(fn.__code__.co_freevars if closure else (), closure, strict=True):
        with contextlib.suppress(ValueError):  # a name that is not assigned yet
            found[name] = cell.cell_contents
    return found


def _written(fn: Any) -> str:
    return ", ".join(f"{name}: {text}" for name, text in getattr(fn, "__annotations__", {}).items())


def defaults_of(signature: inspect.Signature) -> dict[str, Any]:
    """Return the default of every parameter that has one."""
    return {n: p.default for n, p in signature.parameters.items() if p.default is not p.empty}
