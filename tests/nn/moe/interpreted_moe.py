"""Run by test_triton_moe.py under ``TRITON_INTERPRET=1``: the kernels of experts, on small steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import moe, moe_plan, moe_route
from opdock.nn.moe import Routing, route

pytestmark = pytest.mark.skipif(not triton.interpreted(), reason="run by test_triton_moe.py, in an interpreter")
SMALL = moe.Tiles(16, 32, 16, 2, 4, 2)
SHAPES = [(1, 16, 2, 64, 48), (5, 4, 2, 48, 32), (9, 8, 3, 80, 40), (0, 4, 2, 64, 32), (40, 6, 1, 36, 20)]
STEP = {torch.float32: 2e-6, torch.float16: 4e-3}  # the interpreter does not multiply bfloat16


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_those_of_float64(
    shape: tuple[int, ...], dtype: torch.dtype, make_step: Callable[..., Any], *, tma: bool
) -> None:
    tokens, experts, top_k, hidden, inner = shape
    step = make_step(tokens, experts, top_k, hidden, inner, dtype)
    tiles = SMALL._replace(tma=tma and hidden % 8 == 0 and inner % 8 == 0)
    got = moe.fused_experts(*step.args, tiles=(tiles, tiles))
    assert (got.dtype, got.shape) == (dtype, step.x.shape)
    torch.testing.assert_close(got.double(), step.exact(), rtol=0, atol=STEP[dtype])


def test_the_tiles_of_the_sizes_and_the_fixed_ones_give_the_same_values(make_step: Callable[..., Any]) -> None:
    step = make_step(6)
    for fixed in (False, True):
        got = moe.fused_experts(*step.args, fixed=fixed)
        torch.testing.assert_close(got.double(), step.exact(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("tokens", [1, 11])
def test_experts_elsewhere_add_nothing(tokens: int, make_step: Callable[..., Any]) -> None:
    for rank in range(2):
        step = make_step(tokens, 16, ranks=2, rank=rank)
        got = moe.fused_experts(*step.args, "silu", step.expert_map, tiles=(SMALL, SMALL))
        torch.testing.assert_close(got.double(), step.exact(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("tokens", [1, 7])
def test_a_slot_without_an_expert_adds_nothing(tokens: int, ranks: int, make_step: Callable[..., Any]) -> None:
    step = make_step(tokens, 32, ranks=ranks)
    step.ids[0, 1] = -1
    got = moe.fused_experts(*step.args, "silu", step.expert_map, tiles=(SMALL, SMALL))
    step.weights[0, 1], step.ids[0, 1] = 0.0, 0
    torch.testing.assert_close(got.double(), step.exact(), rtol=0, atol=2e-6)


def test_8_bit_floats_are_those_of_the_definition(make_step: Callable[..., Any]) -> None:
    from opdock.nn.moe.native import fused_experts

    step = make_step(5)
    s13, s2 = (w.abs().amax(-1) / 448.0 for w in (step.w13, step.w2))
    w13 = (step.w13 / s13[..., None]).to(torch.float8_e4m3fn)
    w2 = (step.w2 / s2[..., None]).to(torch.float8_e4m3fn)
    args = (step.x, w13, w2, step.weights, step.ids, "silu", None, s13, s2)
    got = moe.fused_experts(*args, tiles=(SMALL, SMALL))
    torch.testing.assert_close(got, fused_experts(*args), rtol=0, atol=1e-2)


@pytest.mark.parametrize("limit", [4096, 100])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_plan_holds_every_place_once_under_its_expert(
    limit: int, monkeypatch: pytest.MonkeyPatch, *, elsewhere: bool
) -> None:
    """In one kernel, and in the three for many places."""
    monkeypatch.setattr(moe_plan, "_SMALL", limit)
    ids = torch.randint(0, 16, (70, 8), generator=torch.Generator().manual_seed(1)).int()
    ids[ids == 9] = 4  # an expert without a place
    table = torch.where(torch.arange(16) % 3 == 0, torch.arange(16) // 3, -1).int() if elsewhere else None
    local = (ids if table is None else table[ids.long()]).view(-1)
    plan = moe_plan.make_plan(ids, 6 if elsewhere else 16, 16, table)
    assert plan.rows is not None
    seen = []
    for expert, first, count in plan.table.T.tolist():
        if count > 0:
            assert count <= 16
            rows = plan.rows[first : first + count].tolist()
            assert (local[rows] == expert).all()
            seen += rows
    assert sorted(seen) == torch.nonzero(local >= 0).view(-1).tolist()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    ("experts", "top_k", "groups"),
    [(8, 2, (1, 1, "max")), (20, 3, (4, 2, "top2")), (64, 6, (8, 3, "max")), (5, 5, (1, 1, "max"))],
)
def test_the_choice_is_that_of_the_definition(
    experts: int, top_k: int, groups: tuple[int, int, str], scoring: str, *, biased: bool
) -> None:
    made = torch.Generator().manual_seed(experts)
    logits = torch.randn(6, experts, generator=made)
    logits[0] = 0.0  # ties
    logits[1, ::2] = logits[1, 0]
    logits[2, 3] = float("nan")
    bias = torch.randn(experts, generator=made) if biased else None
    routing = Routing(experts, top_k, scoring, True, 1.5, *groups)
    want, want_ids = route(logits, routing, bias)
    got, ids = moe_route.route(
        logits,
        bias,
        top_k=top_k,
        sigmoid=scoring == "sigmoid",
        renormalize=True,
        scaling=1.5,
        groups=groups[0],
        topk_groups=groups[1],
        top2=groups[2] == "top2",
    )
    assert torch.equal(ids, want_ids)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
