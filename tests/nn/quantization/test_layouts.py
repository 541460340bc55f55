"""The orders of 4-bit codes, against loops that read words as the tools' descriptions say."""

from __future__ import annotations

import torch

from opdock.nn.quantization import layouts


def _codes(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(0, 16, (rows, columns), generator=torch.Generator().manual_seed(rows), dtype=torch.uint8)


def _nibble(word: int, place: int) -> int:
    return ((word & 0xFFFFFFFF) >> (4 * place)) & 0xF


def test_words_hold_eight_codes_the_first_in_the_lowest_bits() -> None:
    """Along both dimensions."""
    codes = _codes(16, 24)
    for dim in (0, 1):
        words = layouts.pack(codes, dim)
        assert words.dtype == torch.int32
        assert torch.equal(layouts.unpack(words, dim), codes)
    words = layouts.pack(codes, 1)
    assert [_nibble(int(words[3, 1]), i) for i in range(8)] == codes[3, 8:16].tolist()


def test_gptq_words_lie_along_the_inputs() -> None:
    """qweight[i, n] holds inputs 8 i to 8 i + 7 of output n."""
    codes = _codes(24, 32)
    qweight = layouts.pack(codes.t(), 0)
    assert qweight.shape == (4, 24)
    assert [_nibble(int(qweight[2, 5]), i) for i in range(8)] == codes[5, 16:24].tolist()
    assert torch.equal(layouts.unpack_gptq(qweight), codes)


def test_gptq_zero_points_of_the_first_format_come_back_whole_even_zero() -> None:
    """A tool takes 0x11111111 from each word, with borrow."""
    zeros = _codes(3, 16)
    zeros[0, :3], zeros[1] = 0, 15
    words = layouts.pack(zeros, 1)
    assert torch.equal(layouts.unpack_gptq_zeros(words, less_one=False), zeros)
    assert torch.equal(layouts.unpack_gptq_zeros(words - 0x11111111, less_one=True), zeros)


def test_awq_words_lie_along_the_outputs_in_an_order_of_their_own() -> None:
    """Places 0 to 7 hold columns 0 2 4 6 1 3 5 7."""
    codes = _codes(8, 16)
    words = layouts.pack_awq(codes)
    assert words.shape == (8, 2)
    assert [_nibble(int(words[4, 1]), i) for i in range(8)] == [int(codes[4, 8 + c]) for c in (0, 2, 4, 6, 1, 3, 5, 7)]
    assert torch.equal(layouts.unpack_awq(words), codes)


def test_two_codes_in_a_byte_come_back() -> None:
    """The first in the low bits."""
    codes = _codes(5, 6)
    assert torch.equal(layouts.unpack_bytes(layouts.pack_bytes(codes)), codes)
    assert int(layouts.pack_bytes(codes)[0, 0]) == int(codes[0, 0]) + 16 * int(codes[0, 1])


def test_inputs_are_sorted_by_group_and_stay_in_order_within_one() -> None:
    """A stable sort."""
    assert layouts.sorted_by_group(torch.tensor([1, 0, 1, 0])).tolist() == [1, 3, 0, 2]
