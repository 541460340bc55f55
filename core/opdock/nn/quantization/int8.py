"""int8 weights and activations, without a tool of its own: from floats, or from scales beside int8 weights."""

from __future__ import annotations

from typing import Any

import torch

from opdock.errors import UnsupportedError
from opdock.nn.quantization import fields
from opdock.nn.quantization.base import LinearConfig
from opdock.nn.quantization.method import LinearMethodBase
from opdock.nn.quantization.scaled import ScaledLinearMethod


class Int8Config(LinearConfig):
    """int8 weights with a scale for each output; tools store such checkpoints as compressed-tensors.

    Args:
        serialized: whether the checkpoint holds int8 weights and ``weight_scale`` (outputs, 1).
        activation_scheme: ``static`` or ``dynamic``.
        ignored: names of layers that stay as they are.
    """

    def __init__(
        self, *, serialized: bool = False, activation_scheme: str = "dynamic", ignored: list[str] | None = None
    ) -> None:
        """Check that the facts go together."""
        super().__init__(ignored)
        self.serialized, self.activation_scheme = serialized, activation_scheme
        if activation_scheme == "static" and not serialized:
            raise UnsupportedError(
                "int8 with static activations needs scales in the checkpoint.",
                why="It holds floats.",
                remedy='set "activation_scheme": "dynamic".',
            )

    def get_name(self) -> str:
        """Return ``int8_w8a8``."""
        return "int8_w8a8"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Int8Config:
        """Return the configuration of a checkpoint with ``"quant_method": "int8_w8a8"``."""
        return cls(
            serialized="quant_method" in config,
            activation_scheme=fields.choice(config, ["activation_scheme"], ["static", "dynamic"], "dynamic"),
            ignored=fields.names(config, "ignored_layers", "modules_to_not_convert"),
        )

    def linear_method(self, prefix: str) -> LinearMethodBase:
        """Return the method of one layer."""
        return ScaledLinearMethod(
            torch.int8,
            per="channel",
            static=self.activation_scheme == "static",
            online=not self.serialized,
            prefix=prefix,
        )
