"""``register_op``, and the registry of IR ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from opdock import journal
from opdock.errors import DuplicateError
from opdock.ir import namespace
from opdock.ir.impl import IrOpImpl
from opdock.ir.op import IrOp
from opdock.ir.providers import is_reload
from opdock.ir.rows import run_by_rows
from opdock.ir.schema import NATIVE, schema_of
from opdock.ir.scopes import lock
from opdock.ir.signature import site_of

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
R_co = TypeVar("R_co", covariant=True)


class _Ops(journal.Registry[IrOp]):
    """The registry; an op that is taken out leaves torch and the namespaces too."""

    def _restore(self, name: str, value: IrOp, previous: tuple[IrOp | None, journal.Registration | None]) -> None:
        super()._restore(name, value, previous)
        if self._items.get(name) is not value:
            namespace.withdraw(name)
            value.close()


_ops = _Ops("IR op")
registry: Mapping[str, IrOp] = _ops.view
"""Every registered op by name; read-only."""
IrOp.registry = registry


class PublicOp(Protocol[P, R_co]):
    """The function that stands for an op: call it, or use what its ``IrOp`` has, under the same names."""

    op: IrOp

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the provider that the priority in force chooses."""

    def register_input_generator(self, fn: F) -> F:
        """Use ``fn`` to make inputs; returns ``fn``."""

    def __getattr__(self, name: str) -> Any:
        """Return what the op has under that name."""


@overload
def register_op(native: Callable[P, R], *, name: str | None = ...) -> PublicOp[P, R]: ...
@overload
def register_op(
    native: None = ...,
    *,
    name: str | None = ...,
    activations: Sequence[str] | None = ...,
    allow_inplace: bool = ...,
    batch_invariant: bool = ...,
    by_rows: bool = ...,
) -> Callable[[Callable[P, R]], PublicOp[P, R]]: ...
def register_op(
    native: Callable[P, R] | None = None,
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: bool = False,
    batch_invariant: bool = False,
    by_rows: bool = False,
) -> Any:
    """Register a native definition as an IR op and return its public function.

    ``@register_op``, ``@register_op(...)`` and ``register_op(function, ...)`` all work. The same function again is
    a no-op; the function of a reloaded module takes the place of its former self, and the public function stays.

    Args:
        native: the definition, with annotations; None returns a decorator.
        name: None takes the function's name.
        activations: parameters whose memory may be reused; None takes those that begin with ``x``.
        allow_inplace: adds ``.maybe_inplace(...)``, to which the activations are given away.
        batch_invariant: whether a row's bits of the native definition do not depend on the other rows.
        by_rows: whether ``VLLM_BATCH_INVARIANT=1`` runs it row by row: each activation and each result has a row for
            every row of the first activation.

    Raises: RegistrationError for a definition that no op can have; DuplicateError, showing both places, for a
        name in use. Nothing is registered then, in torch either.
    """

    def register(fn: Callable[..., Any]) -> Any:
        label = fn.__name__ if name is None else name
        with lock, journal.transaction():
            present = _present(label, fn)
            if present is not None:
                if present.native is not fn:
                    present.replace_native(fn, batch_invariant=batch_invariant)
                    namespace.publish(label, present.fn, fn)
                return present.fn
            op = IrOp(label, fn, activations=activations, allow_inplace=allow_inplace, batch_invariant=batch_invariant)
            if by_rows:
                op.impls[NATIVE].invariant = IrOpImpl(op, NATIVE, run_by_rows(op), batch_invariant=True, generation=-1)
            _ops.register(label, op, site=op.site)
            namespace.publish(label, op.fn, fn)
            return op.fn

    return register if native is None else register(native)


def _present(name: str, fn: Callable[..., object]) -> IrOp | None:
    """Return the op if ``fn`` is its definition, perhaps of a reloaded module; None if the name is free."""
    present = _ops.view.get(name)
    if present is None or present.native is fn:
        return present
    if not is_reload(present.native, fn):
        entry, owner = _ops.record_of(name), journal.current_owner()
        raise DuplicateError(
            f"Op '{name}' is already registered.",
            why=[f"registered at  {entry.where()}", f"again at       {site_of(fn)}" + (f"  {owner}" if owner else "")],
            remedy="give one of the two another name; to add an implementation of the op, use its register_impl.",
        )
    if schema_of(fn, f"op {name!r}") == present.schema:
        return present
    _ops.unregister(name)  # edited and loaded again with another schema: a new op
    return None


def unregister_op(name: str) -> None:
    """Take an op out of the registry, of torch and of the namespaces; UnknownNameError if there is none."""
    with lock:
        _ops.unregister(name)
