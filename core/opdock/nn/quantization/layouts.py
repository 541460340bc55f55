"""The orders in which tools store 4-bit codes, and the one that kernels are given: (outputs, inputs), a byte each.

Each 32-bit word holds eight codes, the first in its lowest bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, of eight, that each place of an AWQ word holds, from the lowest bits on."""


def unpack(words: Tensor, dim: int) -> Tensor:
    """Return the codes of int32 words as uint8; dimension ``dim`` becomes eight times as long."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    codes = (words.unsqueeze(-1) >> shifts) & 0xF
    codes = codes.to(torch.uint8).movedim(-1, dim + 1)  # beside the dimension that it belongs to
    return codes.reshape(*words.shape[:dim], words.shape[dim] * 8, *words.shape[dim + 1 :])


def pack(codes: Tensor, dim: int) -> Tensor:
    """Return codes from 0 to 15 as int32 words, eight along ``dim``; the inverse of ``unpack``."""
    wide = codes.to(torch.int64).unflatten(dim, (-1, 8)).movedim(dim + 1, -1)
    shifts = torch.arange(0, 32, 4, device=codes.device)
    words = (wide << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack_gptq(qweight: Tensor) -> Tensor:
    """Return the codes (outputs, inputs) of ``qweight`` (inputs / 8, outputs)."""
    return unpack(qweight, 0).t().contiguous()


def unpack_gptq_zeros(qzeros: Tensor, *, less_one: bool) -> Tensor:
    """Return the zero points (groups, outputs) of ``qzeros`` (groups, outputs / 8).

    Args:
        qzeros: words.
        less_one: whether the tool took one from each code of the words, as the first format does; a zero point of 0
            then borrows from its neighbour, and gets it back.
    """
    return unpack(qzeros + 0x11111111 if less_one else qzeros, 1)


def unpack_awq(words: Tensor) -> Tensor:
    """Return the codes (rows, columns) of AWQ words (rows, columns / 8)."""
    places = unpack(words, 1).view(words.shape[0], -1, 8)
    codes = torch.empty_like(places)
    codes[:, :, list(AWQ_ORDER)] = places
    return codes.view(words.shape[0], -1)


def pack_awq(codes: Tensor) -> Tensor:
    """Return codes (rows, columns) as AWQ words (rows, columns / 8); the inverse of ``unpack_awq``."""
    return pack(codes.unflatten(1, (-1, 8))[:, :, list(AWQ_ORDER)].flatten(1), 1)


def pack_bytes(codes: Tensor) -> Tensor:
    """Return codes (outputs, inputs) as bytes (outputs, inputs / 2), the first of two in the low bits."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack_bytes(packed: Tensor) -> Tensor:
    """Return the codes of ``pack_bytes``."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(1)


def sorted_by_group(g_idx: Tensor) -> Tensor:
    """Return the order that sorts inputs by their group, (inputs,) int64; within a group as they were."""
    return torch.argsort(g_idx.to(torch.int64), stable=True)
