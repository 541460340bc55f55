"""Reading a function's signature and torch schema, with annotations resolved wherever they were written."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.library import infer_schema

from opdock import journal
from opdock.errors import RegistrationError, SchemaMismatchError

_COMMON: dict[str, Any] = {
    "torch": torch,
    "Tensor": torch.Tensor,
    **{name: getattr(typing, name) for name in ("Any", "List", "Optional", "Sequence", "Tuple", "Union")},
}


def unwrap(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside partials and ``functools.wraps`` wrappers."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    inner: Callable[..., Any] = inspect.unwrap(fn)
    return inner


def signature_of(fn: Callable[..., Any], label: str) -> inspect.Signature:
    """Return ``fn``'s signature with every annotation resolved to a type.

    Annotations may be strings (``from __future__ import annotations``) that name things imported inside the
    function that defines ``fn``: they are looked up in its closure and in the frames that are running.

    Raises: RegistrationError naming the function and the name that cannot be resolved, or the parameter
        without an annotation.
    """
    who = f"{label}  {journal.Site.of(unwrap(fn))}"
    try:
        signature = inspect.signature(fn)
        hints = typing.get_type_hints(unwrap(fn), *_namespaces(unwrap(fn)))
    except NameError as err:
        raise RegistrationError(
            f"An annotation of {label} cannot be resolved: {err}.",
            who=who,
            remedy="import the name where the function is defined, or use torch.Tensor.",
        ) from None
    except (TypeError, ValueError) as err:
        raise RegistrationError(f"The signature of {label} cannot be read: {err}.", who=who) from None
    for name, parameter in signature.parameters.items():
        if name not in hints and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RegistrationError(
                f"Parameter {name!r} of {label} has no annotation.",
                who=who,
                remedy=f"annotate it as the native definition does, for example {name}: torch.Tensor.",
            )
    parameters = [p.replace(annotation=hints.get(n, p.annotation)) for n, p in signature.parameters.items()]
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", signature.empty))


def _namespaces(fn: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    local: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(2)
    running = []
    while frame is not None:
        if frame.f_globals is getattr(fn, "__globals__", None):
            running.append(frame.f_locals)
        frame = frame.f_back
    for scope in reversed(running):
        local.update(scope)
    for name, cell in zip(
        getattr(getattr(fn, "__code__", None), "co_freevars", ()),
        getattr(fn, "__closure__", None) or (),
        strict=False,
    ):
        local[name] = cell.cell_contents
    return {**_COMMON, **getattr(fn, "__globals__", {})}, local


def refuse_keyword_only(signature: inspect.Signature, message: str, who: str) -> None:
    """Raise RegistrationError with ``message`` if a parameter is keyword-only."""
    if any(p.kind is p.KEYWORD_ONLY for p in signature.parameters.values()):
        raise RegistrationError(message, who=who, remedy="remove the * from the parameters.")


def schema_of(fn: Callable[..., Any], label: str) -> str:
    """Return the functional torch schema of ``fn``, for example ``(Tensor x, float eps) -> Tensor``."""
    if isinstance(fn, torch._ops.OpOverload):
        return normal(str(fn._schema))
    signature = signature_of(fn, label)
    stand_in = types.FunctionType((lambda *_, **__: None).__code__, {"torch": torch}, label)
    stand_in.__signature__ = signature  # type: ignore[attr-defined]
    try:
        return normal("op" + infer_schema(stand_in, mutates_args=()))
    except ValueError as err:
        raise RegistrationError(
            f"The schema of {label} cannot be inferred.",
            who=f"{label}  {journal.Site.of(unwrap(fn))}",
            why=str(err).splitlines()[0],
            remedy="use the types that torch.library.infer_schema takes: Tensor, int, float, bool, str, their "
            "optionals and Sequences; defaults that are numbers, strings, booleans or None.",
        ) from None


def normal(schema: str) -> str:
    """Return a torch schema as torch itself writes it, without the op's name."""
    text = str(torch._C.parse_schema(schema))
    return text[text.index("(") :]


def check_same_schema(op: str, native: Callable[..., Any], provider: str, fn: Callable[..., Any]) -> None:
    """Raise SchemaMismatchError, showing both definitions, unless the schemas are equal word by word."""
    who = [f"from {owner}"] if (owner := journal.current_owner()) else []
    if not isinstance(fn, torch._ops.OpOverload):
        refuse_keyword_only(
            signature_of(fn, f"provider {provider!r} of op {op!r}"),
            f"Implementation for provider {provider} of op {op} has keyword-only parameters.",
            f"{journal.Site.of(unwrap(fn))}",
        )
    wanted, given = schema_of(native, f"op {op!r}"), schema_of(fn, f"provider {provider!r} of op {op!r}")
    if wanted != given:
        raise SchemaMismatchError(
            f"Implementation for provider {provider} has schema '{given}' which does not match native schema "
            f"'{wanted}' for op {op}.",
            who=who,
            why=[
                f"native    {wanted}  {journal.Site.of(unwrap(native))}",
                f"{provider}  {given}  {journal.Site.of(unwrap(fn))}",
            ],
            remedy="give the provider the parameters of the native definition, with the same names, types and "
            "defaults; refuse values that it cannot handle in supports_args.",
        )


def check_predicate(provider: str, predicate: object, native: inspect.Signature) -> None:
    """Raise SchemaMismatchError unless ``supports_args`` takes exactly the native parameters."""
    label = f"supports_args for provider {provider}"

    def refuse(what: str) -> SchemaMismatchError:
        return SchemaMismatchError(
            f"{label} {what}",
            why=[f"native {native}", f"at {journal.Site.of(predicate)}"],
            remedy=f"def supports_args({', '.join(native.parameters)}): ...  with the native defaults.",
        )

    if not callable(predicate):
        raise refuse("must be a callable")
    mine = list(inspect.signature(predicate).parameters.values())
    theirs = list(native.parameters.values())
    if any(p.kind is p.KEYWORD_ONLY for p in mine):
        raise refuse("cannot have keyword-only parameters")
    if len(mine) != len(theirs):
        raise refuse(
            f"must have the same number of parameters ({len(mine)}) as the native implementation ({len(theirs)})"
        )
    for a, b in zip(mine, theirs, strict=True):
        if a.name != b.name:
            raise refuse(f"has parameter '{a.name}' which does not match native parameter '{b.name}'")
        if a.default != b.default or type(a.default) is not type(b.default):
            raise refuse(
                f"has parameter '{a.name}' with default {a.default} which does not match native default {b.default}"
            )


def defaults_of(signature: inspect.Signature) -> Mapping[str, Any]:
    """Return the default of every parameter that has one."""
    return {n: p.default for n, p in signature.parameters.items() if p.default is not p.empty}
