"""What a configuration says of mixtures of experts and of latent attention; plain data, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from opdock.errors import ConfigError


@dataclass(frozen=True)
class MixtureConfig:
    """The mixture of experts of a decoder.

    Args:
        num_experts: experts of a layer.
        top_k: experts that each token goes to.
        intermediate_size: length of a row between the two matrices of an expert.
        layers: indices of the layers that have experts; the others have an ordinary MLP.
        scoring: ``softmax`` or ``sigmoid``, of the router's logits.
        renormalize: whether the weights of a token's experts are divided by their sum.
        scaling_factor: multiplies the weights, no unit.
        num_groups: groups of equal size that the experts fall into; 1: no groups.
        topk_groups: groups that a token may choose from.
        group_score: of a group: ``max``, its best score, or ``top2``, the sum of its two best.
        correction_bias: whether a learned bias is added to the scores for the choice, not for the weights.
        float32_router: whether the router's logits are computed in float32, whatever the model's dtype.
        shared_size: length of a row between the two matrices of the expert that all tokens go to; 0: there is none.
        shared_gate: whether that expert's output is multiplied by the sigmoid of a learned number of each token.
        names: of the three matrices of an expert and the shared expert in a checkpoint: gate, up, down, shared.
        block: name of the module in a checkpoint that holds router and experts.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    layers: frozenset[int]
    scoring: str = "softmax"
    renormalize: bool = True
    scaling_factor: float = 1.0
    num_groups: int = 1
    topk_groups: int = 1
    group_score: str = "max"
    correction_bias: bool = False
    float32_router: bool = False
    shared_size: int = 0
    shared_gate: bool = False
    names: tuple[str, str, str, str] = ("gate_proj", "up_proj", "down_proj", "shared_experts")
    block: str = "mlp"


@dataclass(frozen=True)
class LatentConfig:
    """The latent attention of a decoder: keys and values of all heads are made from one short row of each token.

    Args:
        kv_rank: length of that row.
        nope_dim: part of a head's query and key that is not rotated.
        rope_dim: part that is rotated, even; all heads share the key's.
        value_dim: length of a head's value.
        q_rank: length of the row that the queries are made from, or None where they are made from the hidden row.
        bias: whether the projections from and to hidden rows have a bias.
        neox: whether elements i and i + rope_dim / 2 are rotated together; False: 2i and 2i + 1.
        scale_factor: multiplies the scale of the scores, no unit.

    Raises: ConfigError for sizes that cannot be.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int | None = None
    bias: bool = False
    neox: bool = False
    scale_factor: float = 1.0

    def __post_init__(self) -> None:
        """Check that the sizes can make a layer."""
        for name in ("kv_rank", "nope_dim", "rope_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Latent attention: {name} is {getattr(self, name)}, which is no size.")
        if self.rope_dim % 2:
            raise ConfigError(f"Latent attention: rope_dim {self.rope_dim} is odd.", remedy="use an even one.")
        if self.q_rank is not None and self.q_rank < 1:
            raise ConfigError(f"Latent attention: q_rank is {self.q_rank}, which is no size.")
