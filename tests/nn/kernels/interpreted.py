"""Run by test_interpreted.py under ``TRITON_INTERPRET=1``: every launch function against its op's definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from opdock.ir import ops
from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import interpreting, takes
from opdock.testing import oracle

interpreting.round_like_hardware()

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
SIZES = ((1, 1), (3, 46), (2, 769), (5, 80), (1, 4096))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def check(name: str, *args: Any) -> tuple[Tensor, ...]:
    """Run a kernel on what it takes, compare with the definition and float64, and return the results."""
    op = getattr(ops, name).op
    assert getattr(takes, name)(*args) is True
    native = oracle.several(op.native(*args))
    kept = [a.clone() if isinstance(a, Tensor) else a for a in args]
    got = oracle.several(getattr(triton, name)(*args))
    for mine, theirs in zip(got, native, strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
    oracle.compare(op, "triton", got, native, kept, name)
    return got


def arguments(tokens: int, hidden: int, dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """Yield calls of every op."""
    x, r, w = (
        torch.randn(tokens, hidden).to(dtype),
        torch.randn(tokens, hidden).to(dtype),
        torch.randn(hidden).to(dtype),
    )
    gate, scale, bound = torch.randn(tokens, 2 * hidden).to(dtype), torch.tensor([0.02]), torch.tensor(1.5)
    yield "rms_norm", x, w, 1e-5
    yield "rms_norm", x, w.float(), 1e-5
    yield "rms_norm", x, None, 0.25, max(1, hidden // 2)
    yield "fused_add_rms_norm", x.clone(), r.clone(), w, 1e-5
    yield "fused_add_rms_norm", x.clone(), r.clone(), None, 1e-5, max(1, hidden // 2)
    yield "rms_norm_static_fp8_quant", x, w, scale, 1e-5
    yield "fused_add_rms_norm_static_fp8_quant", x, r.float(), w, scale, 1e-5
    yield "silu_and_mul", gate
    yield "gelu_and_mul", gate, "none"
    yield "gelu_and_mul", gate, "tanh"
    yield "silu_and_mul_static_fp8_quant", gate, scale
    yield "static_scaled_fp8_quant", x, scale
    for ub in (None, bound):
        yield "rms_norm_dynamic_per_token_fp8_quant", x, w, 1e-5, ub
        yield "fused_add_rms_norm_dynamic_per_token_fp8_quant", x, r, w, 1e-5, ub
        yield "silu_and_mul_dynamic_per_token_fp8_quant", gate, ub
        yield "dynamic_per_token_scaled_fp8_quant", x, ub


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "hidden"), SIZES)
def test_values_of_odd_sizes_are_within_tolerance(tokens: int, hidden: int, dtype: torch.dtype) -> None:
    for name, *args in arguments(tokens, hidden, dtype):
        check(name, *args)


def test_zero_rows_launch_nothing() -> None:
    for name, *args in arguments(0, 64, torch.bfloat16):
        check(name, *args)
    empty, table = torch.empty(0, 64), torch.ones(4, 64)
    check("rotary_embedding", torch.empty(0, dtype=torch.int64), empty, empty.clone(), 64, table)


def _views(dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield (..., 48) tensors that lie in wider ones: columns, padded, an odd offset, four dimensions, exchanged."""
    wide = torch.randn(6, 160).to(dtype)
    yield wide[:, 48:96]
    yield wide[::2, 1:49]
    yield torch.randn(3 * 48 + 1).to(dtype)[1:].view(3, 48)
    yield torch.randn(2, 3, 160).to(dtype)[:, :, 16:64]
    yield torch.randn(3, 2, 48).to(dtype).transpose(0, 1)
    yield torch.randn(2, 3, 2, 96).to(dtype)[..., :48]
    yield torch.randn(2, 1, 3, 96).to(dtype).transpose(0, 1)[..., :48]
    yield torch.randn(48).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_are_read_and_written_where_they_lie(dtype: torch.dtype) -> None:
    weight, scale = torch.randn(48).to(dtype), torch.tensor([0.02])
    for x in _views(dtype):
        (y,) = check("rms_norm", x, weight, 1e-5)
        (z,) = check("silu_and_mul", x)
        assert y.stride() == ops.rms_norm.op.native(x, weight, 1e-5).stride()
        assert z.stride() == ops.silu_and_mul.op.native(x).stride()
        check("static_scaled_fp8_quant", x, scale)
        check("dynamic_per_token_scaled_fp8_quant", x)
        check("rms_norm_static_fp8_quant", x, weight, scale, 1e-5)
        check("fused_add_rms_norm_dynamic_per_token_fp8_quant", x, torch.randn(x.shape).to(dtype), weight, 1e-5)


