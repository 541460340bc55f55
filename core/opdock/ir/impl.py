"""A provider: one named implementation of an IR op, and what it declares."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opdock import journal
from opdock.ir import plan
from opdock.ir.cachekey import implementation_key
from opdock.ir.schema import NATIVE
from opdock.ir.signature import site_of

if TYPE_CHECKING:
    from opdock.ir.op import IrOp

logger = logging.getLogger("opdock")
Supported = bool | str | Callable[[], "bool | str"]


class IrOpImpl:
    """One implementation of an op.

    Args:
        op: the op.
        provider: its name.
        impl_fn: the function; it writes into the activations if ``inplace``.
        supported: whether it can run in this process; see ``IrOp.register_impl``.
        supports_args: the predicate, or None if it takes any arguments.
        inplace: whether it writes its results into the activations.
        functional: of one in place: what eager calls that keep their inputs run, instead of it on clones.
        batch_invariant: whether a row's bits do not depend on the other rows.
        generation: how many implementations of this name the op had before: part of the key of a plan.

    All of them are attributes, ``supports_args`` as ``predicate``; so are ``site`` (where it is defined) and
    ``owner`` (the distribution whose hook registered it, or None), and ``invariant``: what stands for it under
    ``VLLM_BATCH_INVARIANT=1``, another one for native definitions that run row by row there.
    """

    def __init__(
        self,
        op: IrOp,
        provider: str,
        impl_fn: Callable[..., Any],
        *,
        supported: Supported = True,
        supports_args: Callable[..., object] | None = None,
        inplace: bool = False,
        functional: Callable[..., Any] | None = None,
        batch_invariant: bool = False,
        generation: int = 0,
    ) -> None:
        """Hold a provider that has been checked."""
        self.op, self.provider, self.impl_fn = op, provider, impl_fn
        self.predicate, self._declared_support = supports_args, supported
        self.inplace, self.batch_invariant, self.generation = inplace, batch_invariant, generation
        self.functional, self.invariant = functional, self
        self.site, self.owner = site_of(impl_fn), journal.current_owner()

    def __repr__(self) -> str:
        return f"IrOpImpl({self.op.name!r}, {self.provider!r})"

    @property
    def key(self) -> str:
        """The name, marked if another implementation had it before."""
        return f"{self.provider}@{self.generation}" if self.generation else self.provider

    def where(self) -> str:
        """Return ``file:line`` and, where known, the distribution."""
        return f"{self.site}" + (f"  {self.owner}" if self.owner else "")

    @functools.cached_property
    def reason(self) -> str:
        """Why it cannot run in this process, "" if it can; found out once, when first asked for."""
        said: object = self._declared_support
        if callable(said):
            try:
                said = said()
            except Exception as err:  # noqa: BLE001 - a vendor's code: installed but broken is no reason to stop
                logger.warning(
                    "Op %s: provider %s is left out, its `supported` raised %s: %s (%s)",
                    self.op.name,
                    self.provider,
                    type(err).__name__,
                    err,
                    self.where(),
                )
                return f"`supported` raised {type(err).__name__}: {err}"
        if isinstance(said, str):
            return said or "declared unsupported"
        return "" if said else "declared unsupported"

    @property
    def supported(self) -> bool:
        """Whether it can run in this process at all."""
        return not self.reason

    @property
    def supports_all_args(self) -> bool:
        """Whether it takes any arguments."""
        return self.predicate is None

    def supports_args(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether it takes these arguments."""
        return self.predicate is None or plan.is_yes(self.predicate(*args, **kwargs))

    @functools.cached_property
    def func_impl_fn(self) -> Callable[..., Any]:
        """The implementation with functional semantics: an in-place one works on clones of the activations."""
        return plan.functional(self.op.layout, self.impl_fn, self.op.activations) if self.inplace else self.impl_fn

    @property
    def keeping_fn(self) -> Callable[..., Any]:
        """What an eager call runs that keeps its inputs; compiled code has clones, and removes those that it can."""
        return self.functional or self.func_impl_fn

    @property
    def is_native(self) -> bool:
        """Whether it is the native definition."""
        return self.provider == NATIVE

    def uuid(self) -> str:
        """Return a key over all source that it depends on; equal in every process with the same source."""
        return implementation_key(self.impl_fn, self.predicate)
