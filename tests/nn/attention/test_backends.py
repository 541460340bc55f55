"""Every backend of the host against float64: edges of blocks, permuted blocks, NaN in unwritten slots, padding."""

from __future__ import annotations

import pytest
import torch

import opdock
from opdock.errors import UnsupportedError
from opdock.nn.attention import Attention, AttentionMetadata, PagedKVCache, set_forward_context
from opdock.testing.attention_cases import AttentionCase, Step, cases, judge

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("backend", ["NATIVE", "SDPA"])
def test_results_equal_the_formula(backend: str, block_size: int) -> None:
    served = 0
    for number, case in enumerate(cases(block_size=block_size)):
        if backend == "SDPA" and (case.soft_cap is not None or case.sinks):
            with pytest.raises(UnsupportedError, match=r"soft cap|sinks"):
                judge(case, backend, dtype=torch.float32, device="cpu")
            continue
        dtype = DTYPES[number % len(DTYPES)]
        assert judge(case, backend, dtype=dtype, device="cpu") == "", f"{case}, {dtype}"
        served += 1
    assert served > 20


@pytest.mark.parametrize("backend", ["NATIVE", "SDPA"])
def test_eight_thousand_positions_equal_the_formula(backend: str) -> None:
    case = AttentionCase((1, 2), (8192, 8191), heads=2, kv_heads=1, head_size=16)
    assert judge(case, backend, dtype=torch.float32, device="cpu") == ""


@pytest.mark.parametrize("backend", ["NATIVE", "SDPA"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("new", [1, 3])
def test_alibi_is_exact_where_scores_and_distances_balance(backend: str, dtype: torch.dtype, new: int) -> None:
    """Every position has the weight of every other: rounded to 16 bits, the distances of 500 would be 2 apart."""
    count, slope = 500, 0.5
    with opdock.set_current_config():
        layer = Attention(1, 16, 1.0, prefix="a", alibi_slopes=torch.tensor([slope]), attn_backend=backend)
        cache = PagedKVCache({"a": layer}, num_blocks=32, dtype=dtype)
        cache.bind()
    query, key = torch.zeros(count, 16, dtype=dtype), torch.zeros(count, 16, dtype=dtype)
    # slope * (count - j) as a sum of two numbers that 16 bits hold exactly
    query[:, :2] = 1
    score = slope * (count - torch.arange(count))
    key[:, 0], key[:, 1] = score.floor().div(8).floor() * 8, score - score.floor().div(8).floor() * 8
    value = torch.randn(count, 16).to(dtype)
    tables = [list(range(32))]
    for start, end in ((0, count - new), (count - new, count)):
        step = AttentionMetadata.build(query_lens=[end - start], seq_lens=[end], block_tables=tables, block_size=16)
        with set_forward_context(step, cache):
            found = layer(query[start:end], key[start:end], value[start:end])
    for row in range(new):
        seen = value[: count - new + row + 1].double()
        assert (found[row].double() - seen.mean(0)).abs().max() < 0.002


@pytest.mark.parametrize("backend", ["NATIVE", "SDPA"])
def test_a_wrong_result_is_told(backend: str) -> None:
    """What judges must be able to fail: with one key changed after the step, results differ."""
    step = Step(AttentionCase((1, 1), (20, 3)), backend, dtype=torch.float32, device="cpu")
    got = step.run()
    step.cache.tensors["layer"][1][step.tables[0][0]] += 1.0
    assert (got.double() - step.expected()).abs().max() > 0.01


@pytest.mark.parametrize("backend", ["NATIVE", "SDPA"])
def test_padding_rows_become_zeros_and_write_nothing(backend: str) -> None:
    step = Step(AttentionCase((1, 5), (20, 5), padding=4), backend, dtype=torch.float32, device="cpu")
    out = step.run()
    assert torch.equal(out[6:], torch.zeros_like(out[6:]))
    written = sum(int(t.isfinite().all(-1).all(-1).sum()) for t in step.cache.tensors["layer"])
    assert written == 2 * 25


@pytest.mark.parametrize("backend", ["NATIVE", "SDPA"])
def test_a_request_alone_has_the_bits_that_it_has_in_a_batch(backend: str) -> None:
    step = Step(AttentionCase((1, 9, 4), (40, 20, 4)), backend, dtype=torch.float32, device="cpu")
    together = step.run()
    layer, (keys, values) = step.layer, step.cache.tensors["layer"]
    from opdock.nn.attention import AttentionMetadata

    row = 0
    for request, (new, total) in enumerate(zip((1, 9, 4), (40, 20, 4), strict=True)):
        alone = AttentionMetadata.build(
            query_lens=[new], seq_lens=[total], block_tables=[step.tables[request]], block_size=16
        )
        query = step.query[row : row + new].view(new, 4, 64)
        out = torch.empty_like(query)
        layer.impl.forward(query, query, query, keys, values, alone, out)
        assert torch.equal(out.flatten(1), together[row : row + new])
        row += new
