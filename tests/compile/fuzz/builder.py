"""A graph under construction: what a step may read, write and give away."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fuzz.program import InputSpec, cells, given_by, nodes_in, overlap, overlaps_itself, storage_of, tensors_in, val

aten = torch.ops.aten
SHAPES = ((4, 6), (6, 4), (24,), (2, 3, 4), (4, 8), (8, 4), (4, 4), (1, 4))
MAX_CELLS = 200


class Builder:
    """Adds nodes with fake values to ``graph``; what was given away is never offered again.

    Args:
        seed: of every choice.
        hops: also make functionalised higher-order ops, which only a graph after Inductor's own passes has.
    """

    def __init__(self, seed: int, *, hops: bool = True) -> None:
        self.random, self.hops, self.mode = random.Random(seed), hops, FakeTensorMode()
        self.graph, self.root = fx.Graph(), nn.Module()
        self.values: list[fx.Node] = []
        self.gone: list[fx.Node] = []
        self.inputs: list[InputSpec] = []
        self.read_only = self.chance(0.7)  # most programs do not write their inputs directly
        self._fixed: set[int] = set()
        shapes = self.random.sample(SHAPES, 2)
        for i in range(self.random.randint(2, 4)):
            spec = InputSpec(self.random.choice(shapes), turned=self.chance(0.15))
            self.inputs.append(spec)
            self._own(self.graph.placeholder(f"arg{i}_1"), spec.empty)
        if self.chance(0.3):
            shape = self.random.choice(shapes)
            self.values.append(self.constant("c0", lambda: torch.randint(-4, 5, shape).float() / 2))

    def chance(self, probability: float) -> bool:
        """Return True that often."""
        return self.random.random() < probability

    def _own(self, node: fx.Node, make: Callable[[], Tensor]) -> None:
        with self.mode:
            node.meta["val"] = make()
        self._fixed.add(storage_of(val(node)))
        self.values.append(node)

    def constant(self, name: str, make: Callable[[], Tensor]) -> fx.Node:
        """Return the node of a constant, which is made if there is none of that name."""
        present = [n for n in self.graph.nodes if n.op == "get_attr" and n.target == name]
        if present:
            return present[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random.randrange(1 << 30))
            self.root.register_buffer(name, made := make())
        last = [n for n in self.graph.nodes if n.op == "placeholder"][-1]
        with self.graph.inserting_after(last):
            node = self.graph.get_attr(name)
        with self.mode:
            node.meta["val"] = torch.empty(made.shape, dtype=made.dtype)
        self._fixed.add(storage_of(val(node)))
        return node

    def call(self, target: Any, *args: Any, add: bool = True, **kwargs: Any) -> fx.Node | None:
        """Add a call, and its result to the values; None if torch refuses the arguments."""
        node = self.graph.call_function(target, args, kwargs)
        fake_args, fake_kwargs = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        try:
            with self.mode:
                node.meta["val"] = target(*fake_args, **fake_kwargs)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            self.graph.erase_node(node)
            return None
        if any(cells(t).bit_length() > MAX_CELLS for t in tensors_in(node.meta["val"])):
            self.graph.erase_node(node)
            return None
        self.gone += given_by(node)
        if add and isinstance(node.meta["val"], Tensor):
            self.values.append(node)
        return node

    def unpack(self, node: fx.Node | None, indices: Sequence[int]) -> None:
        """Add some of the results of a node that has several."""
        import operator

        for i in indices if node is not None else ():
            self.call(operator.getitem, node, i)

    # -- what may be used

    def alive(self) -> list[fx.Node]:
        """Return the values of which nothing was given away."""
        return [n for n in self.values if not any(overlap(val(n), val(g)) for g in self.gone)]

    def pick(
        self, shape: tuple[int, ...] | None = None, where: Callable[[Tensor], bool] | None = None
    ) -> fx.Node | None:
        """Return a value to read, rather a late one; None if there is none such."""
        pool = [n for n in self.alive() if shape is None or tuple(val(n).shape) == shape]
        pool = [n for n in pool if val(n).is_floating_point() and (where is None or where(val(n)))]
        if not pool:
            return None
        return self.random.choice(pool[-10:] if self.chance(0.7) else pool)

    def writable(self, node: fx.Node) -> bool:
        """Return whether the program may write this value."""
        fixed = self.read_only and storage_of(val(node)) in self._fixed
        return not fixed and val(node).numel() > 0 and not overlaps_itself(val(node))

    def pick_target(self, shape: tuple[int, ...] | None = None) -> fx.Node | None:
        """Return a value to write, rather a clone or what comes from one."""
        pool = [n for n in self.alive() if self.writable(n) and (shape is None or tuple(val(n).shape) == shape)]
        if not pool:
            return None
        clones = [n for n in pool if n.target is aten.clone.default]
        return self.random.choice(clones if clones and self.chance(0.6) else pool[-8:])

    def can_give(self, given: Sequence[fx.Node], args: Sequence[Any]) -> bool:
        """Return whether a call with these arguments may give some of them away: each alone in its memory."""
        used = nodes_in(args)
        constants = {storage_of(val(n)) for n in self.graph.nodes if n.op == "get_attr"}
        if any(storage_of(val(g)) in constants for g in given):  # what belongs to a module is not given away
            return False
        return not any(overlaps_itself(val(g)) for g in given) and not any(
            overlap(val(g), val(n)) for g in given for n in used if n is not g or used.count(n) > 1
        )
