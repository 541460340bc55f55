"""compressed-tensors checkpoints: packed 4-bit, fp8 and int8 weights, by groups of layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.quantization import fields
from opdock.nn.quantization.base import LinearConfig
from opdock.nn.quantization.ignored import all_or_none
from opdock.nn.quantization.int4 import Int4LinearMethod
from opdock.nn.quantization.method import LinearMethodBase, UnquantizedLinearMethod
from opdock.nn.quantization.scaled import ScaledLinearMethod

PACKED, FLOAT, INT, NAIVE = "pack-quantized", "float-quantized", "int-quantized", "naive-quantized"
FORMATS = (PACKED, FLOAT, INT, NAIVE)


class CompressedTensorsConfig(LinearConfig):
    """What the compressed-tensors package writes.

    Args:
        groups: of layers; each a mapping with ``targets``, ``weights``, ``input_activations`` and ``format``.
        ignored: names, or ``re:`` and a regular expression, of layers that stay as they are.
        default_format: of groups that state none.
    """

    def __init__(
        self, groups: list[dict[str, Any]], ignored: list[str] | None = None, default_format: str = ""
    ) -> None:
        """Check every group."""
        super().__init__(ignored)
        self.groups = groups
        self.default_format = default_format
        for group in groups:
            self._method(group, "")

    def get_name(self) -> str:
        """Return ``compressed-tensors``."""
        return "compressed-tensors"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CompressedTensorsConfig:
        """Return the configuration of a checkpoint with ``"quant_method": "compressed-tensors"``."""
        fields.described(config, "compressed-tensors")
        for key in ("sparsity_config", "transform_config"):
            if any((config.get(key) or {}).values()):
                raise UnsupportedError(f"compressed-tensors with a {key} is not supported.", remedy="do without it.")
        groups = config.get("config_groups")
        if not isinstance(groups, Mapping) or not groups or not all(isinstance(g, dict) for g in groups.values()):
            raise CheckpointError(
                "The quantisation configuration has no config_groups.", remedy="download the checkpoint again."
            )
        return cls(list(groups.values()), fields.names(config, "ignore"), str(config.get("format") or ""))

    def linear_method(self, prefix: str) -> LinearMethodBase:
        """Return the method of the group that a layer is in; layers in none stay as they are."""
        for group in self.groups:
            targets = fields.names(group, "targets")

            def aimed_at(part: str, targets: list[str] = targets) -> bool:
                return any(_targets(part, target) for target in targets)

            if all_or_none(prefix, self.packed_modules_mapping, aimed_at, f"in the group of {', '.join(targets)}"):
                return self._method(group, prefix)
        return UnquantizedLinearMethod()

    def _method(self, group: Mapping[str, Any], prefix: str) -> LinearMethodBase:
        weights, inputs = group.get("weights"), group.get("input_activations")
        if not isinstance(weights, dict) or not (inputs is None or isinstance(inputs, dict)):
            raise CheckpointError(
                "A group of the quantisation configuration says nothing of its weights.",
                why=f"targets: {group.get('targets')}",
                remedy="download the checkpoint again.",
            )
        chosen = fields.choice({"format": group.get("format") or self.default_format}, ["format"], FORMATS)
        bits, kind = fields.integer(weights, "num_bits"), str(weights.get("type", "int"))
        if chosen == PACKED:
            return _packed(weights, inputs, bits, kind, prefix)
        if bits != 8 or kind not in ("int", "float"):
            raise UnsupportedError(
                f"{chosen} with weights of {bits} bits, type {kind!r}, is not supported.",
                remedy="use 8-bit weights, or pack-quantized with 4 bits.",
            )
        return _scaled(weights, inputs, kind, prefix)


def _packed(
    weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, bits: int, kind: str, prefix: str
) -> LinearMethodBase:
    if inputs is not None or kind != "int":
        raise UnsupportedError(
            "pack-quantized weights with quantised activations, or of floats, are not supported.",
            remedy="use weight-only quantisation.",
        )
    fields.four_bits(bits, PACKED)
    strategy = fields.choice(weights, ["strategy"], ["group", "channel"])
    return Int4LinearMethod(
        "packed",
        group_size=fields.integer(weights, "group_size") if strategy == "group" else -1,
        zero_points=not fields.flag(weights, "symmetric", default=True),
        reordered=str(weights.get("actorder") or "") in ("group", "True"),
        prefix=prefix,
    )


def _scaled(weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, kind: str, prefix: str) -> LinearMethodBase:
    pers: dict[str, Literal["tensor", "channel", "block"]] = {"tensor": "tensor", "channel": "channel"}
    if kind == "float":
        pers["block"] = "block"
    per = pers[fields.choice(weights, ["strategy"], list(pers))]
    if inputs is None:
        raise UnsupportedError(
            "8-bit weights with activations as they are are not supported.",
            remedy="quantise the activations too, for example dynamically for each token.",
        )
    if not fields.flag(weights, "symmetric", default=True) or not fields.flag(inputs, "symmetric", default=True):
        raise UnsupportedError("8-bit numbers with zero points are not supported.", remedy="quantise symmetrically.")
    if per == "block" and list(weights.get("block_structure") or ()) != [128, 128]:
        raise UnsupportedError(
            f"Blocks of {weights.get('block_structure')} are not supported.", remedy="use blocks of [128, 128]."
        )
    dynamic = fields.flag(inputs, "dynamic", default=False)
    wanted = {"block": ["group", "token"]}.get(per, ["token"]) if dynamic else ["tensor"]
    fields.choice(inputs, ["strategy"], wanted)
    return ScaledLinearMethod(
        torch.float8_e4m3fn if kind == "float" else torch.int8,
        per=per,
        static=not dynamic,
        prefix=prefix,
    )


def _targets(path: str, target: str) -> bool:
    """Return whether a target, a class name, a path or ``re:`` and a regular expression, means the layer."""
    if target.startswith("re:"):
        return re.match(target[3:], path) is not None
    return target == "Linear" or target == path or path.endswith(f".{target}")
