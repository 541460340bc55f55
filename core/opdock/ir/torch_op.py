"""The torch ops behind an IR op: what traced code calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from opdock.errors import OrderError

NAMESPACE = "opdock_ir"


class TorchOps:
    """The overloads of one op.

    Both have the functional schema. For ``maybe_inplace`` that is on purpose: any backend may run it, and only a
    lowering pass reads its name as "the activations are dead afterwards".

    What is defined once stays in torch, and serves the next op of the same name and schema: torch keeps a pointer to
    one of two overloads with equal types after both are destroyed, and crashes on the next look-up of the name; so
    does whoever still holds an overload and calls it. (torch 2.13, ``deregisterOperator``)
    """

    def __init__(self, qualname: str, schema: str, *, allow_inplace: bool) -> None:
        """Define the overloads, or nothing if torch refuses one; ``acquire`` is what makes these."""
        torch._C.parse_schema(qualname + schema)  # refused here, a schema leaves no trace
        self.schema, self.run, self.fake = schema, self._gone, self._gone
        self.qualname, self.in_use = f"{NAMESPACE}::{qualname}", False
        self._library = Library(NAMESPACE, "FRAGMENT")
        names = (qualname, f"{qualname}.maybe_inplace") if allow_inplace else (qualname,)
        for name in names:
            self._library.define(name + schema)
            # CompositeExplicitAutograd: one kernel for every device, which AOTAutograd keeps as one node.
            self._library.impl(name, self._run, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{NAMESPACE}::{name}", self._fake, lib=self._library)
        packet = getattr(getattr(torch.ops, NAMESPACE), qualname)
        self.default: torch._ops.OpOverload[..., Any] = packet.default
        self.maybe_inplace: torch._ops.OpOverload[..., Any] | None = packet.maybe_inplace if allow_inplace else None

    @classmethod
    def acquire(cls, name: str, schema: str, *, allow_inplace: bool) -> TorchOps:
        """Return the torch ops for an op: those of a former op with this schema, or new ones.

        They are called ``name``, unless another schema has that name in torch already: then ``name_v2``, and so on.
        """
        version = 1
        while True:
            qualname = name if version == 1 else f"{name}_v{version}"
            made = _defined.get(qualname)
            if made is None:
                made = _defined[qualname] = cls(qualname, schema, allow_inplace=allow_inplace)
            if not made.in_use and made.schema == schema and allow_inplace == (made.maybe_inplace is not None):
                made.in_use = True
                return made
            version += 1

    def bind(self, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
        """Let ``run`` take the calls that reach the dispatcher, and ``fake`` those on fake tensors."""
        self.run, self.fake = run, fake

    def release(self) -> None:
        """Refuse calls until another op takes this over."""
        self.run, self.fake, self.in_use = self._gone, self._gone, False

    def _run(self, *args: Any) -> Any:
        return self.run(*args)

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        return self.fake(*args, **kwargs)

    def _gone(self, *_: Any, **__: Any) -> Any:
        raise OrderError(
            f"{self.qualname} was taken back: its IR op is not registered any more.",
            remedy="register the op again, or drop the code that was compiled with it.",
        )


_defined: dict[str, TorchOps] = {}
