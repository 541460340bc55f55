"""fp8 checkpoints: one scale for each tensor, static or per-token activations, or blocks of 128 x 128."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from opdock.errors import UnsupportedError
from opdock.nn.quantization import fields
from opdock.nn.quantization.base import LinearConfig
from opdock.nn.quantization.method import LinearMethodBase
from opdock.nn.quantization.scaled import ScaledLinearMethod


class Fp8Config(LinearConfig):
    """float8_e4m3fn weights.

    Args:
        is_checkpoint_fp8_serialized: False: the checkpoint holds floats, and each output gets a scale after loading.
        activation_scheme: ``static`` or ``dynamic``.
        ignored_layers: names of layers that stay as they are.
        weight_block_size: [128, 128], or None for one scale in all.
    """

    def __init__(
        self,
        *,
        is_checkpoint_fp8_serialized: bool = False,
        activation_scheme: str = "dynamic",
        ignored_layers: list[str] | None = None,
        weight_block_size: list[int] | None = None,
    ) -> None:
        """Check that the facts go together."""
        super().__init__(ignored_layers)
        self.is_checkpoint_fp8_serialized = is_checkpoint_fp8_serialized
        self.activation_scheme = activation_scheme
        self.weight_block_size = fields.blocks({"weight_block_size": weight_block_size}, "weight_block_size")
        if activation_scheme == "static" and (weight_block_size or not is_checkpoint_fp8_serialized):
            raise UnsupportedError(
                "fp8 with static activations needs scales in the checkpoint, one for each tensor.",
                why="It has scales of blocks." if weight_block_size else "It holds floats.",
                remedy='set "activation_scheme": "dynamic".',
            )

    def get_name(self) -> str:
        """Return ``fp8``."""
        return "fp8"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Fp8Config:
        """Return the configuration of a checkpoint with ``"quant_method": "fp8"``."""
        return cls(
            is_checkpoint_fp8_serialized="fp8" in str(config.get("quant_method", "")),
            activation_scheme=fields.choice(config, ["activation_scheme"], ["static", "dynamic"], "dynamic"),
            ignored_layers=fields.names(config, "ignored_layers", "modules_to_not_convert"),
            weight_block_size=fields.blocks(config, "weight_block_size"),
        )

    def get_checkpoint_weight_mapper(self) -> Mapping[str, str]:
        """Return the names that transformers stores one scale for each tensor under."""
        if self.weight_block_size is not None:
            return {}
        return {".weight_scale_inv": ".weight_scale", ".activation_scale": ".input_scale"}

    def linear_method(self, prefix: str) -> LinearMethodBase:
        """Return the method of one layer."""
        blocks = self.weight_block_size is not None
        online = not self.is_checkpoint_fp8_serialized
        return ScaledLinearMethod(
            torch.float8_e4m3fn,
            per="block" if blocks else "channel" if online else "tensor",
            static=self.activation_scheme == "static",
            scale_name="weight_scale_inv" if blocks and not online else "weight_scale",
            online=online,
            prefix=prefix,
        )
