"""``register_op``: from a native definition to an op in the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

import torch  # noqa: TC002 - part of a runtime annotation

from opdock import journal
from opdock.errors import DuplicateError
from opdock.ir.choice import Choice
from opdock.ir.impl import IrOpImpl
from opdock.ir.op import NAMESPACE, IrOp

F = TypeVar("F", bound=Callable[..., Any])

_ops: journal.Registry[IrOp] = journal.Registry("IR op")
IrOp.registry = _ops.view


class PublicOp(Protocol):
    """The function that stands for an op: call it, or use the methods of its ``IrOp``."""

    op: IrOp
    impls: Mapping[str, IrOpImpl]
    overload: torch._ops.OpOverload[..., Any]
    maybe_inplace: Callable[..., Any]
    register_impl: Callable[..., Callable[[Callable[..., Any]], IrOpImpl]]
    set_default: Callable[[Sequence[str]], None]
    set_priority: Callable[[Sequence[str]], Any]
    get_priority: Callable[[], list[str]]
    supported_providers: Callable[[], list[str]]
    apply_arg_defaults: Callable[[Sequence[Any]], tuple[Any, ...]]
    dispatch: Callable[..., IrOpImpl]
    explain: Callable[..., Choice]
    generate_inputs: Callable[..., tuple[Any, ...]]
    override_tolerance: Callable[..., None]
    get_tolerance: Callable[..., dict[str, float]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op with its native parameters."""

    def register_fake(self, fn: F) -> F:
        """See ``IrOp.register_fake``."""

    def register_input_generator(self, fn: F) -> F:
        """See ``InputGenerator.register_input_generator``."""


@overload
def register_op(native: Callable[..., Any]) -> PublicOp: ...
@overload
def register_op(
    native: None = ...,
    *,
    name: str | None = ...,
    activations: Sequence[str] | None = ...,
    allow_inplace: bool = ...,
    batch_invariant: bool = ...,
) -> Callable[[Callable[..., Any]], PublicOp]: ...
def register_op(
    native: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: bool = False,
    batch_invariant: bool = False,
) -> Any:
    """Register a native definition as an IR op and return its public function.

    Args:
        native: the definition, with annotations; None returns a decorator.
        name: None takes the function's name.
        activations: parameters whose memory may be reused; None takes those that begin with ``x``.
        allow_inplace: adds ``.maybe_inplace(...)``, which gives the activations away.
        batch_invariant: whether a row's bits of the native definition do not depend on the other rows.

    Raises: RegistrationError for a bad definition; DuplicateError, showing both places, for a name in use.
    """

    def register(fn: Callable[..., Any]) -> Any:
        label = fn.__name__ if name is None else name
        if label in _ops:
            present = _ops.get(label)
            if present.native is fn:
                return present.fn
            if not journal.same_definition(present.native, fn):
                raise DuplicateError(
                    f"Op '{label}' is already registered.",
                    why=[f"registered at  {present.site}", f"again at       {journal.Site.of(fn)}"],
                    remedy="choose another name.",
                )
            _ops.unregister(label)  # the module was reloaded
        with journal.transaction():
            op = IrOp(
                label,
                fn,
                activations=activations,
                allow_inplace=allow_inplace,
                batch_invariant=batch_invariant,
            )
            journal.record("torch library", f"{NAMESPACE}::{label}", op._library._destroy)
            _ops.register(label, op, site=op.site)
        return op.fn

    return register if native is None else register(native)
