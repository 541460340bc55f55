"""What a decoder is built from: one dataclass, whatever file it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opdock.errors import CheckpointError, UnsupportedError, suggest
from opdock.nn.models.facts import LatentConfig, MixtureConfig

if TYPE_CHECKING:
    from opdock.nn.quantization.config import QuantizationConfig

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
MAX_LAYERS, MAX_POSITION = 10_000, 2**24  # beyond these a configuration is broken, and filling tables would hang
ROPE_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "factors": ("factors",),
    "yarn": ("factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True)
class ModelConfig:
    """The facts of a decoder.

    Args:
        architecture: name in the registry of architectures.
        vocab_size: number of token ids.
        hidden_size: length of a hidden row.
        intermediate_size: length of a row between the two matrices of the MLP.
        num_layers: number of layers.
        num_heads: query heads of a layer.
        num_kv_heads: key and value heads of a layer, a divisor of num_heads.
        head_dim: length of a head.
        rms_norm_eps: epsilon of every norm.
        max_position: longest context, in tokens.
        rope_theta: base of the rotary frequencies.
        rope_scaling: ``rope_type`` and its numbers; see ``get_rope``.
        rotary_dim: rotated part of a head.
        hidden_act: activation of the MLP.
        tie_word_embeddings: whether the head shares the embedding's weight.
        qkv_bias, o_bias, mlp_bias: which linear layers have a bias.
        qk_norm: whether each head of query and key is normalised.
        dtype: of the stored weights, as torch names it, or None where the file does not say.
        bos_token_id: id of the first token, or None.
        eos_token_ids: ids that end a text.
        source: the file that says all this.
        mixture: of experts, or None.
        latent: attention, or None; head_dim and rotary_dim are then the rotated part of a head.
        quant_config: how linear layers hold their weights; None: as they are.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    rotary_dim: int = 0
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    dtype: str | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    source: str = ""
    mixture: MixtureConfig | None = None
    latent: LatentConfig | None = None
    quant_config: QuantizationConfig | None = None

    def __post_init__(self) -> None:
        """Check that the numbers can make a model."""
        object.__setattr__(self, "rotary_dim", self.rotary_dim or self.head_dim)
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        for name in (*sizes, "head_dim", "max_position", "rotary_dim"):
            if getattr(self, name) < 1:
                raise self._broken(f"{name} is {getattr(self, name)}, which is no size.")
        for name, most in (("num_layers", MAX_LAYERS), ("max_position", MAX_POSITION)):
            if getattr(self, name) > most:
                raise self._broken(f"{name} is {getattr(self, name)}, more than {most}.")
        if self.num_heads % self.num_kv_heads:
            raise self._broken(f"{self.num_heads} query heads cannot share {self.num_kv_heads} key heads.")
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise self._broken(f"rotary_dim {self.rotary_dim} is odd or larger than head_dim {self.head_dim}.")
        if self.hidden_act not in ACTIVATIONS:
            raise UnsupportedError(
                f"No MLP with activation {self.hidden_act!r}.",
                who=self.source,
                remedy=suggest(self.hidden_act, ACTIVATIONS),
            )
        kind = str(self.rope_scaling.get("rope_type", "default"))
        if kind not in ROPE_NEEDS:
            raise UnsupportedError(
                f"No rotary embedding of type {kind!r}.", who=self.source, remedy=suggest(kind, ROPE_NEEDS)
            )
        lacking = [name for name in ROPE_NEEDS[kind] if self.rope_scaling.get(name) is None]
        if lacking:
            raise self._broken(f"rotary scaling {kind!r} lacks {', '.join(lacking)}.")

    def _broken(self, why: str) -> CheckpointError:
        return CheckpointError(
            "The model's configuration is impossible.",
            who=self.source,
            why=why,
            remedy="download the checkpoint again, or correct its configuration.",
        )


class Fields:
    """Reads fields of a configuration, and says clearly what is missing or of the wrong kind."""

    def __init__(self, raw: Mapping[str, Any], source: str, prefix: str = "") -> None:
        """Keep the mapping; ``prefix`` stands before every key."""
        self.raw, self.source, self.prefix = raw, source, prefix

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number; CheckpointError if there is none and no default."""
        value = self.raw.get(self.prefix + key)
        if value is None:
            if default is not None:
                return default
            raise CheckpointError(
                f"The model's configuration has no {self.prefix + key!r}.",
                who=self.source,
                remedy="download the checkpoint again; it is incomplete or of another kind.",
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CheckpointError(
                f"{self.prefix + key!r} in the model's configuration is not a number: {value!r}.",
                who=self.source,
                remedy="download the checkpoint again; it is broken or of another kind.",
            )
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """Return a whole number; CheckpointError if there is none and no default, or it has a fraction."""
        value = self.number(key, default)
        if value != int(value):
            raise CheckpointError(
                f"{self.prefix + key!r} in the model's configuration is not a whole number: {value!r}.",
                who=self.source,
            )
        return int(value)

    def flag(self, key: str) -> bool:
        """Return a truth value; one that is missing is False."""
        return bool(self.raw.get(self.prefix + key))


def token_ids(value: object) -> tuple[int, ...]:
    """Return one id, a list of ids or None as a tuple."""
    if isinstance(value, int):
        return (value,)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, (list, tuple)) else ()
