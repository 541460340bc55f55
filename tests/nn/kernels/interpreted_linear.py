"""Run by test_interpreted_linear.py under ``TRITON_INTERPRET=1``: products with quantised weights against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import linear_calls
from opdock.nn.kernels.triton.linear_tuning import Tiles
from opdock.nn.quantization.kernels.int4 import words_of
from opdock.nn.quantization.rounding import quantise_int4

FP8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _near(got: Tensor, exact: Tensor) -> None:
    assert got.shape == exact.shape
    error = (got.double() - exact).abs()
    assert bool((error <= 2.0**-9 * exact.abs() + 2.0**-11 * exact.abs().max()).all())


@pytest.mark.parametrize(("outputs", "inputs", "group"), [(40, 256, 32), (72, 512, 128), (24, 192, 192), (64, 320, 64)])
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(("split", "step"), [(1, 0), (2, 0), (3, 16)])
def test_int4(
    monkeypatch: pytest.MonkeyPatch, outputs: int, inputs: int, group: int, split: int, step: int, *, zeros: bool
) -> None:
    """Outputs and rows that tiles do not divide, more programs than steps, rows that lie apart, a bias."""
    tiles = Tiles(16, 32, 0, split, 2, 4, step=step, wide=step > 0, dependent=step > 0)
    monkeypatch.setattr(linear_calls, "int4_tiles", lambda *_, **__: tiles)
    codes, scale, zero = quantise_int4(torch.randn(outputs, inputs), group, zero_points=zeros)
    scale, words = scale.half(), words_of(group, inputs)
    shift = None if zero is None else (8.0 - zero.float()) * scale.float()
    z = 8.0 if zero is None else zero.t().double().repeat_interleave(group, 1)
    exact = (codes.double() - z) * scale.t().double().repeat_interleave(group, 1)
    packed = triton.pack_words(codes, words)
    floats = triton.unpack_words(packed, scale, shift, words)
    assert bool(((floats.double() - exact).abs() <= 2.0**-9 * exact.abs().max()).all())
    for rows in (0, 1, 17):
        x, bias = torch.randn(rows, 2 * inputs).half()[:, :inputs], torch.randn(outputs).half()
        got = triton.int4_linear(x, packed, scale, shift, bias, words)
        _near(got, x.double() @ exact.t() + bias.double()) if rows else None
        assert got.shape == (rows, outputs)
    assert not linear_calls._locks(x.device).any()


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(("outputs", "inputs", "group"), [(40, 1536, 128), (9, 2048, 128), (24, 384, 32)])
def test_int4_of_one_row(
    monkeypatch: pytest.MonkeyPatch, outputs: int, inputs: int, group: int, *, zeros: bool
) -> None:
    """Outputs that programs do not divide, inputs that steps do not divide, scales of 16 bits, a bias."""
    monkeypatch.setattr(linear_calls, "int4_tiles", lambda *_, **__: Tiles(1, 8, 2 * group, 1, 1, 4, row=True))
    codes, scale, zero = quantise_int4(torch.randn(outputs, inputs), group, zero_points=zeros)
    scale = scale.half()
    shift = None if zero is None else (8.0 - zero.float()) * scale.float()
    z = 8.0 if zero is None else zero.t().double().repeat_interleave(group, 1)
    exact = (codes.double() - z) * scale.t().double().repeat_interleave(group, 1)
    x, bias = torch.randn(1, inputs).half(), torch.randn(outputs).half()
    got = triton.int4_linear(x, triton.pack_words(codes, group), scale, shift, bias, group)
    _near(got, x.double() @ exact.t() + bias.double())


@pytest.mark.parametrize(("outputs", "inputs"), [(40, 256), (72, 208)])
@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize(("dtype", "split"), [(FP8, 1), (FP8, 3), (torch.int8, 1), (torch.int8, 2)])
def test_scaled(
    monkeypatch: pytest.MonkeyPatch, outputs: int, inputs: int, dtype: torch.dtype, split: int, *, per_row: bool
) -> None:
    """fp8 and int8, one scale in all or one for each row and output; inputs that steps do not divide."""
    monkeypatch.setattr(linear_calls, "scaled_tiles", lambda *_, **__: Tiles(16, 32, 64, split, 2, 4))
    weight, x = (torch.randn(n, inputs).mul(20).clamp(-127, 127).to(dtype) for n in (outputs, 17))
    scale, x_scale = torch.rand(outputs if per_row else 1) * 0.01, torch.rand((17, 1) if per_row else (1,))
    exact = (x.double() @ weight.double().t()) * x_scale.double() * scale.double()
    _near(triton.scaled_linear(x, weight, x_scale, scale, None, torch.float16), exact)


@pytest.mark.parametrize(("outputs", "inputs"), [(200, 320), (128, 256)])
def test_blocks(monkeypatch: pytest.MonkeyPatch, outputs: int, inputs: int) -> None:
    """The last block of outputs and of inputs may be smaller."""
    monkeypatch.setattr(linear_calls, "scaled_tiles", lambda *_, **__: Tiles(16, 64, 128, 2, 2, 4))
    blocks = -(-inputs // 128)
    weight, x = torch.randn(outputs, inputs).to(FP8), torch.randn(5, inputs).to(FP8)
    scale, x_scale = torch.rand(-(-outputs // 128), blocks), torch.rand(5, blocks)
    wide = scale.double().repeat_interleave(128, 0)[:outputs].repeat_interleave(128, 1)[:, :inputs]
    exact = (x.double() * x_scale.double().repeat_interleave(128, 1)[:, :inputs]) @ (weight.double() * wide).t()
    _near(triton.scaled_linear(x, weight, x_scale, scale, None, torch.float16), exact)


def test_a_row_has_the_same_bits_alone_and_in_a_batch_where_that_is_asked_for() -> None:
    """Beyond every number of rows at which the tiles change otherwise."""
    codes, scale, _ = quantise_int4(torch.randn(72, 512), 128)
    packed, scale = triton.pack_words(codes, 128), scale.half()
    x = torch.randn(70, 512).half()
    whole = triton.int4_linear(x, packed, scale, None, None, 128, invariant=True)
    q, x_scale, weight = x.to(FP8), torch.rand(70, 1), torch.randn(72, 512).to(FP8)
    eight = triton.scaled_linear(q, weight, x_scale, scale[0, :1].float(), None, torch.float16, invariant=True)
    for i in (0, 33, 69):
        one = q[i : i + 1], weight, x_scale[i : i + 1], scale[0, :1].float(), None, torch.float16
        assert torch.equal(eight[i], triton.scaled_linear(*one, invariant=True)[0])
        assert torch.equal(
            whole[i], triton.int4_linear(x[i : i + 1], packed, scale, None, None, 128, invariant=True)[0]
        )
