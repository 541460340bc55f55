"""A provider: one named implementation of an IR op."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opdock import journal
from opdock.ir.cachekey import source_key
from opdock.ir.signature import unwrap

if TYPE_CHECKING:
    from opdock.ir.op import IrOp

Supported = bool | str | Callable[[], "bool | str"]
NATIVE = "native"


class IrOpImpl:
    """One implementation of an op, with what it declares.

    Attributes: ``op``, ``provider``, ``impl_fn`` (writes its activations when ``inplace``), ``func_impl_fn``
    (never does), ``inplace``, ``batch_invariant``, ``site`` (where it is defined), ``owner``.
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
        batch_invariant: bool = False,
    ) -> None:
        """Hold a provider that has been checked."""
        self.op, self.provider, self.impl_fn = op, provider, impl_fn
        self._supported, self._supports_args = supported, supports_args
        self.inplace, self.batch_invariant = inplace, batch_invariant
        self.site, self.owner = journal.Site.of(unwrap(impl_fn)), journal.current_owner()

    def __repr__(self) -> str:
        return f"IrOpImpl({self.op.name!r}, {self.provider!r})"

    @functools.cached_property
    def reason(self) -> str:
        """Why it cannot run in this process, "" if it can; found out once, when first asked for."""
        said = self._supported() if callable(self._supported) else self._supported
        return said if isinstance(said, str) else "" if said else "supported=False, no reason given"

    @property
    def supported(self) -> bool:
        """Whether it can run in this process at all."""
        return not self.reason

    @property
    def supports_all_args(self) -> bool:
        """Whether it takes any arguments."""
        return self._supports_args is None

    @property
    def predicate(self) -> Callable[..., object] | None:
        """The function that says whether it takes given arguments, as it was registered."""
        return self._supports_args

    def supports_args(self, *args: Any, **kwargs: Any) -> bool:
        """Return whether it takes these arguments."""
        return not self.refusal(*args, **kwargs)

    def refusal(self, *args: Any, **kwargs: Any) -> str:
        """Return why it does not take these arguments, or ""."""
        if self._supports_args is None:
            return ""
        said = self._supports_args(*args, **kwargs)
        return (
            said
            if isinstance(said, str)
            else ""
            if said
            else f"supports_args said no ({journal.Site.of(self._supports_args)})"
        )

    @functools.cached_property
    def func_impl_fn(self) -> Callable[..., Any]:
        """The implementation with functional semantics: activations are cloned for an in-place one."""
        if not self.inplace:
            return self.impl_fn
        signature, activations, run = self.op.signature, self.op.activations, self.impl_fn

        @functools.wraps(run)
        def functional(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            for name in activations:
                if bound.arguments.get(name) is not None:
                    bound.arguments[name] = bound.arguments[name].clone()
            return run(*bound.args, **bound.kwargs)

        return functional

    def uuid(self) -> str:
        """Return a key that changes with the source that the implementation depends on."""
        return source_key(self.impl_fn)
