"""opdock_ascend.ops: direct use of torch_npu's operators, and one error for what they do not take."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdock_ascend import ops

pytestmark = pytest.mark.usefixtures("torch_npu")


def _npu(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype).to("npu")


def test_rows_go_to_their_slots_and_nowhere_else() -> None:
    key, value, caches = _npu(3, 2, 16), _npu(3, 2, 16), [torch.zeros(2, 16, 2, 16).half().npu() for _ in range(2)]
    ops.reshape_and_cache_(key, value, *caches, torch.tensor([17, -1, 2], dtype=torch.int32).npu())
    for rows, cache in zip((key.cpu(), value.cpu()), (c.cpu().flatten(0, 1) for c in caches), strict=True):
        assert torch.equal(cache[17], rows[0]) and torch.equal(cache[2], rows[2])
        cache[[2, 17]] = 0
        assert cache.count_nonzero() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_quantised_product_is_that_of_the_quantised_rows(dtype: torch.dtype, with_bias: bool) -> None:
    """Against float64 over rows that are quantised here by their own rule."""
    x, weight = _npu(5, 96, dtype=dtype), torch.randint(-127, 128, (96, 32), dtype=torch.int8)
    scale, bias = torch.rand(32) / 100, torch.randn(32) if with_bias else None
    found = ops.int8_linear(x, weight.npu(), scale.npu(), None if bias is None else bias.npu()).cpu()
    rows = x.cpu().double()
    step = rows.abs().amax(dim=1, keepdim=True) / 127
    expected = (torch.round(rows / step) * step) @ weight.double() * scale.double()
    expected = expected if bias is None else expected + bias.double()
    torch.testing.assert_close(found.double(), expected, atol=2e-2, rtol=2e-2)
    assert found.dtype is dtype


def test_the_quantised_product_calls_its_operators_with_scales_of_rows_and_columns(calls: Any) -> None:
    ops.int8_linear(_npu(5, 96), torch.ones(96, 32, dtype=torch.int8).npu(), torch.ones(32).npu())
    quantised, multiplied = calls()
    assert (quantised.op, multiplied.op) == ("npu::npu_dynamic_quant", "npu::npu_quant_matmul")
    given = multiplied.arguments
    assert given["x1"] == ((5, 96), torch.int8, "npu")
    assert given["scale"] == ((32,), torch.float32, "npu")
    assert given["pertoken_scale"] == ((5,), torch.float32, "npu")
    assert given["output_dtype"] == 5


def _caches(**options: Any) -> list[torch.Tensor]:
    return [_npu(4, options.get("block", 16), 2, options.get("size", 64)) for _ in range(2)]


TABLE, LENS = torch.zeros(2, 4, dtype=torch.int32), torch.ones(2, dtype=torch.int32)

REFUSED = {
    "key is on cpu, and the operator runs on npu": lambda: ops.reshape_and_cache_(
        _npu(2, 2, 64).cpu(), _npu(2, 2, 64), *_caches(), LENS.npu()
    ),
    "no operator for key of torch.float32": lambda: ops.reshape_and_cache_(
        _npu(2, 2, 64, dtype=torch.float32), _npu(2, 2, 64), *_caches(), LENS.npu()
    ),
    "slots of torch.int64": lambda: ops.reshape_and_cache_(
        _npu(2, 2, 64), _npu(2, 2, 64), *_caches(), LENS.long().npu()
    ),
    "blocks of 24 positions": lambda: ops.reshape_and_cache_(
        _npu(2, 2, 64), _npu(2, 2, 64), *_caches(block=24), LENS.npu()
    ),
    "context_lens of torch.int32 on npu:0: int32, on the host": lambda: ops.paged_attention_(
        _npu(2, 4, 64), *_caches(), 1.0, TABLE.npu(), LENS.npu(), _npu(2, 4, 64)
    ),
    "3 queries, 2 rows of blocks, 2 lengths": lambda: ops.paged_attention_(
        _npu(3, 4, 64), *_caches(), 1.0, TABLE.npu(), LENS, _npu(3, 4, 64)
    ),
    "heads of 320: the operator takes multiples of 16 up to 256": lambda: ops.paged_attention_(
        _npu(2, 4, 320), *_caches(size=320), 1.0, TABLE.npu(), LENS, _npu(2, 4, 320)
    ),
    "blocks of 128 positions of heads of 256: the operator takes 16384 in all": lambda: ops.paged_attention_(
        _npu(2, 4, 256), *_caches(block=128, size=256), 1.0, TABLE.npu(), LENS, _npu(2, 4, 256)
    ),
    "are not dense rows of heads of one shape": lambda: ops.reshape_and_cache_(
        _npu(2, 4, 64)[:, ::2], _npu(2, 2, 64), *_caches(), LENS.npu()
    ),
    "3 query heads over 2": lambda: ops.paged_attention_(
        _npu(2, 3, 64), *_caches(), 1.0, TABLE.npu(), LENS, _npu(2, 3, 64)
    ),
    "the last ends 4, 5 are not the rows 5, 5": lambda: ops.causal_attention(
        _npu(5, 4, 64), _npu(5, 2, 64), _npu(5, 2, 64), 1.0, [4], [5]
    ),
    "no operator for x of torch.float32": lambda: ops.int8_linear(
        _npu(2, 8, dtype=torch.float32), torch.ones(8, 8, dtype=torch.int8).npu(), torch.ones(8).npu()
    ),
    "the operator takes no tensor without elements": lambda: ops.int8_linear(
        _npu(0, 8), torch.ones(8, 8, dtype=torch.int8).npu(), torch.ones(8).npu()
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_an_operator_does_not_take_is_one_error_and_no_call(calls: Any, reason: str) -> None:
    with pytest.raises(ops.ArgumentError) as caught:
        REFUSED[reason]()
    assert reason in str(caught.value)
    assert calls() == []
