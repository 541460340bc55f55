"""The choice of experts in one kernel: scores, groups, the best, and their weights."""

# ruff: noqa: ANN001, ANN201, N803 - Triton has its own types and habits
# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-not-found,attr-defined"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from opdock.nn.kernels.triton.launch import launch

if TYPE_CHECKING:
    from torch import Tensor

MOST_EXPERTS = 1024


@triton.jit
def first_best(values, lanes, LANES: tl.constexpr):
    """Return the lane of the largest value, of equals the first."""
    return tl.min(tl.where(values == tl.max(values, axis=0), lanes, LANES), axis=0)


@triton.jit(do_not_specialize=["scaling"])
def route_token(
    logits_ptr, weights_ptr, ids_ptr, bias_ptr, experts, top_k, size, scaling,
    LANES: tl.constexpr, SLOTS: tl.constexpr, SIGMOID: tl.constexpr, RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr, TOPK_GROUPS: tl.constexpr, GROUP_LANES: tl.constexpr, TOP2: tl.constexpr,
):  # fmt: skip
    """Choose the experts of one token; ``size`` experts make a group."""
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, LANES)
    inside = lanes < experts
    x = tl.load(logits_ptr + token * experts + lanes, mask=inside, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-x))
    else:
        scores = tl.exp(x - tl.max(x, axis=0))
        scores = scores / tl.sum(scores, axis=0)
    choice = scores
    if bias_ptr is not None:
        choice += tl.load(bias_ptr + lanes, mask=inside, other=0.0).to(tl.float32)
    choice = tl.where(choice != choice, float("inf"), choice)  # NaN is above all, as in a sort
    choice = tl.where(inside, choice, float("-inf"))
    if GROUPS > 1:
        groups = tl.arange(0, GROUP_LANES)
        of_groups = tl.full((GROUP_LANES,), float("-inf"), tl.float32)
        for g in range(GROUPS):
            mine = tl.where(lanes // size == g, choice, float("-inf"))
            value = tl.max(mine, axis=0)
            if TOP2:
                value += tl.max(tl.where(lanes == first_best(mine, lanes, LANES), float("-inf"), mine), axis=0)
            of_groups = tl.where(groups == g, value, of_groups)
        taken = tl.zeros((LANES,), tl.int32)
        for _ in range(TOPK_GROUPS):
            g = first_best(of_groups, groups, GROUP_LANES)
            taken = tl.where(lanes // size == g, 1, taken)
            of_groups = tl.where(groups == g, float("-inf"), of_groups)
        choice = tl.where(taken > 0, choice, float("-inf"))
    slots = tl.arange(0, SLOTS)
    weights = tl.zeros((SLOTS,), tl.float32)
    ids = tl.zeros((SLOTS,), tl.int32)
    for slot in range(top_k):
        best = first_best(choice, lanes, LANES)
        weights = tl.where(slots == slot, tl.sum(tl.where(lanes == best, scores, 0.0), axis=0), weights)
        ids = tl.where(slots == slot, best, ids)
        choice = tl.where(lanes == best, float("-inf"), choice)
    if RENORMALIZE:
        weights = weights / (tl.sum(weights, axis=0) + 1e-20)
    chosen = slots < top_k
    tl.store(weights_ptr + token * top_k + slots, weights * scaling, mask=chosen)
    tl.store(ids_ptr + token * top_k + slots, ids, mask=chosen)


def route(
    logits: Tensor,
    bias: Tensor | None,
    *,
    top_k: int,
    sigmoid: bool,
    renormalize: bool,
    scaling: float,
    groups: int,
    topk_groups: int,
    top2: bool,
) -> tuple[Tensor, Tensor]:
    """Return weights (tokens, top_k) float32 and ids (tokens, top_k) int32; see ``opdock.nn.moe.routing.route``.

    Args:
        logits: (tokens, experts) float16, bfloat16 or float32, contiguous, at most 1024 experts.
        bias: (experts,) floating, or None.
        top_k: experts of a token.
        sigmoid: the scores are sigmoids, otherwise a softmax.
        renormalize: divide the weights by their sum.
        scaling: multiplies the weights, no unit.
        groups: groups of equal size.
        topk_groups: groups that a token may choose from.
        top2: a group's score is the sum of its two best, otherwise its best.
    """
    tokens, experts = logits.shape
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((tokens, top_k), dtype=torch.int32, device=logits.device)
    if tokens:
        launch(
            route_token,
            (tokens,),
            ("weights_ptr", "ids_ptr"),
            (logits, weights, ids, bias, experts, top_k, experts // groups, float(scaling)),
            1 if experts <= 256 else 4,
            LANES=triton.next_power_of_2(experts),
            SLOTS=triton.next_power_of_2(top_k),
            SIGMOID=sigmoid,
            RENORMALIZE=renormalize,
            GROUPS=groups,
            TOPK_GROUPS=topk_groups,
            GROUP_LANES=triton.next_power_of_2(groups),
            TOP2=top2,
        )
    return weights, ids
