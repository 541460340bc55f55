"""What a quantisation method must say of itself, and which method each layer gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opdock.errors import CheckpointError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from opdock.nn.quantization.method import QuantizeMethodBase

MISSING: Any = object()


class QuantizationConfig(ABC):
    """The facts of one quantised checkpoint; a subclass is one method.

    Attributes:
        packed_modules_mapping: the name of a fused layer to the names of its parts in checkpoints, for example
            ``{"qkv_proj": ["q_proj", "k_proj", "v_proj"]}``. The model's loader fills it.
    """

    def __init__(self) -> None:
        """Start with no fused layers; a subclass calls this."""
        self.packed_modules_mapping: dict[str, list[str]] = {}

    @abstractmethod
    def get_name(self) -> str:
        """Return the name that the method is registered under."""

    @abstractmethod
    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Return the dtypes that activations may have."""

    @classmethod
    @abstractmethod
    def get_min_capability(cls) -> int:
        """Return the lowest compute capability, for example 80; -1 for none. Devices without one are not asked."""

    @staticmethod
    @abstractmethod
    def get_config_filenames() -> list[str]:
        """Return the files beside config.json in which older tools wrote the configuration."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        """Return the configuration that a checkpoint's ``quantization_config`` describes."""

    @abstractmethod
    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Return how ``layer``, whose path in the model is ``prefix``, holds and applies its weight.

        None leaves a layer that is not linear as it is.
        """

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Return this method's name if it takes a checkpoint over that names another method, else None."""
        return None

    def get_cache_scale_mapper(self) -> Mapping[str, str]:
        """Return ends of names of KV-cache scales in checkpoints to ends of names of the model's buffers."""
        return {}

    def get_checkpoint_weight_mapper(self) -> Mapping[str, str]:
        """Return ends of names of tensors in checkpoints to the ends that the method's parameters have."""
        return {}

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:  # noqa: B027 - optional
        """Rename the layers that the configuration lists.

        Never called here: a configuration is asked about layers by their names in the checkpoint.
        """

    def maybe_update_config(self, model_name: str) -> None:  # noqa: B027 - optional
        """Complete the configuration from the checkpoint itself; called once, before the first layer.

        Args:
            model_name: the checkpoint's folder.
        """

    @staticmethod
    def get_from_keys(config: Mapping[str, Any], keys: Sequence[str], default: Any = MISSING) -> Any:
        """Return the first of ``keys`` that ``config`` has; CheckpointError if none and no default."""
        for key in keys:
            if key in config:
                return config[key]
        if default is not MISSING:
            return default
        raise CheckpointError(
            f"The quantisation configuration has none of {', '.join(map(repr, keys))}.",
            why=f"it has {', '.join(map(repr, config)) or 'nothing'}",
            remedy="download the checkpoint again; it is incomplete or of another kind.",
        )

    @classmethod
    def get_from_keys_or(cls, config: Mapping[str, Any], keys: Sequence[str], default: Any) -> Any:
        """Return the first of ``keys`` that ``config`` has, else ``default``."""
        return cls.get_from_keys(config, keys, default)

    def __repr__(self) -> str:
        facts = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if k != "packed_modules_mapping")
        return f"{type(self).__name__}({facts})"
