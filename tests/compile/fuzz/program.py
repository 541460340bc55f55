"""A random program, and which memory its values occupy."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from opdock import ir


@dataclass(frozen=True)
class InputSpec:
    """A float input: dense, with its dimensions stored in reverse if ``turned``."""

    shape: tuple[int, ...]
    turned: bool = False

    def empty(self) -> Tensor:
        """Return a tensor without defined contents, fake inside a fake mode."""
        if not self.turned:
            return torch.empty(self.shape)
        return torch.empty(self.shape[::-1]).permute(*reversed(range(len(self.shape))))

    def random(self, generator: torch.Generator) -> Tensor:
        """Return small multiples of a half: their sums and products are exact."""
        return self.empty().copy_(torch.randint(-4, 5, self.shape, generator=generator) / 2)


@dataclass
class Program:
    """A graph with fake values; ``misuse`` says how it breaks the rule of donation, "" if it does not."""

    seed: int
    graph: fx.Graph
    root: nn.Module
    inputs: Sequence[InputSpec]
    priorities: Mapping[str, Sequence[str]] = field(default_factory=dict)
    misuse: str = ""

    def module(self) -> fx.GraphModule:
        """Return a module of its own with a copy of the graph, its constants and its fake values."""
        graph = fx.Graph()
        copied: dict[fx.Node, fx.Node] = {}
        graph.output(graph.graph_copy(self.graph, copied))
        for old, new in copied.items():
            new.meta = dict(old.meta)
        root = nn.Module()
        for name, constant in self.root.named_buffers():
            root.register_buffer(name, constant.clone())
        return fx.GraphModule(root, graph)

    def tensors(self, salt: int = 0) -> list[Tensor]:
        """Return inputs, the same for the same salt."""
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        return [spec.random(generator) for spec in self.inputs]

    @contextlib.contextmanager
    def chosen(self) -> Iterator[None]:
        """Have the program's priorities in force."""
        with contextlib.ExitStack() as stack:
            for name, names in self.priorities.items():
                stack.enter_context(ir.registry[name].set_priority(list(names)))
            yield

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, inputs {list(self.inputs)}, misuse {self.misuse!r}"]
        lines += [f"  {name}: {', '.join(names)}" for name, names in self.priorities.items()]
        return "\n".join([*lines, str(self.graph)])


def storage_of(value: Tensor) -> int:
    """Return which storage a tensor, fake or real, lives in."""
    return value.untyped_storage()._cdata


def cells(value: Tensor) -> int:
    """Return the elements of its storage that a tensor occupies, as the bits of a number.

    Spans are not enough: the columns of a matrix interleave, and do not overlap.
    """
    found = 0
    steps = [[i * stride for i in range(size)] for size, stride in zip(value.shape, value.stride(), strict=True)]
    for offsets in itertools.product(*steps):
        found |= 1 << (int(value.storage_offset()) + sum(offsets))
    return found


def overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors share an element."""
    return storage_of(a) == storage_of(b) and bool(cells(a) & cells(b))


def overlaps_itself(value: Tensor) -> bool:
    """Return whether two indices lead to one element."""
    return cells(value).bit_count() < value.numel()


def tensors_in(value: object) -> list[Tensor]:
    """Return the tensors in a fake value or an argument."""
    if isinstance(value, Tensor):
        return [value]
    return [t for part in value for t in tensors_in(part)] if isinstance(value, tuple | list) else []


def val(node: fx.Node) -> Tensor:
    """Return the fake value of a node."""
    value: Tensor = node.meta["val"]
    return value


def nodes_in(*args: object) -> list[fx.Node]:
    """Return the nodes in arguments, in order and with repetitions."""
    found: list[fx.Node] = []
    fx.map_arg(args, found.append)
    return found


def op_of(node: fx.Node) -> ir.op.IrOp | None:
    """Return the IR op that a node calls."""
    if node.op != "call_function" or getattr(node.target, "namespace", None) != "opdock_ir":
        return None
    ops = ir.registry.values()
    return next(op for op in ops if node.target in (op.torch_ops.default, op.torch_ops.maybe_inplace))


def given_by(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that a node gives away."""
    op = op_of(node)
    if op is None or node.target is not op.torch_ops.maybe_inplace:
        return []
    bound = op.signature.bind(*node.args, **node.kwargs).arguments
    return nodes_in([bound[name] for name in op.activations])


def written_by(node: fx.Node) -> list[fx.Node]:
    """Return the nodes that a node writes, by its schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    bound = list(zip(schema.arguments, node.args, strict=False))
    bound += [(a, node.kwargs[a.name]) for a in schema.arguments if a.name in node.kwargs]
    return [n for argument, value in bound if argument.is_write for n in nodes_in(value)]


def first_misuse(graph: fx.Graph) -> tuple[fx.Node, fx.Node] | None:
    """Return a node and what it uses after it was given away, or gives away and reads, or None if there is none."""
    gone: list[Tensor] = []
    for node in graph.nodes:
        for used in nodes_in(node.args, node.kwargs):
            if any(overlap(t, dead) for t in tensors_in(used.meta.get("val")) for dead in gone):
                return node, used
        given = given_by(node)
        for one in given:
            used_too = nodes_in(node.args, node.kwargs)
            used_too.remove(one)
            if any(overlap(val(one), t) for n in used_too for t in tensors_in(n.meta.get("val"))):
                return node, one
        gone += [val(n) for n in given]
    return None
