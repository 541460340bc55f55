"""opdock_tpu.attention on the kit's grid of steps, on device ``jax``, against float64 on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdock.nn.attention.impl import AttentionSpec
from opdock.testing.attention_cases import TOLERANCES, AttentionCase, Step, cases
from opdock_tpu import xla
from opdock_tpu.attention import PallasAttentionBackend, why_no_kernel

GRID = [case for case in cases(block_size=16) if case.kv_dtype is None]


def _on_host(step: Step) -> Step:
    """Bring a step to the CPU, where its expectation is computed in float64."""
    from dataclasses import replace

    with xla.enabled():
        step.query = step.query.cpu()
        tensors = {name: tuple(part.cpu() for part in pair) for name, pair in step.cache.tensors.items()}
        names = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")
        step.metadata = replace(step.metadata, **{name: getattr(step.metadata, name).cpu() for name in names})
        for name in ("alibi_slopes", "sinks", "k_scale", "v_scale"):
            value = getattr(step.layer, name)
            setattr(step.layer, name, None if value is None else value.cpu())
    step.cache.tensors = tensors  # type: ignore[assignment]
    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", range(0, len(GRID), 3))
def test_a_step_of_the_kits_grid_agrees_with_float64(activated: None, number: int, dtype: torch.dtype) -> None:
    from opdock.nn.attention import set_forward_context

    case = GRID[number]
    with xla.without_gradients():
        step = Step(case, "PALLAS", dtype=dtype, device="jax")
        assert step.layer.served_by == "PALLAS"
        with set_forward_context(step.metadata, step.cache):
            got = step.layer(step.query, step.key, step.value).cpu().double()
    want = _on_host(step).expected()
    assert bool(got.isfinite().all())
    assert float((got - want).abs().max()) <= TOLERANCES[dtype]


@pytest.mark.parametrize(
    ("changes", "dtype", "block", "reason"),
    [
        ({}, torch.bfloat16, 16, ""),
        ({"sliding_window": 5, "logits_soft_cap": 3.0}, torch.float32, 8, ""),
        ({"head_size": 64}, torch.bfloat16, 16, "heads of 64 are no multiple of 128"),
        ({"num_heads": 9, "num_kv_heads": 3}, torch.bfloat16, 16, "3 cached heads fill no tile"),
        ({"num_heads": 16, "num_kv_heads": 16}, torch.bfloat16, 16, ""),
        ({"has_alibi": True}, torch.bfloat16, 16, "no kernel with ALiBi or sinks"),
        ({"has_sinks": True}, torch.bfloat16, 16, "no kernel with ALiBi or sinks"),
        ({"num_kv_heads": 1}, torch.bfloat16, 8, "blocks of 8 positions of 1 heads are no whole tiles"),
    ],
)
def test_what_the_kernel_does_not_take_is_told(
    changes: dict[str, Any], dtype: torch.dtype, block: int, reason: str
) -> None:
    numbers = {"num_heads": 8, "num_kv_heads": 2, "head_size": 128, "scale": 0.1, **changes}
    found = why_no_kernel(AttentionSpec(**numbers), dtype, block)
    assert found.startswith(reason) and bool(found) is bool(reason)


@pytest.mark.parametrize("head_size", [64, 128])
def test_decoded_tokens_run_the_kernel_where_it_takes_them(
    activated: None, monkeypatch: pytest.MonkeyPatch, head_size: int
) -> None:
    from opdock.nn.attention import set_forward_context
    from opdock_tpu.kernels import formula

    ran = []
    real = formula.paged
    monkeypatch.setattr(formula, "paged", lambda *args, **kwargs: ran.append("formula") or real(*args, **kwargs))
    case = AttentionCase((1, 1), (5, 33), head_size=head_size)
    with xla.without_gradients():
        step = Step(case, "PALLAS", dtype=torch.float32, device="jax")
        with set_forward_context(step.metadata, step.cache):
            step.layer(step.query, step.key, step.value)
    assert ran == ([] if head_size == 128 else ["formula"])


def test_caches_of_8_bits_and_other_devices_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from opdock.nn.attention.backend import AttentionSelectorConfig

    needs = AttentionSelectorConfig(128, torch.bfloat16, "fp8_e4m3", 16)
    assert PallasAttentionBackend.validate_configuration(needs) == ["kv_cache_dtype not supported"]
    monkeypatch.delenv("OPDOCK_TPU_ON", raising=False)
    assert PallasAttentionBackend.why_not_here("cpu") == "it runs on jax, and tensors are on cpu"
