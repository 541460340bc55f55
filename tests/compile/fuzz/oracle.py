"""Run programs, by the definitions of the ops or as compiled, and compare all that a caller could notice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from fuzz.program import cells, given_by, storage_of, val
from opdock import ir

PADDED = (torch.ops.aten.copy.default, torch.ops.aten.slice_scatter.default)
"""Functional ops that keep the storage offset of their first argument, and whose fake results do not."""


@dataclass(frozen=True)
class Run:
    """What one run left behind.

    Args:
        outputs: as returned, in their memory.
        inputs: the caller's tensors after the run.
        constants: of the module, after the run.
    """

    outputs: Sequence[Tensor]
    inputs: Sequence[Tensor]
    constants: Mapping[str, Tensor]

    def aliases(self, free: Sequence[int]) -> set[tuple[str, int, object]]:
        """Return the pairs of an output and what shares an element with it that is not ``free`` in an input."""
        masks = [(storage_of(t), cells(t)) for t in self.outputs]
        found: set[tuple[str, int, object]] = set()
        for i, (storage, mask) in enumerate(masks):
            found |= {("output", i, j) for j, (s, m) in enumerate(masks[:i]) if s == storage and m & mask}
            for j, t in enumerate(self.inputs):
                if storage_of(t) == storage and cells(t) & mask & ~free[j]:
                    found.add(("input", i, j))
            found |= {("constant", i, n) for n, t in self.constants.items() if storage_of(t) == storage}
        return found


class Definitions(fx.Interpreter):
    """Runs a graph node by node: IR ops by their definitions, which write nothing.

    ``free`` has, for each input, the elements that the program gives away.
    """

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Tensor]) -> None:
        super().__init__(module)
        self._natives = {}
        for op in ir.registry.values():
            for overload in (op.torch_ops.default, op.torch_ops.maybe_inplace):
                self._natives[overload] = op.native
        self._number = {storage_of(t): i for i, t in enumerate(inputs)}
        self.free = [0] * len(inputs)

    def run_node(self, n: fx.Node) -> Any:
        """Note what is given away, then run the node."""
        for given in given_by(n):
            value = self.env[given]
            number = self._number.get(storage_of(value))
            if number is not None:
                self.free[number] |= cells(value)
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call the definition in place of an IR op."""
        return super().call_function(self._natives.get(target) or target, args, kwargs)


def run_definitions(module: fx.GraphModule, inputs: Sequence[Tensor]) -> tuple[Run, list[int]]:
    """Return what a program means, and what it gives away of each input."""
    interpreter = Definitions(module, inputs)
    with torch.no_grad():
        outputs = interpreter.run(*inputs)
    return Run(outputs, inputs, dict(module.named_buffers())), interpreter.free


def run_compiled(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Run:
    """Run a module as it is."""
    with torch.no_grad():
        outputs = module(*inputs)
    return Run(outputs, inputs, dict(module.named_buffers()))


def compare(want: Run, got: Run, free: Sequence[int], *, donated: set[int] | None = None, close: bool = False) -> str:
    """Return what differs, "" if nothing that counts does.

    Args:
        want: the run by the definitions.
        got: the run of what was compiled.
        free: for each input the elements that were given away, and may hold anything.
        donated: inputs that may be overwritten; None means that the compiler did not say.
        close: allow differences of rounding, as between Inductor and eager; layouts are not compared then.
    """
    if not all(same(a, b, close=close) for a, b in zip(want.outputs, got.outputs, strict=True)):
        return "values"
    if not close and any(steps(a) != steps(b) for a, b in zip(want.outputs, got.outputs, strict=True)):
        return "strides"
    for i, (a, b) in enumerate(zip(want.inputs, got.inputs, strict=True)):
        if not same(*(_without(t, free[i]) for t in (a, b)), close=close):
            return "input written"
        if donated is not None and i in donated and cells(a) & ~free[i]:
            return "donated too much"
        if donated is not None and i not in donated and not same(a, b, close=close):
            return "written without saying so"
    if not all(same(a, got.constants[name], close=close) for name, a in want.constants.items()):
        return "constant written"
    new = got.aliases(free) - want.aliases(free)
    return f"shares memory with {min(new)[0]}" if new else ""


def steps(value: Tensor) -> list[int]:
    """Return the strides that lead anywhere: eager, tracing and in-place kernels differ for a dimension of size 1."""
    return [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size != 1]


def same(a: Tensor, b: Tensor, *, close: bool = False) -> bool:
    """Return whether sizes, dtypes and bits are equal; NaN is NaN, whatever its bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if close:
        return torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
    if not a.is_floating_point():
        return torch.equal(a, b)
    bits = a.contiguous().view(torch.int32) == b.contiguous().view(torch.int32)
    return bool((bits | (a.isnan() & b.isnan())).all())


def _without(value: Tensor, free: int) -> Tensor:
    """Return an input with zeros for what was given away; an input starts at its storage, and has all of it."""
    if not free:
        return value
    flat = torch.as_strided(value, (value.numel(),), (1,)).clone()
    flat[[bool(free >> i & 1) for i in range(value.numel())]] = 0
    return flat


def wrong_fakes(module: fx.GraphModule, inputs: Sequence[Tensor]) -> str:
    """Return the first node whose fake value is not like its real one; passes that run later rely on them.

    The layouts have to be equal, and two values have to share a real storage exactly if they share a fake one.
    """
    real: dict[fx.Node, Tensor] = {}

    class Watch(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, Tensor):
                real[n] = result
            return result

    with torch.no_grad():
        Watch(module, garbage_collect_values=False).run(*inputs)
    fakes: dict[int, int] = {}
    reals: dict[int, int] = {}
    padded = {storage_of(t) for n, t in real.items() if n.target in PADDED}
    for node, value in real.items():
        if "val" not in node.meta:
            return f"{node} has none"
        fake = val(node)
        offset = value.storage_offset()
        if (fake.shape, steps(fake)) != (value.shape, steps(value)) or (
            fake.storage_offset() != offset and storage_of(value) not in padded
        ):
            return f"layout of {node}"
        if value.numel() == 0:
            continue
        f, r = storage_of(fake), storage_of(value)
        if fakes.setdefault(f, r) != r or reals.setdefault(r, f) != f:
            return f"storage of {node}"
    return ""