def test_an_in_place_norm_writes_the_view_and_nothing_beside_it() -> None:
    buffer, other = torch.randn(4, 100), torch.randn(4, 48)
    kept, x = buffer.clone(), buffer[:, 20:68]
    check("fused_add_rms_norm", x, other, None, 1e-5)
    assert not torch.equal(x, kept[:, 20:68])
    buffer[:, 20:68] = kept[:, 20:68]
    assert torch.equal(buffer, kept)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("size", "rotated"), [(64, 64), (46, 46), (80, 32), (2, 2)])
def test_rotary_turns_views_of_a_joint_tensor_in_place(size: int, rotated: int, *, neox: bool) -> None:
    for dtype in DTYPES:
        joint = torch.randn(5, 7 * size).to(dtype)
        kept = joint.clone()
        q, k = joint[:, : 4 * size], joint[:, 4 * size : 6 * size].view(5, 2, size)
        table = torch.randn(9, rotated)
        check("rotary_embedding", torch.tensor([0, 8, 3, 3, 1], dtype=torch.int32), q, k, size, table, neox)
        assert torch.equal(joint[:, 6 * size :], kept[:, 6 * size :])
        heads, before = joint.view(5, 7, size), kept.view(5, 7, size)
        assert torch.equal(heads[..., rotated:], before[..., rotated:])
        assert not torch.equal(heads[1, :6, :rotated], before[1, :6, :rotated])


def test_positions_outside_the_table_give_nan_and_read_nothing() -> None:
    q, k = torch.randn(4, 64), torch.randn(4, 32)
    triton.rotary_embedding(torch.tensor([0, -1, 5, 4]), q, k, 32, torch.randn(5, 16))
    for heads in (q.view(4, 2, 32), k.view(4, 1, 32)):
        assert heads[1:3, :, :16].isnan().all()
        assert heads[[0, 3]].isfinite().all()
        assert heads[..., 16:].isfinite().all()


@pytest.mark.parametrize("dtype", FP8)
def test_every_code_and_every_tie_between_two_is_rounded_as_torch_rounds_it(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    finite = codes[codes.isfinite()].sort().values.unique()
    ties = (finite[1:] + finite[:-1]) / 2
    near = torch.cat((ties, ties.nextafter(torch.tensor(9e9)), ties.nextafter(torch.tensor(-9e9)), finite, -finite * 0))
    x = torch.cat((near, torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -1e-30])))
    one = torch.ones(1)
    got, want = triton.static_scaled_fp8_quant(x, one, dtype), ops.static_scaled_fp8_quant.op.native(x, one, dtype)
    assert torch.equal(got.float().isnan(), want.float().isnan())
    number = ~want.float().isnan()
    assert torch.equal(got.view(torch.uint8)[number], want.view(torch.uint8)[number])


def test_rows_of_nan_infinity_and_zeros_have_the_scales_of_the_definition() -> None:
    x = torch.randn(5, 40)
    x[1, 3], x[2, 5], x[3] = float("nan"), -float("inf"), 0.0
    for bound in (None, torch.tensor([2.0])):
        for x_ in (x, x.half()):
            q, scales = triton.dynamic_per_token_scaled_fp8_quant(x_, bound)
            want, want_scales = ops.dynamic_per_token_scaled_fp8_quant.op.native(x_, bound)
            assert torch.equal(scales.nan_to_num(7.0), want_scales.nan_to_num(7.0))
            assert torch.equal(q.float().nan_to_num(9.0), want.float().nan_to_num(9.0))


@pytest.mark.parametrize("name", ["fused_add_rms_norm", "rotary_embedding"])
def test_the_first_call_in_place_gives_what_the_second_gives(name: str) -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        args: tuple[Any, ...] = (torch.randn(3, 96), torch.randn(3, 96), torch.randn(96), 1e-5)
        if name == "rotary_embedding":
            args = (torch.arange(3), torch.randn(3, 96), torch.randn(3, 32), 32, torch.randn(3, 32))
        results.append(getattr(triton, name)(*args))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    for name, *args in arguments(7, 100, torch.bfloat16):
        rows = [a for a in args if isinstance(a, Tensor) and a.dim() == 2]
        one = [a[3:4].clone() if any(a is r for r in rows) else a for a in args]
        whole = oracle.several(getattr(triton, name)(*args))
        for a, b in zip(whole, oracle.several(getattr(triton, name)(*one)), strict=True):
            assert oracle.same_bits(a[3:4], b)


def test_fake_tensors_give_what_real_ones_give() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    for name, *args in arguments(3, 46, torch.bfloat16):
        fake = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args]
        with mode:
            made = oracle.several(getattr(triton, name)(*fake))
        for a, b in zip(made, oracle.several(getattr(triton, name)(*args)), strict=True):
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
