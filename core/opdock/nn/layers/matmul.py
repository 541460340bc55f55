"""Rows times a weight, also for one row on several CPU threads."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

from opdock.nn.invariant import in_force

# The CPU product of one row and a matrix runs on one thread in these types, and decoding does little else; a
# batch of products is spread over the threads. bfloat16 and float16 have threaded kernels of their own.
_ONE_THREADED = (torch.float32, torch.float64)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ weight.T + bias; where ``VLLM_BATCH_INVARIANT=1`` asks for it, each row with the bits it has alone.

    Shapes: x (..., inputs); weight (outputs, inputs); bias (outputs,) or None; returns (..., outputs).
    """
    if in_force():
        from opdock.nn.layers.matmul_invariant import invariant_linear

        return invariant_linear(x, weight, bias)
    return product(x, weight, bias)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ weight.T + bias as fast as torch can; the bits of a row may depend on the number of rows."""
    if x.is_cpu and x.dtype in _ONE_THREADED and x.numel() == weight.shape[1] and weight.is_contiguous():
        parts = _parts_now(weight.shape[0])
        if parts > 1:
            return _one_row(x, weight, bias, parts)
    return F.linear(x, weight, bias)


def _one_row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, parts: int) -> torch.Tensor:
    """Multiply by equal blocks of the weight's rows: the same sums in the same order, block by block."""
    outputs, inputs = weight.shape
    row = x.reshape(1, 1, inputs).expand(parts, 1, inputs)
    blocks = weight.view(parts, outputs // parts, inputs).transpose(1, 2)
    y = torch.bmm(row, blocks) if bias is None else torch.baddbmm(bias.view(parts, 1, -1), row, blocks)
    return y.view(*x.shape[:-1], outputs)


def _parts_now(outputs: int) -> int:
    return _parts(outputs, torch.get_num_threads())


# Compiled code is made for the number of threads of its time. This is all that torch.compiler.assume_constant_result
# does, but for importing Dynamo, which takes a second.
_parts_now._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def _parts(outputs: int, threads: int) -> int:
    """Return the smallest number of equal blocks that keeps all threads busy, or 1 if there is none."""
    if threads == 1:
        return 1
    return next((n for n in range(threads, 4 * threads + 1) if outputs % n == 0), 1)
