"""Run by test_triton.py under ``TRITON_INTERPRET=1``: the Triton backend against float64, on CPU tensors."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch

from opdock.nn.attention import AttentionMetadata
from opdock.nn.kernels.triton import attention_again, attention_launch, attention_tuning, interpreting
from opdock.nn.kernels.triton.attention_tuning import Tuning
from opdock.testing.attention_cases import AttentionCase, Step, judge

interpreting.round_like_hardware()

DECODE = AttentionCase((1, 1, 1, 1), (1, 15, 17, 70), head_size=16)
MIXED = AttentionCase((1, 19, 1, 7), (33, 19, 1, 40), head_size=16, padding=3)
FEATURES = (
    {},
    {"window": 19},
    {"soft_cap": 3.0, "alibi": True, "sinks": True},
    {"heads": 6, "head_size": 24, "block_size": 48},
    {"kv_dtype": torch.float8_e4m3fn},
)


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("case", [DECODE, MIXED], ids=["decode", "mixed"])
def test_results_equal_the_formula(case: AttentionCase, features: dict[str, object]) -> None:
    assert judge(replace(case, **features), "TRITON_ATTN", dtype=torch.float32, device="cpu") == ""


def test_requests_that_are_not_there_and_no_rows_at_all() -> None:
    for case in (
        AttentionCase((0, 1, 0), (0, 2, 5), head_size=16, padding=2),
        AttentionCase((1, 1), (0, 3), head_size=16, sinks=True),
        AttentionCase((), (), head_size=16),
        AttentionCase((), (), head_size=16, padding=2),
    ):
        assert judge(case, "TRITON_ATTN", dtype=torch.float32, device="cpu") == "", str(case)


@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(16, 16, 4, 2),
        Tuning(16, 16, 4, 2, splits=3),
        Tuning(16, 32, 4, 2, splits=4, merge=False),
        Tuning(16, 16, 4, 2, splits=8, span=32),
        Tuning(16, 16, 4, 2, splits=8, span=32, merge=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("features", FEATURES[:3], ids=str)
def test_every_way_to_split_equals_the_formula(
    tuning: Tuning, features: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_launch, "tuning_for_single", lambda *_, **__: tuning)
    assert judge(replace(DECODE, **features), "TRITON_ATTN", dtype=torch.float32, device="cpu") == ""


def test_a_request_has_its_bits_in_any_batch_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    monkeypatch.setattr(attention_tuning, "INVARIANT_SPAN", 64)
    step = Step(MIXED, "TRITON_ATTN", dtype=torch.float32, device="cpu")
    together, row = step.run(), 0
    for request, (new, total) in enumerate(zip(MIXED.query_lens, MIXED.seq_lens, strict=True)):
        alone = AttentionMetadata.build(
            query_lens=[new], seq_lens=[total], block_tables=[step.tables[request]], block_size=16
        )
        query = step.query[row : row + new].view(new, 4, 16)
        out = torch.empty_like(query)
        step.layer.impl.forward(query, query, query, *step.cache.tensors["layer"], alone, out)
        assert torch.equal(out.flatten(1), together[row : row + new])
        row += new


def test_slots_outside_the_cache_write_nothing() -> None:
    step = Step(AttentionCase((3,), (3,), head_size=16), "TRITON_ATTN", dtype=torch.float32, device="cpu")
    caches = step.cache.tensors["layer"]
    guarded = [torch.full((caches[0].numel() + 64,), 5.0) for _ in caches]  # something before and behind each
    inner = [g[32:-32].view(caches[0].shape) for g in guarded]
    slots = torch.tensor([0, -1, inner[0].shape[0] * 16])
    key = torch.randn(3, 2, 16)
    step.layer.impl.update_cache(key, key, *inner, replace(step.metadata, slot_mapping=slots))
    for whole, cache in zip(guarded, inner, strict=True):
        assert torch.equal(cache[0, 0], key[0])
        assert int((whole != 5.0).sum()) == key[0].numel()


def test_the_counters_of_captured_graphs_stay_when_more_are_needed() -> None:
    """More requests times key heads than there were counters for: what a graph points to is neither freed nor moved."""
    counters = attention_again.Counters()
    first = counters.of(10, torch.device("cpu"))
    place, kept = first.data_ptr(), weakref.ref(first)
    assert first.shape == (4096,) and counters.of(4096, first.device) is first
    del first
    more = counters.of(5000, torch.device("cpu"))
    assert more.shape == (8192,) and not more.any()
    held = kept()
    assert held is not None and held.data_ptr() == place
    assert counters.at(8192, torch.empty(0), -1) == more.data_ptr()
