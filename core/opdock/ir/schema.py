"""The checks of a registration: names, schemas, predicates, activations.

None of them runs code of a provider, and each error names both definitions with their places.
"""

from __future__ import annotations

import difflib
import inspect
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.library import infer_schema

from opdock import journal
from opdock.errors import RegistrationError, SchemaMismatchError
from opdock.ir.signature import name_of, resolved_signature, site_of

NATIVE = "native"
RESERVED_PROVIDERS = (NATIVE, "unfused")
_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
_WORDS = re.compile(r"[(),]|->|[^\s(),]+(?: [^\s(),]+)?")
_TYPES = "Tensor, int, float, bool, str, torch.dtype, torch.device, their optionals and Sequences"


def check_name(kind: str, name: object) -> None:
    """Raise RegistrationError unless ``name`` can be the name of an op or provider."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise RegistrationError(
            f"{kind} name {name!r} is invalid. Names must start with a letter or underscore, followed by lowercase "
            "letters, underscores, or digits only.",
            remedy=f"for example {re.sub('[^a-z0-9_]', '_', str(name).lower()).lstrip('0123456789') or 'my_name'!r}.",
        )


def check_provider_name(name: object) -> None:
    """Raise RegistrationError unless a provider can have this name."""
    check_name("Provider", name)
    if name in RESERVED_PROVIDERS:
        raise RegistrationError(
            f"Provider name {name} is reserved.",
            why=f"reserved: {', '.join(RESERVED_PROVIDERS)}",
            remedy="name it after the library or the vendor.",
        )


def op_signature(name: str, native: Any) -> inspect.Signature:
    """Return the signature of a native definition, annotations resolved; RegistrationError if an op cannot have it."""
    if not isinstance(native, types.FunctionType):
        raise RegistrationError(
            f"The native definition of op {name} is no Python function: {native!r}.",
            remedy="write a function that calls it; its parameters become the op's schema.",
        )
    who = f"op {name!r}  {name_of(native)}  {site_of(native)}"
    if any(p.kind is p.KEYWORD_ONLY for p in inspect.signature(native).parameters.values()):
        raise RegistrationError(
            f"Op {name} has keyword-only arguments which are not currently supported. That's because kwargs are not "
            "allowed during lowering.",
            who=who,
            remedy="remove the * from the parameters.",
        )
    signature = resolved_signature(native, f"op {name!r}")
    if not any("Tensor" in str(p.annotation) for p in signature.parameters.values()):
        raise RegistrationError(
            f"Op {name} takes no tensor.", who=who, remedy="an op needs one: it says where the op runs."
        )
    return signature


def schema_of(fn: Any, label: str) -> str:
    """Return the functional schema of ``fn``, for example ``(Tensor x, SymInt? n=None) -> Tensor``.

    Raises: RegistrationError naming the function and what in it no schema can say.
    """
    if isinstance(fn, torch._ops.OpOverloadPacket):
        fn = getattr(fn, fn.overloads()[0])
    if isinstance(fn, torch._ops.OpOverload):
        text = str(fn._schema)
        return text[text.index("(") :]
    signature = resolved_signature(fn, label)
    stand_in = types.FunctionType((lambda: None).__code__, {}, getattr(fn, "__name__", label))
    stand_in.__signature__ = signature  # type: ignore[attr-defined]
    try:
        return _normal(infer_schema(stand_in, mutates_args=()))
    except ValueError as err:
        said = str(err).splitlines()[0].removeprefix("infer_schema(func): ").partition(" The valid types are")[0]
        raise RegistrationError(
            f"The schema of {label} cannot be inferred.",
            who=f"{name_of(fn)}  {site_of(fn)}",
            why=said.partition(" Got func with signature")[0],
            remedy=f"use {_TYPES}; a default is None, a number, a string, a dtype or a device.",
        ) from None


def _normal(schema: str) -> str:
    """Return the schema as torch prints it, so that both ways of getting one compare."""
    text = str(torch._C.parse_schema("op" + schema))
    return text[text.index("(") :]


def readable(schema: str) -> str:
    """Return the schema with the words that people write."""
    return schema.replace("SymInt", "int")


def check_same_schema(
    op: str, native: Callable[..., Any], schema: str, provider: str, fn: Any, *, inplace: bool
) -> None:
    """Raise SchemaMismatchError, with both definitions and the words that differ, unless the schemas are equal."""
    label = f"provider {provider!r} of op {op!r}"
    given = schema_of(fn, label)
    if "*" in given:
        raise SchemaMismatchError(
            f"Implementation for {label} has keyword-only parameters.",
            who=f"{readable(given)}  {site_of(fn)}",
            why="Arguments are passed by position.",
            remedy="remove the * from the parameters.",
        )
    if inplace:
        given = re.sub(r"Tensor\(\w+!\)", "Tensor", given)  # a torch op says itself what it writes
    if given == schema:
        return
    mine, theirs = readable(schema), readable(given)
    width = max(len(NATIVE), len(provider))
    owner = journal.current_owner()
    raise SchemaMismatchError(
        f"Implementation for provider {provider} has a schema which does not match native schema for op {op}.",
        who=[
            f"{NATIVE:{width}}  {mine}   {site_of(native)}",
            f"{provider:{width}}  {theirs}   {site_of(fn)}",
            *([f"from {owner}"] if owner else []),
        ],
        why=_difference(mine, theirs, provider),
        remedy="give the provider the parameters of the native definition: the same names, types and defaults in "
        "the same order. Values that it can't handle are for supports_args to refuse.",
    )


def _difference(native: str, given: str, provider: str) -> list[str]:
    """Return a line for each run of words that only one of the schemas has."""
    a, b = _WORDS.findall(native), _WORDS.findall(given)
    lines = []
    for tag, a0, a1, b0, b1 in difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes():
        if tag != "equal":
            ours, theirs = " ".join(w for w in a[a0:a1] if w != ","), " ".join(w for w in b[b0:b1] if w != ",")
            lines.append(f"{NATIVE} has {ours or 'nothing'!r} where {provider} has {theirs or 'nothing'!r}")
    return lines


def check_predicate(op: str, provider: str, predicate: object, native: inspect.Signature) -> None:
    """Raise SchemaMismatchError unless ``supports_args`` takes exactly the native parameters."""
    label = f"supports_args for provider {provider}"

    def refuse(what: str) -> SchemaMismatchError:
        plain = native.replace(
            parameters=[p.replace(annotation=p.empty) for p in native.parameters.values()],
            return_annotation=native.empty,
        )
        return SchemaMismatchError(
            f"{label} {what}",
            who=f"op {op!r}, provider {provider!r}  {site_of(predicate) if callable(predicate) else repr(predicate)}",
            remedy=f"def supports_args{plain}: ...",
        )

    if not callable(predicate):
        raise refuse("must be a callable")
    try:
        mine = list(inspect.signature(predicate).parameters.values())
    except (TypeError, ValueError) as err:
        raise refuse(f"has no signature that can be read: {err}") from None
    theirs = list(native.parameters.values())
    if any(p.kind is p.KEYWORD_ONLY for p in mine):
        raise refuse("cannot have keyword-only parameters")
    if len(mine) != len(theirs) or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in mine):
        raise refuse(
            f"must have the same number of parameters ({len(mine)}) as the native implementation ({len(theirs)})"
        )
    for a, b in zip(mine, theirs, strict=True):
        if a.name != b.name:
            raise refuse(f"has parameter '{a.name}' which does not match native parameter '{b.name}'")
        if a.default != b.default or type(a.default) is not type(b.default):
            raise refuse(
                f"has parameter '{a.name}' with default {_default(a)} which does not match native default {_default(b)}"
            )


def _default(parameter: inspect.Parameter) -> str:
    return "none at all" if parameter.default is parameter.empty else repr(parameter.default)


def tensor_parameters(signature: inspect.Signature) -> dict[str, bool]:
    """Return the parameters that hold tensors: name to whether it is a list of them."""
    return {
        name: any(word in str(p.annotation) for word in ("list", "List", "Sequence"))
        for name, p in signature.parameters.items()
        if "Tensor" in str(p.annotation)
    }


def check_activations(
    op: str,
    native: Callable[..., Any],
    signature: inspect.Signature,
    schema: str,
    activations: Sequence[str],
    *,
    allow_inplace: bool,
) -> None:
    """Raise RegistrationError for an activation that is no tensor or, in place, has no result to become."""
    who = f"op {op!r}  {readable(schema)}  {site_of(native)}"
    tensors = [name for name, is_list in tensor_parameters(signature).items() if not is_list]
    for name in activations:
        if name not in tensors:
            raise RegistrationError(
                f"Activation {name!r} of op {op} is no tensor parameter.",
                who=who,
                remedy=f"name some of {', '.join(tensors)}.",
            )
    if not allow_inplace:
        return
    results = schema.rpartition("->")[2].strip(" ()").split(", ")
    if any(result != "Tensor" for result in results):
        raise RegistrationError(
            "Inplace overload only supports Tensor outputs.", who=who, remedy="return tensors alone."
        )
    if len(results) != len(activations):
        raise RegistrationError(
            "Inplace overload requires the same number of outputs as activations.",
            who=who,
            why=f"{len(results)} outputs, {len(activations)} activations: {', '.join(activations)}",
            remedy="activations=[...] with one parameter for each result.",
        )
