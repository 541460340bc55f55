"""The experts of a step with torch's grouped product: rows sorted by expert, one product for all of them."""

from __future__ import annotations

import torch

from opdock.nn.moe.native import ACTIVATIONS, local_ids


def grouped_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    activation: str = "silu",
    expert_map: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the weighted sum of the experts of each token; see ``opdock.nn.moe.native.fused_experts``.

    Nothing is asked of the device: sizes are those of the worst case. Rows whose expert lies elsewhere come last, are
    multiplied by nothing, and are left out of the sum.
    """
    experts, top_k, inner = w13.shape[0], ids.shape[1], w2.shape[2]
    if not x.shape[0]:
        return torch.empty_like(x)
    local = local_ids(ids, expert_map)
    local = torch.where((local >= 0) & (local < experts), local, experts).view(-1)
    ordered, order = local.sort(stable=True)
    ends = torch.searchsorted(ordered, torch.arange(experts, device=x.device, dtype=ordered.dtype), right=True)
    ends = ends.to(torch.int32)
    made = torch._grouped_mm(x[order // top_k], w13.transpose(1, 2), offs=ends)
    between = ACTIVATIONS[activation](made[:, :inner]) * made[:, inner:]
    made = torch._grouped_mm(between, w2.transpose(1, 2), offs=ends)
    made = made.float() * weights.reshape(-1)[order].float()[:, None]
    made = torch.where((ordered < experts)[:, None], made, 0.0)  # what was not computed may be anything, NaN too
    parts = torch.empty_like(made)
    parts[order] = made
    return parts.view(-1, top_k, x.shape[1]).sum(dim=1).to(x.dtype)
