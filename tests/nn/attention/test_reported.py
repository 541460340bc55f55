"""Faults of paged caches and of backend selection that others have had; the ids are those of the list of reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import opdock
from opdock.errors import ConfigError, UnknownNameError, UnsupportedError
from opdock.nn.attention import Attention, PagedKVCache, attention_backend, get_attn_backend, set_forward_context
from opdock.testing.attention_cases import AttentionCase, Step, judge

BACKENDS = ("NATIVE", "SDPA")


@pytest.fixture(autouse=True)
def _config() -> Iterator[None]:
    with opdock.set_current_config():
        yield


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float8_e4m3fn])
def test_b64_only_valid_slots_change_and_nothing_beside_the_cache(
    backend: str, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    """Slots 0, -1, 5; what lies before and behind the cache, and its last slot, keep their bits."""
    step = Step(AttentionCase((1, 1, 1), (1, 1, 1), kv_dtype=kv_dtype), backend, dtype=torch.float32, device="cpu")
    slots = torch.tensor([0, -1, 5], dtype=dtype)
    rows = step.key.view(3, 2, 64)
    step.layer.impl.update_cache(rows, rows, *step.cache.tensors["layer"], replace(step.metadata, slot_mapping=slots))
    for now, then in zip(step.around, step.before, strict=True):
        raw = [t.view(torch.uint8 if kv_dtype.itemsize == 1 else torch.int32).flatten(0, 1) for t in (now, then)]
        changed = (raw[0] != raw[1]).flatten(1).any(1).nonzero().flatten().tolist()
        assert changed == [16, 16 + 5]  # behind the block in front of the cache
    step.metadata = replace(step.metadata, slot_mapping=slots.long())
    step.value = step.key
    assert step.fault_of_cache() == ""


@pytest.mark.parametrize("slots", [3, 9])
def test_b64_a_slot_mapping_of_another_length_than_the_keys_is_refused(slots: int) -> None:
    step = Step(AttentionCase((8,), (8,)), "NATIVE", dtype=torch.float32, device="cpu")
    wrong = replace(step.metadata, slot_mapping=torch.zeros(slots, dtype=torch.int64))
    with set_forward_context(wrong, step.cache), pytest.raises(ConfigError, match=f"8 rows and {slots} slots") as found:
        step.layer(step.query, step.key, step.value)
    assert "layer layer" in str(found.value)
    assert all(
        torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(step.around, step.before, strict=True)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_b64_a_slot_behind_the_last_is_an_error(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named in strict mode, before anything is written; without it torch's bounds check speaks."""
    step = Step(AttentionCase((2,), (2,)), backend, dtype=torch.float32, device="cpu")
    wrong = replace(step.metadata, slot_mapping=torch.tensor([0, step.cache.num_blocks * 16]))

    def changed() -> list[int]:
        pairs = zip(step.around, step.before, strict=True)
        rows = [(a.view(torch.int32) != b.view(torch.int32)).flatten(0, 1).flatten(1).any(1) for a, b in pairs]
        return (rows[0] | rows[1]).nonzero().flatten().tolist()

    with monkeypatch.context() as strict:
        strict.setenv("OPDOCK_STRICT", "1")
        with set_forward_context(wrong, step.cache), pytest.raises(ConfigError, match=r"none of the cache[\s\S]*0 to"):
            step.layer(step.query, step.key, step.value)
        assert changed() == []
    with set_forward_context(wrong, step.cache), pytest.raises(IndexError):
        step.layer(step.query, step.key, step.value)
    assert set(changed()) <= {16}  # slot 0, which is valid; nothing beside the cache


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase((1, 1, 1), (1, 15, 33)),
        AttentionCase((5, 1), (20, 17), padding=2),
        AttentionCase((1, 1, 2), (0, 3, 0)),
        AttentionCase((0, 0), (0, 0), padding=3),
    ],
    ids=str,
)
def test_b65_nan_behind_a_request_changes_nothing_and_no_positions_give_zeros(
    backend: str, case: AttentionCase
) -> None:
    """The same bits as over a cache whose unwritten slots hold zeros."""
    assert judge(case, backend, dtype=torch.float32, device="cpu") == ""
    step, clean = (Step(case, backend, dtype=torch.float32, device="cpu") for _ in range(2))
    for tensor in clean.cache.tensors["layer"]:
        tensor.nan_to_num_(0.0)
    got = step.run()
    assert torch.equal(got, clean.run())
    starts = step.metadata.query_start_loc.tolist()
    absent = [row for r, n in enumerate(case.seq_lens) if not n for row in range(starts[r], starts[r + 1])]
    for row in [*absent, *range(starts[-1], len(got))]:
        assert not got[row].any()


def test_b70_a_forced_backend_counts_at_each_selection_and_is_never_another_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Select, change what is asked for and the environment, select again."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    assert get_attn_backend(64, torch.float32, backend="SDPA").get_name() == "SDPA"
    assert get_attn_backend(64, torch.float32, backend="NATIVE").get_name() == "NATIVE"
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(UnsupportedError, match="batch invariance not supported"):
        get_attn_backend(64, torch.float32, backend="SDPA")
    assert get_attn_backend(64, torch.float32, backend="NATIVE").get_name() == "NATIVE"
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    assert get_attn_backend(64, torch.float32, backend="SDPA").get_name() == "SDPA"


def test_b70_an_invalid_name_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'TRITON_ATTN'"):
        get_attn_backend(64, torch.float32, backend="TRITN_ATTN")
    with pytest.raises(UnknownNameError):
        Attention(4, 40, 1.0, prefix="a", attn_backend="TRITN")


def test_b70_forced_and_unsupported_is_an_error_with_every_reason_and_the_layers_name() -> None:
    layer = Attention(4, 44, 1.0, prefix="layers.0.attn", attn_backend="TRITON_ATTN")
    with pytest.raises(UnsupportedError) as found:
        PagedKVCache({"layers.0.attn": layer}, num_blocks=2, block_size=8, dtype=torch.float64)
    text = str(found.value)
    assert "TRITON_ATTN is not valid" in text and "layers.0.attn" in text
    assert layer.backend is None


def test_b70_a_backend_can_be_forced_for_a_whole_model_and_no_longer_than_asked() -> None:
    layer = Attention(4, 40, 1.0, prefix="layers.0.attn")
    for name in BACKENDS:
        with attention_backend(name):
            PagedKVCache({"layers.0.attn": layer}, num_blocks=2).bind()
        assert layer.served_by == name
    PagedKVCache({"layers.0.attn": layer}, num_blocks=2).bind()
    assert layer.served_by == "SDPA"
    with attention_backend("TRITON_ATTN"), pytest.raises(UnsupportedError, match="TRITON_ATTN is not valid") as found:
        PagedKVCache({"layers.0.attn": layer}, num_blocks=2)
    assert "layers.0.attn" in str(found.value)
    with pytest.raises(UnknownNameError, match="NATIVE"), attention_backend("NATIV"):
        pass
