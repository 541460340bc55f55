"""The definition and torch's grouped product against float64, with all experts here and with a part of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from opdock.nn.moe.grouped import grouped_experts
from opdock.nn.moe.native import fused_experts

STEP = {torch.float32: 2e-6, torch.bfloat16: 0.03, torch.float16: 4e-3}


@pytest.mark.parametrize("tokens", [0, 1, 9, 40])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_definition_is_within_the_rounding_of_its_dtype(
    dtype: torch.dtype, tokens: int, make_step: Callable[..., Any]
) -> None:
    step = make_step(tokens, dtype=dtype)
    got = fused_experts(*step.args)
    assert (got.dtype, got.shape) == (dtype, step.x.shape)
    torch.testing.assert_close(got.double(), step.exact(), rtol=0, atol=STEP.get(dtype, 1e-12))


@pytest.mark.parametrize("tokens", [0, 1, 9, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torchs_grouped_product_is_within_the_rounding_of_its_dtype(
    dtype: torch.dtype, tokens: int, make_step: Callable[..., Any]
) -> None:
    step = make_step(tokens, dtype=dtype)
    got = grouped_experts(*step.args)
    assert (got.dtype, got.shape) == (dtype, step.x.shape)
    torch.testing.assert_close(got.double(), step.exact(), rtol=0, atol=STEP[dtype])


@pytest.mark.parametrize("call", [fused_experts, grouped_experts])
def test_the_results_of_the_ranks_add_up_to_the_whole(call: Callable[..., Any], make_step: Callable[..., Any]) -> None:
    whole, total = make_step(11), torch.zeros(11, 48)
    for rank in range(4):
        step = make_step(11, ranks=4, rank=rank)
        got = call(*step.args, "silu", step.expert_map)
        torch.testing.assert_close(got.double(), step.exact(), rtol=0, atol=2e-6)
        total += got
    torch.testing.assert_close(total.double(), whole.exact(), rtol=0, atol=4e-6)


@pytest.mark.parametrize("call", [fused_experts, grouped_experts])
def test_a_rank_that_no_token_asks_for_adds_zeros(call: Callable[..., Any], make_step: Callable[..., Any]) -> None:
    step = make_step(5, ranks=2, rank=1)
    step.ids = torch.zeros_like(step.ids)
    assert torch.equal(call(*step.args, "silu", step.expert_map), torch.zeros(5, 48))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("call", [fused_experts, grouped_experts])
def test_a_slot_without_an_expert_adds_nothing(
    call: Callable[..., Any], ranks: int, make_step: Callable[..., Any]
) -> None:
    step = make_step(7, ranks=ranks)
    step.ids[2, 1] = step.ids[6] = -1
    step.weights[step.ids < 0] = float("nan")
    got = call(*step.args, "silu", step.expert_map)
    kept = step.weights.nan_to_num(0.0)
    step.ids[step.ids < 0], step.weights = 0, kept
    torch.testing.assert_close(got.double(), step.exact(), rtol=0, atol=2e-6)
    assert torch.equal(got[6], torch.zeros(48))


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("call", [fused_experts, grouped_experts])
def test_the_gates_activation_is_the_one_named(
    call: Callable[..., Any], name: str, make_step: Callable[..., Any]
) -> None:
    step = make_step(1, experts=1, top_k=1)
    first = F.linear(step.x.double(), step.w13[0].double())
    gate, up = first[:, :32], first[:, 32:]
    act = {
        "silu": lambda v: v / (1 + (-v).exp()),
        "gelu": lambda v: v * 0.5 * (1 + torch.erf(v / math.sqrt(2))),
        "gelu_pytorch_tanh": lambda v: v * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
    }[name]
    want = F.linear(act(gate) * up, step.w2[0].double()) * step.weights.double()
    torch.testing.assert_close(call(*step.args, name).double(), want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_by_row_the_bits_of_a_row_do_not_depend_on_the_batch(dtype: torch.dtype, make_step: Callable[..., Any]) -> None:
    step = make_step(60, experts=4, top_k=2, hidden=96, inner=72, dtype=dtype)
    whole = fused_experts(*step.args, by_row=True)
    torch.testing.assert_close(whole.double(), step.exact(), rtol=0, atol=STEP[dtype])
    for rows in (slice(0, 1), slice(17, 18), slice(3, 30), slice(0, 59)):
        part = fused_experts(step.x[rows], step.w13, step.w2, step.weights[rows], step.ids[rows], by_row=True)
        assert torch.equal(part, whole[rows])


def test_8_bit_floats_are_rows_and_matrices_made_wide_again(make_step: Callable[..., Any]) -> None:
    step = make_step(6)
    s13, s2 = (w.abs().amax(-1) / 448.0 for w in (step.w13, step.w2))
    w13 = (step.w13 / s13[..., None]).to(torch.float8_e4m3fn)
    w2 = (step.w2 / s2[..., None]).to(torch.float8_e4m3fn)
    got = fused_experts(step.x, w13, w2, step.weights, step.ids, "silu", None, s13, s2)

    def rounded(row: torch.Tensor) -> torch.Tensor:
        scale = row.abs().max() / 448.0
        return (row / scale).to(torch.float8_e4m3fn).double() * scale.double()

    want = torch.zeros(6, 48, dtype=torch.float64)
    for t in range(6):
        for slot, e in enumerate(step.ids[t].tolist()):
            made = (w13[e].double() * s13[e, :, None].double()) @ rounded(step.x[t])
            made = F.silu(made[:32]) * made[32:]
            made = (w2[e].double() * s2[e, :, None].double()) @ rounded(made.float())
            want[t] += made * step.weights[t, slot].double()
    torch.testing.assert_close(got.double(), want, rtol=0, atol=5e-3)
    assert (want - step.exact()).abs().max() > 1e-3  # the quantisation shows
