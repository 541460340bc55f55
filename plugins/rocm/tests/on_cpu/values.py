"""Run by test_on_cpu.py: the HIP kernels over the stand-in runtime, on CPU tensors, against the ops' definitions."""

from __future__ import annotations

import inspect
import os
from typing import Any

import pytest
import torch
from torch import Tensor

from opdock import context, ir
from opdock.testing import oracle
from opdock_rocm.platform import RocmPlatform
from opdock_rocm.priorities import PROVIDED

torch.ops.load_library(os.environ["OPDOCK_ROCM_ON_CPU"])
FNUZ = os.environ["OPDOCK_ROCM_GFX"] == "gfx942"
FP8, LARGEST = (torch.float8_e4m3fnuz, 224.0) if FNUZ else (torch.float8_e4m3fn, 448.0)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# one row and several; fewer columns than a vector, a part of one, 32 threads a row, one vector each, 4, 7 and 8 each
SHAPES = ((1, 4), (3, 46), (5, 64), (2, 80), (3, 256), (2, 1024), (2, 3584), (2, 4096), (1, 16384), (1, 20000))
_ops = torch.ops.opdock_rocm


@pytest.fixture(scope="module", autouse=True)
def _providers() -> None:
    context.mark_kernels_loaded()
    RocmPlatform.import_ir_kernels()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _copies(args: Any) -> list[Any]:
    return [a.clone() if isinstance(a, Tensor) else a for a in args]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PROVIDED)
def test_every_op_is_its_definition(name: str, dtype: torch.dtype) -> None:
    op = ir.registry[name]
    run = op.impls["hip"].func_impl_fn
    for tokens, hidden in SHAPES:
        args = list(op.generate_inputs(num_tokens=tokens, hidden_size=hidden, dtype=dtype, device="cpu"))
        if "fp8" in name:
            given = [a for a in args if not isinstance(a, torch.dtype)]
            bound = inspect.signature(op.impls["native"].func_impl_fn).bind(*given, dtype=FP8)
            bound.apply_defaults()
            args = list(bound.args)
        native = oracle.several(op.native(*_copies(args)))
        got = oracle.several(run(*_copies(args)))
        for mine, theirs in zip(got, native, strict=True):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), (tokens, hidden)
        oracle.compare(op, "hip", got, native, args, f"{name} {tokens}x{hidden}")


def test_8_bit_floats_are_torchs_for_every_float16_and_their_neighbours() -> None:
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    x = torch.cat((x, x.nextafter(torch.tensor(torch.inf)), x.nextafter(torch.tensor(-torch.inf))))
    want = x.clamp(-LARGEST, LARGEST).to(FP8).view(torch.uint8)
    for columns in (8, 3):  # by vectors, and element by element
        some = x[: len(x) // columns * columns].view(-1, columns)
        got = _ops.static_fp8(some, torch.ones(1)).view(torch.uint8).flatten()
        differ = (got != want[: len(got)]) & ~x[: len(got)].isnan()
        assert not differ.any(), x[: len(got)][differ][:8]
        assert torch.equal(got.view(FP8).float().isnan(), x[: len(got)].isnan())


def test_a_token_with_nan_or_infinity_has_such_a_scale() -> None:
    x = torch.randn(3, 64)
    x[0, 5], x[1, 7] = float("nan"), float("inf")
    _, scales = _ops.token_fp8(x, None)
    assert scales[0].isnan().all()
    assert scales[1].isinf().all()
    assert scales[2] == x[2].abs().max() / LARGEST


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn], ids=str)
def test_the_cache_is_written_at_the_slots_and_nowhere_else(dtype: torch.dtype) -> None:
    key, value = (torch.randn(5, 2, 16).to(dtype) for _ in range(2))
    caches = [torch.zeros(4, 8, 2, 16).to(dtype) for _ in range(2)]
    slots = torch.tensor([3, 31, -1, 8, 99])  # padding, and one behind the cache
    _ops.reshape_and_cache_(key, value, *caches, slots)
    for rows, cache in zip((key, value), caches, strict=True):
        want = torch.zeros(32, 2, 16)
        want[[3, 31, 8]] = rows[[0, 1, 3]].float()
        torch.testing.assert_close(cache.view(32, 2, 16).float(), want, atol=0, rtol=0)


def test_rows_of_two_leading_dimensions_and_of_a_slice_are_read_where_they_lie() -> None:
    wide, weight = torch.randn(4, 3, 200), torch.randn(64)
    for x in (wide[:, :, 8:72], wide.transpose(0, 1)[:, :, 3:67]):
        torch.testing.assert_close(_ops.rms_norm(x, weight, 1e-6), ir.registry["rms_norm"].native(x, weight, 1e-6))


def test_a_rows_bits_do_not_depend_on_the_other_rows() -> None:
    x, weight = torch.randn(9, 4096).bfloat16(), torch.randn(4096).bfloat16()
    together = _ops.rms_norm(x, weight, 1e-6)
    assert all(torch.equal(together[i : i + 1], _ops.rms_norm(x[i : i + 1], weight, 1e-6)) for i in range(9))


@pytest.mark.skipif(FNUZ, reason="the fake results are of this machine's platform, which has the other format")
def test_fake_results_are_like_the_real_ones() -> None:
    import opdock_rocm.fakes  # noqa: F401

    x, weight, one = torch.randn(4, 64), torch.randn(64), torch.ones(1)
    calls: dict[str, tuple[Any, ...]] = {
        "rms_norm": (x, weight, 1e-6),
        "fused_add_rms_norm": (x, x.clone(), weight, 1e-6),
        "rms_norm_static_fp8": (x, weight, one, 1e-6),
        "rms_norm_token_fp8": (x, weight, 1e-6, None),
        "add_rms_norm_static_fp8": (x, x.clone(), weight, one, 1e-6),
        "add_rms_norm_token_fp8": (x, x.clone(), weight, 1e-6, one),
        "silu_and_mul": (x,),
        "gelu_and_mul": (x, True),
        "silu_and_mul_static_fp8": (x, one),
        "silu_and_mul_token_fp8": (x, None),
        "static_fp8": (x, one),
        "token_fp8": (x, one),
        "fused_add_rms_norm_": (x, x.clone(), weight, 1e-6),
        "rotary_embedding_": (torch.arange(4), x.clone(), x.clone(), 32, torch.randn(8, 32), True),
    }
    for name, args in calls.items():
        op = getattr(_ops, name).default
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))
