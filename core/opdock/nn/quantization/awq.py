"""AWQ checkpoints with 4 bits, of the gemm format."""

from __future__ import annotations

from typing import Any

from opdock.nn.quantization import fields
from opdock.nn.quantization.base import LinearConfig
from opdock.nn.quantization.int4 import Int4LinearMethod
from opdock.nn.quantization.method import LinearMethodBase


class AWQConfig(LinearConfig):
    """What AutoAWQ writes.

    Args:
        weight_bits: 4.
        group_size: inputs that share a scale; -1: all.
        zero_point: whether groups have zero points of their own.
        modules_to_not_convert: names, any part of a layer's path, of layers that stay as they are.
    """

    ignored_anywhere = True

    def __init__(
        self, *, weight_bits: int, group_size: int, zero_point: bool, modules_to_not_convert: list[str] | None = None
    ) -> None:
        """Check that such a checkpoint can be loaded."""
        super().__init__(modules_to_not_convert)
        fields.four_bits(weight_bits, "AWQ")
        self.weight_bits, self.group_size, self.zero_point = weight_bits, group_size, zero_point

    def get_name(self) -> str:
        """Return ``awq``."""
        return "awq"

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Return the files that older tools wrote it in."""
        return ["quant_config.json", "quantize_config.json"]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AWQConfig:
        """Return the configuration of a checkpoint with ``"quant_method": "awq"``."""
        fields.described(config, "AWQ")
        fields.choice(config, ["version", "format"], ["gemm", "GEMM"], "gemm")
        return cls(
            weight_bits=fields.integer(config, "w_bit", "bits"),
            group_size=fields.integer(config, "q_group_size", "group_size"),
            zero_point=fields.flag(config, "zero_point", default=True),
            modules_to_not_convert=fields.names(config, "modules_to_not_convert"),
        )

    def linear_method(self, prefix: str) -> LinearMethodBase:
        """Return the method of one layer; its zero points are in the checkpoint in any case."""
        return Int4LinearMethod("awq", group_size=self.group_size, zero_points=True, stored_zeros=True, prefix=prefix)
