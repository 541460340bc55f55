"""Registering Python functions as torch ops for one dispatch key."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.library import Library, infer_schema

from opdock import context, journal
from opdock.errors import RegistrationError

NAMESPACE = "opdock"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_torch_ops: journal.Registry[Callable[..., Any]] = journal.Registry("torch op")


def check_dispatch_key(key: str, device_type: str | None = None) -> None:
    """Raise RegistrationError unless ``key`` is a dispatch key of torch and, if given, that of the device.

    The empty key is refused: torch takes it for every device at once.
    """
    known = (
        "CPU",
        "CUDA",
        "XPU",
        "MPS",
        "HPU",
        "XLA",
        "MTIA",
        "PrivateUse1",
        "CompositeExplicitAutograd",
    )
    try:
        if not key:
            raise RuntimeError("the empty key would register for every device")
        torch._C._dispatch_key_parse(key)
    except RuntimeError as err:
        raise RegistrationError(
            f"{key!r} is not a dispatch key of torch.",
            why=str(err).splitlines()[0],
            remedy=f"use one of {', '.join(known)}; a device of its own uses PrivateUse1.",
        ) from None
    if device_type:
        try:
            expected = torch._C._dispatch_key_for_device(torch.device(device_type).type)
        except RuntimeError as err:
            raise RegistrationError(
                f"torch knows no device type {device_type!r}.",
                why=str(err).splitlines()[0],
                remedy="load the extension that adds the device in import_kernels, or rename PrivateUse1 there.",
            ) from None
        if expected != key:
            raise RegistrationError(
                f"Dispatch key {key!r} is not the key of {device_type!r} tensors.",
                why=f"torch dispatches {device_type!r} tensors to {expected!r}.",
                remedy=f'dispatch_key = "{expected}".',
            )


def direct_register_custom_op(
    op_name: str,
    op_func: Callable[..., Any],
    mutates_args: Sequence[str] | None = None,
    fake_impl: Callable[..., Any] | None = None,
    target_lib: Library | None = None,
    dispatch_key: str | None = None,
    tags: tuple[torch.Tag, ...] = (),
) -> None:
    """Register ``op_func`` as ``torch.ops.opdock.<op_name>`` for one dispatch key.

    It costs less per call than ``torch.library.custom_op``.

    Args:
        op_name: name in the namespace.
        op_func: annotated function; its schema is inferred.
        mutates_args: names of the parameters that it writes.
        fake_impl: the same function for fake tensors; without it the op cannot be compiled.
        target_lib: a library whose namespace is used; None uses ``opdock``.
        dispatch_key: None takes the platform's.
        tags: of torch.

    Raises: RegistrationError for a key that does not exist or a schema that cannot be inferred; DuplicateError
        if another function holds the name. The same function again is a no-op.
    """
    namespace = target_lib.ns if target_lib is not None else NAMESPACE
    name = f"{namespace}::{op_name}"
    if name in _torch_ops and _torch_ops.get(name) is op_func and name in _defined:
        return
    who = f"{getattr(op_func, '__qualname__', op_func)}  {journal.Site.of(op_func)}"
    if not _NAME.match(op_name):
        raise RegistrationError(
            f"Op name {op_name!r} is invalid.",
            who=who,
            remedy="use letters, digits and underscores; the namespace is that of target_lib.",
        )
    key = dispatch_key if dispatch_key is not None else context.platform().dispatch_key
    check_dispatch_key(key)
    try:
        schema = infer_schema(op_func, mutates_args=list(mutates_args or ()))
    except (ValueError, NameError, AttributeError, TypeError) as err:
        raise RegistrationError(
            f"The schema of {name} cannot be inferred.",
            who=who,
            why=str(err),
            remedy="annotate each parameter and the result with types that torch.library.infer_schema takes.",
        ) from err

    def define() -> Library:
        library = Library(namespace, "FRAGMENT")  # of its own, so that undoing takes back this op alone
        try:
            library.define(op_name + schema, tags=tags)
            library.impl(op_name, op_func, dispatch_key=key)
            if fake_impl is not None:
                library._register_fake(op_name, fake_impl)
        except RuntimeError as err:
            library._destroy()
            raise RegistrationError(f"torch refuses the op {name}.", who=who, why=str(err).splitlines()[0]) from err
        return library

    with journal.transaction():
        _torch_ops.register(name, op_func)  # refuses another function before torch is touched
        previous = _defined.pop(name, None)
        journal.record("torch library", name, lambda: _put_back(name, define, previous))
        if previous is not None:
            previous[0]._destroy()
        _defined[name] = (define(), define)


_Defined = tuple[Library, Callable[[], Library]]
_defined: dict[str, _Defined] = {}
"""What torch holds: the library of each op, and how to make it again."""


def _put_back(name: str, define: Callable[[], Library], previous: _Defined | None) -> None:
    """Undo ``define``: take its library away, and make the one again that it took the place of."""
    present = _defined.get(name)
    if present is not None and present[1] is not define:
        return  # somebody took its place since: theirs stays
    if present is not None:
        del _defined[name]
        present[0]._destroy()
    if previous is not None:
        _defined[name] = (previous[1](), previous[1])
