"""Writing keys and values to the slots of a paged cache."""

# ruff: noqa: ANN001, ANN201, ARG001, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined,no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from opdock.nn.kernels.triton import relaunch
from opdock.nn.kernels.triton.attention_again import Key, keep, pointers_of
from opdock.nn.kernels.triton.fp8 import NO_FP8, constants, to_fp8
from opdock.nn.kernels.triton.target import target_of

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit(do_not_specialize=["slots"])
def store_token(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slots_ptr, key_scale_ptr, value_scale_ptr, slots, block_size,
    key_stride, key_head_stride, value_stride, value_head_stride,
    key_block_stride, key_slot_stride, key_cache_head_stride,
    value_block_stride, value_slot_stride, value_cache_head_stride,
    HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, QUANTISED: tl.constexpr,
    LIMIT: tl.constexpr, LEAST: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr,
    UNSIGNED_ZERO: tl.constexpr, HARD: tl.constexpr,
):  # fmt: skip
    """Write the key and value of one token, if its slot is one of the cache."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if (slot < 0) | (slot >= slots):
        return
    block, offset = slot // block_size, slot % block_size
    element = tl.arange(0, BLOCK)
    head, column = element // HEAD, element % HEAD
    inside = element < HEADS * HEAD
    k = tl.load(key_ptr + token * key_stride + head * key_head_stride + column, mask=inside, other=0.0)
    v = tl.load(value_ptr + token * value_stride + head * value_head_stride + column, mask=inside, other=0.0)
    if QUANTISED:
        k = to_fp8(k.to(tl.float32), tl.load(key_scale_ptr), LIMIT, MANTISSA, BIAS, UNSIGNED_ZERO, HARD)
        v = to_fp8(v.to(tl.float32), tl.load(value_scale_ptr), LIMIT, MANTISSA, BIAS, UNSIGNED_ZERO, HARD)
    else:
        k = k.to(key_cache_ptr.dtype.element_ty)
        v = v.to(value_cache_ptr.dtype.element_ty)
    key_at = block * key_block_stride + offset * key_slot_stride + head * key_cache_head_stride + column
    value_at = block * value_block_stride + offset * value_slot_stride + head * value_cache_head_stride + column
    tl.store(key_cache_ptr + key_at, k, mask=inside)
    tl.store(value_cache_ptr + value_at, v, mask=inside)


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """Write rows (tokens, heads, head_size) to slots; a slot below 0 or behind the cache goes nowhere.

    An 8-bit cache holds the values over their scale, one float32, limited to what it can hold.
    """
    tokens, heads, head = key.shape
    if not tokens or not heads:
        return
    index, kept = key.get_device(), None
    if index >= 0 and index != torch.cuda.current_device():
        with torch.cuda.device(index):
            reshape_and_cache(key, value, key_cache, value_cache, slots, k_scale, v_scale)
        return
    if index >= 0 and relaunch.allowed(store_token):
        pointers = pointers_of(key, value, key_cache, value_cache, slots, k_scale, v_scale)
        if pointers is not None:
            kept = (
                index, key.shape, key.stride(), value.stride(), key_cache.shape, key_cache.stride(),
                value_cache.stride(), key.dtype, value.dtype, key_cache.dtype, value_cache.dtype, slots.dtype,
                k_scale.dtype, v_scale.dtype, value.get_device(), key_cache.get_device(), value_cache.get_device(),
                slots.get_device(), k_scale.get_device(), v_scale.get_device(),
            )  # fmt: skip
            found = _kept.get(kept)
            if found is not None:
                again, behind = found
                again(tokens, 1, 1, index, *pointers, *behind)
                return
    quantised, facts = key_cache.dtype.itemsize == 1, NO_FP8
    if quantised:
        target = target_of(index)
        facts = constants(key_cache.dtype, target)
        if not facts["HARD"]:
            key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    block = triton.next_power_of_2(heads * head)
    numbers = (
        key_cache.shape[0] * key_cache.shape[1], key_cache.shape[1],
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        *key_cache.stride()[:3], *value_cache.stride()[:3],
    )  # fmt: skip
    fixed = {"HEADS": heads, "HEAD": head, "BLOCK": block, "QUANTISED": quantised, **facts}
    made = store_token[(tokens,)](
        key, value, key_cache, value_cache, slots, k_scale, v_scale, *numbers, **fixed,
        num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
    if kept is not None:
        started, tail = (
            relaunch.again_of(store_token, made, index),
            relaunch.tail_of(store_token, 7 + len(numbers), fixed),
        )
        if started is not None and tail is not None:
            keep(_kept, kept, (started, (*numbers, *tail)))


_kept: dict[Key, tuple[relaunch.Again, tuple[Any, ...]]] = {}
"""Launches by what they depend on, pointers aside."""
