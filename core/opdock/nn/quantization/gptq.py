"""GPTQ checkpoints with 4 bits, of both formats, with and without act-order."""

from __future__ import annotations

from typing import Any

from opdock.errors import UnsupportedError
from opdock.nn.quantization import fields
from opdock.nn.quantization.base import LinearConfig
from opdock.nn.quantization.int4 import Int4LinearMethod
from opdock.nn.quantization.method import LinearMethodBase


class GPTQConfig(LinearConfig):
    """What GPTQ tools write.

    Args:
        weight_bits: 4.
        group_size: inputs that share a scale; -1: all.
        desc_act: whether inputs were quantised in another order (act-order).
        sym: whether every zero point is 8.
        checkpoint_format: ``gptq`` (zero points stored less one) or ``gptq_v2``.
        ignored: names of layers that stay as they are.
    """

    def __init__(
        self,
        *,
        weight_bits: int,
        group_size: int,
        desc_act: bool,
        sym: bool = True,
        checkpoint_format: str = "gptq",
        ignored: list[str] | None = None,
    ) -> None:
        """Check that such a checkpoint can be loaded."""
        super().__init__(ignored)
        fields.four_bits(weight_bits, "GPTQ")
        self.weight_bits, self.group_size, self.desc_act, self.sym = weight_bits, group_size, desc_act, sym
        self.checkpoint_format = checkpoint_format

    def get_name(self) -> str:
        """Return ``gptq``."""
        return "gptq"

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Return ``quantize_config.json``, where older tools wrote it."""
        return ["quantize_config.json"]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> GPTQConfig:
        """Return the configuration of a checkpoint with ``"quant_method": "gptq"``."""
        fields.described(config, "GPTQ")
        if config.get("dynamic"):
            raise UnsupportedError(
                "GPTQ with another setting for some layers (dynamic) is not supported.",
                remedy="quantise all layers alike, or exclude them.",
            )
        return cls(
            weight_bits=fields.integer(config, "bits"),
            group_size=fields.integer(config, "group_size"),
            desc_act=fields.flag(config, "desc_act", default=False),
            sym=fields.flag(config, "sym", default=True),
            checkpoint_format=fields.choice(config, ["checkpoint_format"], ["gptq", "gptq_v2"], "gptq"),
            ignored=fields.names(config, "modules_to_not_convert"),
        )

    def linear_method(self, prefix: str) -> LinearMethodBase:
        """Return the method of one layer."""
        return Int4LinearMethod(
            "gptq",
            group_size=self.group_size,
            zero_points=not self.sym,
            reordered=self.desc_act and self.group_size != -1,
            stored_zeros=True,
            zeros_less_one=self.checkpoint_format == "gptq",
            holds_g_idx=True,
            prefix=prefix,
        )
