"""GPTQ checkpoints with 4 bits, of both formats, with and without act-order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.quantization import fields
from opdock.nn.quantization.base import LinearConfig
from opdock.nn.quantization.ignored import all_or_none
from opdock.nn.quantization.int4 import Int4LinearMethod
from opdock.nn.quantization.method import LinearMethodBase, UnquantizedLinearMethod

_LEFT_OUT = "-:"
"""Before an expression in ``dynamic``: layers that it matches stay as they are."""


class GPTQConfig(LinearConfig):
    """What GPTQ tools write.

    Args:
        weight_bits: 4.
        group_size: inputs that share a scale; -1: all.
        desc_act: whether inputs were quantised in another order (act-order).
        sym: whether every zero point is 8.
        checkpoint_format: ``gptq`` (zero points stored less one) or ``gptq_v2``.
        ignored: names of layers that stay as they are.
        only: ends of the names of the layers that are quantised; None: all that are not in ``ignored``.
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
        only: list[str] | None = None,
    ) -> None:
        """Check that such a checkpoint can be loaded."""
        super().__init__(ignored)
        self.only = only
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
        dynamic = config.get("dynamic") or {}
        if not all(str(name).startswith(_LEFT_OUT) for name in dynamic):
            raise UnsupportedError(
                "GPTQ with another setting for some layers (dynamic) is not supported.",
                why=f"dynamic: {', '.join(map(str, config['dynamic']))}",
                remedy="quantise all layers alike, or exclude them.",
            )
        return cls(
            weight_bits=fields.integer(config, "bits"),
            group_size=fields.integer(config, "group_size"),
            desc_act=fields.flag(config, "desc_act", default=False),
            sym=fields.flag(config, "sym", default=True),
            checkpoint_format=_format(config),
            ignored=fields.names(config, "modules_to_not_convert")
            + fields.names({"dynamic": [f"re:{str(name).removeprefix(_LEFT_OUT)}" for name in dynamic]}, "dynamic"),
            only=_only(config.get("modules_in_block_to_quantize")),
        )

    def listed_layers(self) -> list[str]:
        """Return the names of layers that stay as they are, or of those that do not."""
        return [*self.ignored, *(self.only or ())]

    def linear_method(self, prefix: str) -> LinearMethodBase:
        """Return the method of one layer."""
        if self.only is not None:
            ends = tuple(f".{name}" for name in self.only)

            def listed(part: str) -> bool:
                return f".{part}".endswith(ends)

            if not all_or_none(prefix, self.packed_modules_mapping, listed, "quantised"):
                return UnquantizedLinearMethod()
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


def _format(config: Mapping[str, Any]) -> str:
    """Return the format of the zero points, which tools write under either of two names.

    Raises: CheckpointError if the two differ: zero points would be off by one.
    """
    keys = [key for key in ("checkpoint_format", "format") if config.get(key) is not None]
    found = [fields.choice(config, [key], ["gptq", "gptq_v2"]) for key in keys]
    if len(set(found)) > 1:
        raise CheckpointError(
            "The quantisation configuration names two formats.",
            why=[f"{key}: {value}" for key, value in zip(keys, found, strict=True)],
            remedy="leave the one in that the tool wrote the zero points in: gptq holds them less one.",
        )
    return found[0] if found else "gptq"


def _only(listed: object) -> list[str] | None:
    """Return the names in lists of names, None if there is no list; CheckpointError for anything else."""
    if not listed:
        return None
    parts = listed if isinstance(listed, list) else [listed]
    flat = [name for part in parts for name in (part if isinstance(part, list) else [part])]
    return fields.names({"modules_in_block_to_quantize": flat}, "modules_in_block_to_quantize")
