"""Steps of single tokens started again: pointers differ from step to step, all else was worked out before.

A launch is kept by what its arguments depend on, pointers aside; these must be at multiples of 16 bytes, as memory of
torch's is, or the launch goes the long way.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch import Tensor

from opdock.nn.attention.impl import AttentionSpec
from opdock.nn.attention.metadata import AttentionMetadata
from opdock.nn.kernels.triton.attention_tuning import LENGTHS
from opdock.nn.kernels.triton.relaunch import Again, allowed

MOST: Final = 1024
"""Launches that are kept for one kind of layer."""

Key: TypeAlias = tuple[Any, ...]
Plan = TypeVar("Plan")


@dataclass(frozen=True)
class DecodePlan:
    """A launch but for its pointers.

    Attributes:
        again: starts the compiled kernel.
        grid: its programs.
        behind: arguments behind the pointers, constants included.
        elements: float32 numbers of all splits' parts and of their sums; 0: there is one split.
        sums_at: bytes from the parts to the sums.
        counts: counters of ended splits.
    """

    again: Again
    grid: tuple[int, int, int]
    behind: tuple[Any, ...]
    elements: int = 0
    sums_at: int = 0
    counts: int = 0


class Counters:
    """The numbers of ended splits, 0 between calls, and the launches that are kept.

    The numbers belong to one layer, whose calls follow one another; launches are shared by layers of one kind. Captured
    graphs go on using the numbers that they were captured with: these are never freed while the layer lives.
    """

    def __init__(self) -> None:
        """Begin without."""
        self._held: Tensor | None = None
        self._older: list[Tensor] = []
        self._spec: AttentionSpec | None = None
        self._plans: dict[Key, DecodePlan] = {}
        self._there = (0, -1, 0)

    def of(self, count: int, device: torch.device) -> Tensor:
        """Return at least ``count`` zeros.

        Where more are needed while a graph is captured, they are of that graph: it sets them to 0 in each replay.
        """
        held = self._held
        if held is not None and held.shape[0] >= count and held.device == device:
            return held
        least = 4096 if held is None else max(4096, 2 * held.shape[0])  # doubled: few are ever left behind
        made = torch.zeros(max(count, least), dtype=torch.int32, device=device)
        if made.is_cuda and torch.cuda.is_current_stream_capturing():
            self._older.append(made)  # 0 in replays only: no call outside the graph may use them
            return made
        if held is not None:
            self._older.append(held)
        self._held = made
        self._there = made.shape[0], made.get_device(), made.data_ptr()
        return made

    def at(self, count: int, query: Tensor, index: int) -> int:
        """Return where at least ``count`` zeros are, on the device of that index, which is the query's."""
        there, device, pointer = self._there
        return pointer if there >= count and device == index else self.of(count, query.device).data_ptr()

    def plans(self, spec: AttentionSpec) -> dict[Key, DecodePlan]:
        """Return the launches that are kept for such layers."""
        if spec is not self._spec:
            self._spec, self._plans = spec, _plans.setdefault(spec, {})
        return self._plans


_plans: dict[AttentionSpec, dict[Key, DecodePlan]] = {}


def start_again(
    kernel: Any,
    counters: Counters,
    spec: AttentionSpec,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    output: Tensor,
    others: tuple[Tensor | None, ...],
    *facts: object,
) -> tuple[bool, Key | None]:
    """Start the launch for single tokens if one like it is kept.

    Args:
        kernel: the one of single tokens.
        counters: of the layer.
        spec: of the layer.
        query: of the step, on the current device.
        key_cache: of the layer.
        value_cache: of the layer.
        metadata: of the step.
        output: of the step; written.
        others: of the layer: scales, slopes and sinks.
        facts: what else the launch depends on.

    Returns: whether it was started, and under which key it is to be kept if not; None: it cannot be.
    """
    index = query.get_device()
    if index < 0 or metadata.max_query_len > 1 or not allowed(kernel):
        return False, None
    step = metadata.__dict__.get(_STEP)
    if step is None or step[0] != id(metadata):
        step = _step_of(metadata)
    _, table, starts, lens, bits, of_step = step
    at_output, at_query = output.data_ptr(), query.data_ptr()
    at_keys, at_values = key_cache.data_ptr(), value_cache.data_ptr()
    at_others = [None if t is None else t.data_ptr() for t in others]
    for pointer in at_others:
        bits |= pointer or 0
    if (bits | at_output | at_query | at_keys | at_values) & 15:
        return False, None
    key = (
        of_step,
        index,
        query.stride(),
        output.stride(),
        key_cache.stride(),
        value_cache.stride(),
        key_cache.shape[1],
        query.dtype,
        output.dtype,
        key_cache.dtype,
        value_cache.dtype,
        output.get_device(),
        key_cache.get_device(),
        value_cache.get_device(),
        *[t if t is None else (t.dtype, t.get_device()) for t in others],
        *facts,
    )
    plan = counters.plans(spec).get(key)
    if plan is None:
        return False, key
    pointers = at_output, at_query, at_keys, at_values, table, starts, lens, *at_others
    if not plan.elements:
        plan.again(*plan.grid, index, *pointers, None, None, None, *plan.behind)
    else:
        parts = torch.empty(plan.elements, dtype=torch.float32, device=query.device)
        at, counter = parts.data_ptr(), counters.at(plan.counts, query, index)
        plan.again(*plan.grid, index, *pointers, at, at + plan.sums_at, counter, *plan.behind)
    return True, key


_STEP: Final = "_opdock_again"


def _step_of(metadata: AttentionMetadata) -> tuple[int, int, int, int, int, Key]:
    """Return whose it is, where a step's tensors are, all bits of that, and what launches depend on.

    It is kept with the metadata, which layers share; a copy of that has tensors of its own, and is told by its id.
    """
    table, starts, lens = metadata.block_table, metadata.query_start_loc, metadata.seq_lens
    places = table.data_ptr(), starts.data_ptr(), lens.data_ptr()
    key = (
        lens.shape[0],
        metadata.num_tokens,
        -(-metadata.max_seq_len // LENGTHS),
        table.stride(0),
        *[(t.dtype, t.get_device()) for t in (table, starts, lens)],
    )
    found = (id(metadata), *places, places[0] | places[1] | places[2], key)
    metadata.__dict__[_STEP] = found
    return found


def pointers_of(*tensors: Tensor | None) -> list[int | None] | None:
    """Return where tensors are, None for one that is not there; None for all if one is at no multiple of 16 bytes."""
    found: list[int | None] = []
    bits = 0
    for tensor in tensors:
        if tensor is None:
            found.append(None)
        else:
            pointer = tensor.data_ptr()
            bits |= pointer
            found.append(pointer)
    return None if bits & 15 else found


def keep(plans: dict[Key, Plan], key: Key, plan: Plan) -> None:
    """Keep a launch; where there are too many, the others are forgotten."""
    if len(plans) >= MOST:
        plans.clear()
    plans[key] = plan
