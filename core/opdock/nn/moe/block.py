"""The experts of a decoder's layer, from the model's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from opdock.nn.layers import ReplicatedLinear
from opdock.nn.moe.fused_moe import FusedMoE

if TYPE_CHECKING:
    from opdock.nn.models.config import ModelConfig


def build_mixture(config: ModelConfig, prefix: str) -> FusedMoE:
    """Return the experts of a layer, with router and shared expert; weights uninitialised.

    Args:
        config: with a mixture.
        prefix: the layer's path in its model.

    Raises: as ``FusedMoE``.
    """
    from opdock.nn.models.blocks import DecoderMLP

    mixture, hidden = config.mixture, config.hidden_size
    if mixture is None:
        raise ValueError("the configuration has no mixture")
    narrow = torch.get_default_dtype() in (torch.float16, torch.bfloat16)
    router_dtype = torch.float32 if mixture.float32_router and narrow else None
    stored = f"{prefix.rpartition('.')[0]}.{mixture.block}"  # the path in checkpoints, whose lists name it
    shared = gate = None
    if mixture.shared_size:
        shared = DecoderMLP(config, f"{stored}.{mixture.names[3]}", mixture.shared_size)
    if mixture.shared_gate:
        gate = ReplicatedLinear(hidden, 1, bias=False, prefix=f"{prefix}.shared_expert_gate")
    return FusedMoE(
        mixture.num_experts,
        mixture.top_k,
        hidden,
        mixture.intermediate_size,
        renormalize=mixture.renormalize,
        num_expert_group=mixture.num_groups,
        topk_group=mixture.topk_groups,
        scoring_func=mixture.scoring,
        routed_scaling_factor=mixture.scaling_factor,
        activation=config.hidden_act,
        prefix=prefix,
        group_score=mixture.group_score,
        correction_bias=mixture.correction_bias,
        gate=ReplicatedLinear(
            hidden, mixture.num_experts, bias=False, params_dtype=router_dtype, prefix=f"{prefix}.gate"
        ),
        float32_router=mixture.float32_router,
        shared_experts=shared,
        shared_expert_gate=gate,
        quant_config=config.quant_config,
        checkpoint_names=[f"{stored}.experts.0.{n}" for n in mixture.names[:3]],
    )
