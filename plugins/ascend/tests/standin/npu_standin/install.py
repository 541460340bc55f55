"""Putting the references in place of the kernels of the real torch_npu."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from npu_standin.calls import record
from npu_standin.host import on_host, refuse_mixed
from npu_standin.references import REFERENCES

KEY = "PrivateUse1"
GRADIENTS = "AutogradPrivateUse1"
# Memory, and what only looks at memory in another way: torch_npu's own, over the stand-in runtime.
KEPT = frozenset(
    (
        "empty",
        "empty_strided",
        "empty_with_swapped_memory",
        "set_",
        "resize_",
        "resize_as_",
        "record_stream",
        "is_pinned",
        "_pin_memory",
        "pin_memory",
        "_has_compatible_shallow_copy_type",
        "is_set_to",
    )
)
_libraries: list[torch.library.Library] = []


def install() -> None:
    """Replace the kernels, once; nothing is initialised by it."""
    if _libraries:
        return
    libraries = {name: torch.library.Library(name, "IMPL") for name in ("aten", "npu", "atb")}
    _libraries.extend(libraries.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in _aten_ops():
            libraries["aten"].impl(op, on_host(op, op, refuse_mixed(op)), KEY, allow_override=True)
            if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), GRADIENTS) and _implicit(op):
                # torch_npu's own gradient of it calls its kernel directly; there are no gradients here
                libraries["aten"].impl(op, torch.library.fallthrough_kernel, GRADIENTS, allow_override=True)
        for name, reference in REFERENCES.items():
            namespace, _, base = name.partition("::")
            op = getattr(getattr(torch.ops, namespace), base).default
            libraries[namespace].impl(op, _recorded(op, on_host(op, reference)), KEY, allow_override=True)


def _aten_ops() -> list[Any]:
    found = []
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(KEY):
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace != "aten" or base in KEPT or base.startswith(("npu_", "_npu")):
            continue
        packet = getattr(torch.ops.aten, base, None)
        op = getattr(packet, overload or "default", None)
        if op is None or not _runs_on_the_cpu(op):
            continue
        aliases = [value.alias_info for value in op._schema.returns if value.alias_info is not None]
        if not any(not alias.is_write for alias in aliases):  # not a view
            found.append(op)
    return found


def _runs_on_the_cpu(op: Any) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(op.name(), "CPU") or has(op.name(), "CompositeExplicitAutograd") or _implicit(op)


def _implicit(op: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))


def _recorded(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        record(op, args, kwargs)
        return kernel(*args, **kwargs)

    return call
