"""opdock_ascend.attention: which operator serves which requests, and that attention comes out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from opdock.errors import UnsupportedError
from opdock_ascend.attention import plan

HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 64, 16
PAGED, FUSED, CACHED = "atb::_npu_paged_attention", "npu::npu_fusion_attention", "atb::_npu_reshape_and_cache"


def test_a_plan_tells_decoded_tokens_from_prompts_and_from_prompts_behind_a_prefix() -> None:
    made = plan([0, 1, 6, 6, 9, 10], [40, 5, 0, 20, 7], 10)
    assert (made.decodes.requests, made.decodes.rows, made.decodes.lengths) == ((0, 4), ((0, 1), (9, 10)), (40, 7))
    assert (made.prompts.requests, made.prompts.rows, made.prompts.lengths) == ((1,), ((1, 6),), (5,))
    assert (made.continued.requests, made.continued.rows, made.continued.lengths) == ((3,), ((6, 9),), (20,))
    assert made.whole and not made.decodes.adjacent and made.prompts.adjacent


def test_rows_that_no_operator_writes_are_known() -> None:
    assert not plan([0, 1], [4], 2).whole  # padding
    assert not plan([0, 1, 2], [4, 0], 2).whole  # a request that is not there
    assert plan([0, 1, 2], [4, 1], 2).whole
    assert plan([0], [], 0).whole


def _step(new: Sequence[int], lengths: Sequence[int], *, padding: int = 0, host: bool = True) -> Any:
    import dataclasses

    from opdock.nn.attention.metadata import AttentionMetadata

    made = AttentionMetadata.build(
        query_lens=new,
        seq_lens=lengths,
        block_tables=[range(8 * i + 7, 8 * i - 1, -1) for i in range(len(new))],
        block_size=BLOCK,
        device="npu",
        num_tokens=sum(new) + padding,
    )
    return made if host else dataclasses.replace(made, query_lens=None, context_lens=None)


class Two:
    """A layer of this backend and a native one, each with a cache of its own, given the same steps."""

    def __init__(self, dtype: torch.dtype) -> None:
        from opdock.nn.attention.attention import Attention
        from opdock.nn.attention.paged_cache import PagedKVCache

        self.dtype, self.layers = dtype, []
        for backend in (None, "NATIVE"):
            layer = Attention(HEADS, SIZE, SIZE**-0.5, KV_HEADS, prefix="layer", attn_backend=backend).to("npu")
            cache = PagedKVCache({"layer": layer}, num_blocks=40, block_size=BLOCK, dtype=dtype, device="npu")
            cache.bind()
            self.layers.append((layer, cache))

    def run(self, metadata: Any) -> tuple[torch.Tensor, torch.Tensor]:
        from opdock.nn.attention.forward_context import set_forward_context

        shapes = (HEADS, KV_HEADS, KV_HEADS)
        joined = torch.randn(metadata.num_tokens, sum(shapes) * SIZE, dtype=self.dtype).to("npu")
        rows = joined.split([n * SIZE for n in shapes], dim=-1)  # views of one projection, as in a decoder
        outs = []
        for layer, cache in self.layers:
            with set_forward_context(metadata, cache):
                outs.append(layer(*rows).cpu())
        return outs[0], outs[1]


@pytest.mark.usefixtures("activated")
@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_of_mixed_requests_agree_with_native_attention(calls: Any, dtype: torch.dtype, host: bool) -> None:
    torch.manual_seed(0)
    two, lengths = Two(dtype), [0] * 5
    assert two.layers[0][0].backend.get_name() == "ASCEND"
    for padding, new in enumerate(([17, 1, 0, 5, 1], [1, 1, 33, 1, 1], [3, 1, 1, 16, 0], [1, 1, 1, 1, 1])):
        lengths = [a + b for a, b in zip(lengths, new, strict=True)]
        mine, native = two.run(_step(new, lengths, padding=padding % 2, host=host))
        torch.testing.assert_close(mine, native, atol=2e-3, rtol=1e-2)
        if padding % 2:
            assert mine[sum(new) :].count_nonzero() == 0
    assert {call.op for call in calls()} == {PAGED, FUSED, CACHED}


@pytest.mark.usefixtures("activated")
def test_a_step_of_decoded_tokens_is_one_call_of_paged_attention_with_lengths_on_the_host(calls: Any) -> None:
    two = Two(torch.float16)
    two.run(_step([5, 3], [5, 3]))
    import npu_standin

    npu_standin.forget()
    two.run(_step([1, 1], [6, 4]))
    written, attended = calls()
    cache = ((40, BLOCK, KV_HEADS, SIZE), torch.float16, "npu")
    rows = ((2, HEADS, SIZE), torch.float16, "npu")
    new = ((2, KV_HEADS, SIZE), torch.float16, "npu")
    assert (written.op, attended.op) == (CACHED, PAGED)
    assert written.arguments == {
        "key": new,
        "value": new,
        "key_cache": cache,
        "value_cache": cache,
        "slot_indices": ((2,), torch.int32, "npu"),
    }
    assert attended.arguments == {
        "query": rows,
        "key_cache": cache,
        "value_cache": cache,
        "num_kv_heads": KV_HEADS,
        "num_heads": HEADS,
        "scale_value": SIZE**-0.5,
        "block_table": ((2, 8), torch.int32, "npu"),
        "context_lens": ((2,), torch.int32, "cpu"),
        "out": rows,
        "workspace": None,
    }


@pytest.mark.usefixtures("activated")
def test_prompts_are_one_call_of_fused_attention_with_the_ends_of_each(calls: Any) -> None:
    Two(torch.bfloat16).run(_step([5, 3], [5, 3]))
    (call,) = calls(FUSED)
    given = call.arguments
    assert (given["input_layout"], given["sparse_mode"], given["head_num"]) == ("TND", 3, HEADS)
    assert (given["actual_seq_qlen"], given["actual_seq_kvlen"]) == ([5, 8], [5, 8])
    assert given["atten_mask"] == ((2048, 2048), torch.bool, "npu")


@pytest.mark.usefixtures("activated")
def test_a_configuration_that_no_operator_takes_is_left_to_the_host_and_refused_where_it_is_asked_for() -> None:
    from opdock.nn.attention.selector import get_attn_backend

    assert get_attn_backend(64, torch.float16, "auto", block_size=16).get_name() == "ASCEND"
    for head_size, dtype, block_size, reason in (
        (64, torch.float32, 16, "dtype not supported"),
        (72, torch.float16, 16, "head_size not supported"),
        (64, torch.float16, 256, "block_size not supported"),
        (256, torch.float16, 128, "blocks of 128 positions of heads of 256"),
    ):
        assert get_attn_backend(head_size, dtype, "auto", block_size=block_size).get_name() != "ASCEND"
        with pytest.raises(UnsupportedError, match=reason):
            get_attn_backend(head_size, dtype, "auto", block_size=block_size, backend="ASCEND")


@pytest.mark.usefixtures("activated")
def test_on_the_kits_grid_every_case_that_is_taken_agrees_with_float64_and_the_rest_is_refused() -> None:
    """Permuted blocks, NaN in slots that were not written, padding, requests that are not there."""
    from opdock.testing.attention_cases import cases, judge

    taken = 0
    for dtype in (torch.float16, torch.bfloat16):
        for case in cases(block_size=BLOCK):
            plain = not (case.window or case.soft_cap or case.alibi or case.sinks or case.kv_dtype)
            if not plain:
                with pytest.raises(UnsupportedError, match="not supported"):
                    judge(case, "ASCEND", dtype=dtype, device="npu")
                continue
            assert not judge(case, "ASCEND", dtype=dtype, device="npu"), f"{case}, {dtype}"
            taken += 1
    assert taken > 20
