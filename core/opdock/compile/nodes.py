"""Finding the IR ops in a traced graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from opdock import ir
from opdock.errors import OpdockError
from opdock.ir.torch_op import NAMESPACE

_FRAME = re.compile(r'File "(.+)", line (\d+), in .*\n(.*)')


class LoweringError(OpdockError, RuntimeError):
    """A graph cannot be lowered: a provider does not keep its promises, or an op has no provider any more."""


class DonationError(OpdockError, ValueError):
    """Something is used after its memory was given to ``maybe_inplace``."""


@dataclass(frozen=True)
class Call:
    """A call of an IR op in a graph.

    Args:
        node: the node.
        op: the op.
        donates: whether it is a call of ``maybe_inplace``.
    """

    node: fx.Node
    op: ir.IrOp
    donates: bool

    @property
    def arguments(self) -> dict[str, Any]:
        """Every argument by its name, defaults too; a node for each tensor."""
        bound = self.op.signature.bind(*self.node.args, **self.node.kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    @property
    def activations(self) -> list[fx.Node]:
        """What the call may overwrite if it donates."""
        given = self.arguments
        return [given[name] for name in self.op.activations if isinstance(given[name], fx.Node)]


def calls_in(graph: fx.Graph) -> Iterator[Call]:
    """Yield the calls of IR ops, in order.

    Raises: LoweringError for a call of an op that was unregistered after the code was traced.
    """
    by_overload = _overloads()
    for node in graph.nodes:
        if node.op == "call_function" and getattr(node.target, "namespace", None) == NAMESPACE:
            if node.target not in by_overload:
                raise LoweringError(
                    f"The graph calls {node.target}, and no registered IR op has that torch op.",
                    who=where(node),
                    why="The op was unregistered, or registered again with another schema, after the code was traced.",
                    remedy="register the op, and compile again after torch.compiler.reset().",
                )
            yield Call(node, *by_overload[node.target])


def find_call(node: fx.Node) -> Call | None:
    """Return the call of an IR op that a node is, if it is one."""
    if node.op != "call_function" or getattr(node.target, "namespace", None) != NAMESPACE:
        return None
    found = _overloads().get(node.target)
    return Call(node, *found) if found else None


def _overloads() -> Mapping[Any, tuple[ir.IrOp, bool]]:
    found: dict[Any, tuple[ir.IrOp, bool]] = {}
    for op in tuple(ir.registry.values()):
        found[op.torch_ops.default] = op, False
        if op.torch_ops.maybe_inplace is not None:
            found[op.torch_ops.maybe_inplace] = op, True
    return found


def several(results: Any) -> list[Any]:
    """Return what a call returns as a list: one value, or the items of a tuple."""
    return list(results) if isinstance(results, tuple | list) else [results]


def is_mutable(node: fx.Node) -> bool:
    """Return whether a node is known to write: by its schema, or as a Triton kernel's."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable) or (
        getattr(node.target, "__name__", "") == "triton_kernel_wrapper_mutation"
    )


def value_of(node: fx.Node) -> Any:
    """Return the fake value of a node, of Dynamo's graph or of AOTAutograd's."""
    return node.meta.get("val", node.meta.get("example_value"))


def where(node: fx.Node) -> list[str]:
    """Return the user's line that a node comes from, for messages; its name alone if the tracer did not keep it."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    frames = [f for f in frames if not f[0].startswith("<")]  # the generated functions of ops
    if not frames:
        return [f"node {node.name}"]
    file, line, code = frames[-1]
    return [f"{node.name}  {file}:{line}  {code.strip()}"]
