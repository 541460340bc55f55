"""A small correct package that replaces experts and latent attention, as text, and faults seeded into it."""

from __future__ import annotations

import package

LAYERS = """\
import dataclasses

import torch
import torch.nn.functional as F

from opdock.nn.layers.mla import MultiHeadLatentAttention
from opdock.nn.moe import FusedMoE, route
from opdock.nn.moe.native import ACTIVATIONS


@FusedMoE.register_oot
class GoodFusedMoE(FusedMoE):
    def forward(self, hidden_states, router_logits=None):
        x, routing = hidden_states, self.routing
        if router_logits is None:
            router_logits = self._logits(x)
        weights, ids = route(router_logits, routing, self.e_score_correction_bias)
        act, out = ACTIVATIONS[self.activation], torch.zeros(x.shape, dtype=weights.dtype, device=x.device)
        for e in range(self.local_experts):
            share = (weights * (ids == e + self.first)).sum(-1, keepdim=True)
            gate, up = F.linear(x, self.w13_weight[e]).chunk(2, -1)
            out = out + share * F.linear(act(gate) * up, self.w2_weight[e])
        out = out.to(x.dtype)
        if self.shared_experts is not None and self.ep_rank == 0:
            shared = self.shared_experts(x)
            if self.shared_expert_gate is not None:
                shared = shared * torch.sigmoid(self.shared_expert_gate(x))
            out = out + shared
        return out


@MultiHeadLatentAttention.register_oot
class GoodLatentAttention(MultiHeadLatentAttention):
    def forward(self, positions, hidden_states, cache):
        sizes, tokens = self.latent, hidden_states.shape[0]
        q = self.q_proj(hidden_states)[0].view(tokens, self.num_heads, self.head_dim)
        q_nope, q_rope = q.split((sizes.nope_dim, sizes.rope_dim), dim=-1)
        rows, key_part = self.kv_a_proj_with_mqa(hidden_states)[0].split((sizes.kv_rank, sizes.rope_dim), dim=-1)
        rows = self.kv_a_layernorm(rows.contiguous())
        q_rope, key_part = self.rotary_emb(positions, q_rope.reshape(tokens, -1), key_part.contiguous())
        q_rope = q_rope.view(tokens, self.num_heads, sizes.rope_dim)
        batch = 1 if cache is None else cache.batch
        both = torch.cat((rows, key_part), -1).view(batch, 1, tokens // batch, -1)
        if cache is not None:
            both = cache.append_rows(both)
        length, new = both.shape[2], tokens // batch
        rows, key_part = both[:, 0].split((sizes.kv_rank, sizes.rope_dim), dim=-1)
        made = self.kv_b_proj(rows)[0].view(batch, length, self.num_heads, -1)
        k_nope, values = made.split((sizes.nope_dim, sizes.value_dim), dim=-1)
        q_nope, q_rope = (t.view(batch, new, self.num_heads, -1) for t in (q_nope, q_rope))
        scores = torch.einsum("bqhd,bkhd->bhqk", q_nope, k_nope) + torch.einsum("bqhd,bkd->bhqk", q_rope, key_part)
        seen = torch.ones(new, length, dtype=torch.bool, device=q.device).tril(length - new)
        weights = (scores * self.scale).float().masked_fill(~seen, float("-inf")).softmax(-1).to(values.dtype)
        out = torch.einsum("bhqk,bkhd->bqhd", weights, values).reshape(tokens, -1)
        return self.o_proj(out)[0]
"""

PLATFORM = """\
import torch

from opdock import Platform, PlatformEnum


class GoodPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "good"
    device_type = "cpu"
    dispatch_key = "CPU"
    api_version = 1

    @property
    def supported_dtypes(self):
        return [torch.float32, torch.bfloat16]

    @classmethod
    def register_oot(cls):
        from opdock_good import layers
"""

FILES = {"__init__.py": package.INIT, "platform.py": PLATFORM, "layers.py": LAYERS}
MOE, LATENT = "fused_moe", "multi_head_latent_attention"

_ROUTE = "route(router_logits, routing, "
_RETURN = "            out = out + share * F.linear"
_APPEND = "both = cache.append_rows(both)"


def _routing(**changes: object) -> tuple[str, str]:
    what = ", ".join(f"{name}={value!r}" for name, value in changes.items())
    return _ROUTE, f"route(router_logits, dataclasses.replace(routing, {what}), "


FAULTS: dict[str, tuple[str, tuple[str, str]]] = {
    "ignores the correction bias": (MOE, ("self.e_score_correction_bias)", "None)")),
    "ignores the scaling factor": (MOE, _routing(scaling_factor=1.0)),
    "always divides by the sum": (MOE, _routing(renormalize=True)),
    "ignores groups": (MOE, _routing(num_groups=1, topk_groups=1)),
    "scores groups by their best": (MOE, _routing(group_score="max")),
    "softmax whatever is asked": (MOE, _routing(scoring="softmax")),
    "silu whatever is asked": (MOE, ("ACTIVATIONS[self.activation]", "F.silu")),
    "up before gate": (MOE, ("gate, up = F", "up, gate = F")),
    "the first choice only": (
        MOE,
        ("(weights * (ids == e + self.first))", "(weights * (ids == e + self.first))[:, :1]"),
    ),
    "experts numbered as on the first rank": (MOE, ("e + self.first", "e")),
    "drops rows beyond a capacity of 64": (
        MOE,
        (_RETURN, f"            share = share * ((share != 0).cumsum(0) <= 64)\n{_RETURN}"),
    ),
    "leaves the shared expert out": (MOE, ("if self.shared_experts is not None and", "if False and")),
    "does not squash the shared expert's gate": (MOE, ("torch.sigmoid(self", "(self")),
    "sums in bfloat16": (MOE, (_RETURN, "            out = out.bfloat16() + share * F.linear")),
    "scale of the head size": (LATENT, ("scores * self.scale", "scores * self.head_dim**-0.5")),
    "latent rows not normalised": (
        LATENT,
        ("rows = self.kv_a_layernorm(rows.contiguous())", "rows = rows.contiguous()"),
    ),
    "another epsilon": (
        LATENT,
        (
            "self.kv_a_layernorm(rows.contiguous())",
            "F.rms_norm(rows, (sizes.kv_rank,), self.kv_a_layernorm.weight, 1e-6)",
        ),
    ),
    "no mask": (LATENT, (".tril(length - new)", "")),
    "mask from the top left": (LATENT, (".tril(length - new)", ".tril()")),
    "keys without the rotated part": (LATENT, (' + torch.einsum("bqhd,bkd->bhqk", q_rope, key_part)', "")),
    "forgets to keep the rows": (LATENT, (_APPEND, "both = torch.cat((cache._keys[:, :, : cache.length], both), 2)")),
    "positions from 0": (LATENT, ("self.rotary_emb(positions,", "self.rotary_emb(positions - positions[0],")),
}
"""Name to op name and (old text, new text) of ``layers.py``, which must be there once."""


def files_of(fault: str) -> dict[str, str]:
    """Return the package with a fault."""
    old, new = FAULTS[fault][1]
    if LAYERS.count(old) != 1:
        raise ValueError(f"{old!r} occurs {LAYERS.count(old)} times")
    return {**FILES, "layers.py": LAYERS.replace(old, new)}
