"""The torch ops behind an IR op: what traced code calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

NAMESPACE = "opdock_ir"


class TorchOps:
    """The overloads of one op, in a library of its own so that they can be taken back alone.

    Both overloads have the functional schema. For ``maybe_inplace`` that is on purpose: any backend may run it,
    and only a lowering pass reads its name as "the activations are dead afterwards".

    Args:
        name: of the op.
        schema: without the name.
        run: runs a call that reached the dispatcher.
        fake: runs it on fake tensors.
        allow_inplace: define ``maybe_inplace`` too.
    """

    def __init__(
        self, name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any], *, allow_inplace: bool
    ) -> None:
        """Define the overloads; if that fails, nothing stays."""
        # Refused here, a schema leaves no trace in torch.
        torch._C.parse_schema(name + schema)
        self.library = Library(NAMESPACE, "FRAGMENT")
        try:
            for qualname in (name, f"{name}.maybe_inplace") if allow_inplace else (name,):
                self.library.define(qualname + schema)
                # CompositeExplicitAutograd: one kernel for every device, which AOTAutograd keeps as one node.
                self.library.impl(qualname, run, "CompositeExplicitAutograd")
                torch.library.register_fake(f"{NAMESPACE}::{qualname}", fake, lib=self.library)
            packet = getattr(getattr(torch.ops, NAMESPACE), name)
            self.default: torch._ops.OpOverload = packet.default
            self.maybe_inplace: torch._ops.OpOverload | None = packet.maybe_inplace if allow_inplace else None
        except BaseException:
            self.destroy()
            raise

    def destroy(self) -> None:
        """Take the overloads out of torch; the name may be defined again."""
        self.library._destroy()
