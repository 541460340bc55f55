"""Registering Python functions as torch ops for one dispatch key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.library import Library, infer_schema

from opdock import context, journal
from opdock.errors import RegistrationError

NAMESPACE = "opdock"

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
    if name in _torch_ops and _torch_ops.get(name) is op_func:
        return
    key = dispatch_key if dispatch_key is not None else context.platform().dispatch_key
    check_dispatch_key(key)
    try:
        schema = infer_schema(op_func, mutates_args=list(mutates_args or ()))
    except (ValueError, NameError) as err:
        raise RegistrationError(
            f"The schema of {name} cannot be inferred.",
            who=f"{op_func.__qualname__}  {journal.Site.of(op_func)}",
            why=str(err),
            remedy="annotate each parameter and the result with types that torch.library.infer_schema takes.",
        ) from err
    with journal.transaction():
        previous = _libraries.get(name)
        _torch_ops.register(name, op_func)  # refuses another function before torch is touched
        if previous is not None:
            previous._destroy()
        library = Library(namespace, "FRAGMENT")  # of its own, so that undoing takes back this op alone
        _libraries[name] = library
        journal.record("torch library", name, lambda: _drop(name, library))
        library.define(op_name + schema, tags=tags)
        library.impl(op_name, op_func, dispatch_key=key)
        if fake_impl is not None:
            library._register_fake(op_name, fake_impl)


_libraries: dict[str, Library] = {}


def _drop(name: str, library: Library) -> None:
    library._destroy()
    if _libraries.get(name) is library:
        del _libraries[name]
