"""Kernels allocate what they return: the memory around it is of a known pattern, which is looked at behind the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_table import ROW_OPS, STATIC_SCALE, RowOp, Values, faults
from torch import Tensor

from opdock import ir

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "registered")]
DEVICE = "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MIB = 1 << 20
PATTERN = 0x7F
BLOCKS = (MIB, MIB, 20 * MIB)
"""All of the two segments from which torch serves small allocations, up to 1 MiB, and larger ones."""


def blocks() -> list[Tensor]:
    return [torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in BLOCKS]


def touched_beside(call: Callable[[], tuple[Tensor, ...]], check: Callable[[tuple[Tensor, ...]], None]) -> str:
    """Run a call on memory of a pattern; return what is wrong with the memory that it did not get, "" if nothing."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        made = blocks()
        starts = [block.fill_(PATTERN).data_ptr() for block in made]
        del made
        results = call()
        extents = [(r.data_ptr(), r.numel() * r.element_size()) for r in results]
    check(results)
    del results
    with torch.cuda.use_mem_pool(pool):
        made = blocks()
    if [block.data_ptr() for block in made] != starts:
        return "the allocator gave other memory: nothing can be said"
    for address, size in extents:
        inside = [b for b, start in zip(made, starts, strict=True) if start <= address < start + b.numel()]
        if not inside and size:
            return "a result lies in memory that is not known: nothing can be said"
        for block, start in zip(made, starts, strict=True):
            low, high = max(address, start) - start, min(address + size, start + block.numel()) - start
            if low < high:
                block[low:high].fill_(PATTERN)
    return "".join(
        f"{int((b != PATTERN).sum())} bytes, first at {int((b != PATTERN).nonzero()[0])}; "
        for b in made
        if not bool((b == PATTERN).all())
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("op", [op for op in ROW_OPS if not op.in_place], ids=lambda o: f"{o.op}-{o.kind}")
def test_nothing_beside_the_results_is_written(op: RowOp, dtype: torch.dtype) -> None:
    for hidden in (1, 46, 80, 769, 3420, 4096):
        values = Values.random(op, 65, hidden, dtype, DEVICE)
        scale = torch.full((1,), STATIC_SCALE, device=DEVICE) if op.out == "static" else None
        for tokens in (1, 3, 65):
            residual = None if values.residual is None else values.residual[:tokens]
            arguments = op.arguments(values.x[:tokens], residual, values.weight, scale)
            for provider in ("cuda", "triton"):
                impl = ir.registry[op.op].impls[provider]
                if provider == "triton" and (hidden not in (46, 4096) or not impl.supported):
                    continue

                def call(arguments: tuple[Any, ...] = arguments, impl: Any = impl) -> tuple[Tensor, ...]:
                    got = impl.impl_fn(*arguments)
                    return got if isinstance(got, tuple) else (got,)

                def check(
                    results: tuple[Tensor, ...],
                    values: Values = values,
                    tokens: int = tokens,
                    what: str = f"{provider}, {tokens} x {hidden}",
                    provider: str = provider,
                ) -> None:
                    wrong = faults(values, tokens, results, weighted=op.norm, bound=None, provider=provider)
                    assert not (said := list(wrong)), (what, said)

                call()  # Triton compiles before
                said = touched_beside(call, check)
                assert not said, f"{provider}, {tokens} x {hidden}, {dtype}: memory beside the results: {said}"
