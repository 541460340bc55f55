"""compressed-tensors checkpoints: packed 4-bit, fp8 and int8 weights, by groups of layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.quantization import fields
from opdock.nn.quantization.base import LinearConfig
from opdock.nn.quantization.ignored import all_or_none, parts_of
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
            fields.names(group, "targets")
            self._method(group, "")

    def get_name(self) -> str:
        """Return ``compressed-tensors``."""
        return "compressed-tensors"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CompressedTensorsConfig:
        """Return the configuration of a checkpoint with ``"quant_method": "compressed-tensors"``."""
        fields.described(config, "compressed-tensors")
        for key in ("sparsity_config", "transform_config"):
            found = config.get(key) or {}
            if any(found.values()) and (key, found.get("format")) != ("sparsity_config", "dense"):
                raise UnsupportedError(
                    f"compressed-tensors with a {key} is not supported.",
                    why=f"{key}: {found}",
                    remedy="compress the model again without it.",
                )
        groups = config.get("config_groups")
        if not groups and config.get("kv_cache_scheme"):  # nothing but scales of the cache
            return cls([], fields.names(config, "ignore"))
        if not isinstance(groups, Mapping) or not groups or not all(isinstance(g, dict) for g in groups.values()):
            raise CheckpointError(
                "The quantisation configuration has no config_groups.",
                why=f"config_groups: {groups}",
                remedy="download the checkpoint again.",
            )
        return cls(list(groups.values()), fields.names(config, "ignore"), str(config.get("format") or ""))

    def listed_layers(self) -> list[str]:
        """Return the names of layers that stay as they are, and those that groups aim at."""
        targets = [target for group in self.groups for target in fields.names(group, "targets")]
        return [*self.ignored, *(target for target in targets if not _is_class(target))]

    def linear_method(self, prefix: str) -> LinearMethodBase:
        """Return the method of the group that a layer is in; layers in none stay as they are."""
        chosen = {part: self._group(part) for part in parts_of(prefix, self.packed_modules_mapping)}
        for number, group in enumerate(self.groups):
            members = {part for part, found in chosen.items() if found == number}
            what = f"in the group of {', '.join(fields.names(group, 'targets'))}"
            if all_or_none(prefix, self.packed_modules_mapping, members.__contains__, what):
                return self._method(group, prefix)
        return UnquantizedLinearMethod()

    def _group(self, path: str) -> int | None:
        """Return the number of the group of one matrix, as the package chooses it; None: it is in none.

        A name counts before a regular expression, and that before the name of a class; of two groups with the same
        target the last one counts.
        """
        groups = {target: number for number, g in enumerate(self.groups) for target in fields.names(g, "targets")}
        for target in sorted(groups, key=lambda name: (_is_class(name), name.startswith("re:"), name)):
            if _targets(path, target):
                return groups[target]
        return None

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
                why=f"targets: {group.get('targets')}",
                remedy="use 8-bit weights, or pack-quantized with 4 bits.",
            )
        return _scaled(weights, inputs, kind, prefix)


def _packed(
    weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, bits: int, kind: str, prefix: str
) -> LinearMethodBase:
    if inputs is not None or kind != "int":
        raise UnsupportedError(
            "pack-quantized weights with quantised activations, or of floats, are not supported.",
            why=f"weights of type {kind!r}, input_activations: {inputs}",
            remedy="use weight-only quantisation.",
        )
    fields.four_bits(bits, PACKED)
    strategy = fields.choice(weights, ["strategy"], ["group", "channel"])
    return Int4LinearMethod(
        "packed",
        group_size=fields.integer(weights, "group_size") if strategy == "group" else -1,
        zero_points=not fields.flag(weights, "symmetric", default=True),
        reordered=_reordered(weights.get("actorder")),
        prefix=prefix,
    )


def _reordered(order: object) -> bool:
    """Return whether a stored ``actorder`` means that inputs are in any order; UnsupportedError for an unknown one."""
    known = {"False": False, "weight": False, "static": False, "True": True, "group": True, "dynamic": True}
    return known[fields.choice({"actorder": str(order or False)}, ["actorder"], list(known))]


def _scaled(weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, kind: str, prefix: str) -> LinearMethodBase:
    pers: dict[str, Literal["tensor", "channel", "block"]] = {"tensor": "tensor", "channel": "channel"}
    if kind == "float":
        pers["block"] = "block"
    per = pers[fields.choice(weights, ["strategy"], list(pers))]
    sides: dict[str, Mapping[str, Any]] = {"weights": weights, "input_activations": inputs or {}}
    if inputs is None:
        raise UnsupportedError(
            "8-bit weights with activations as they are are not supported.",
            why="input_activations: null",
            remedy="quantise the activations too, for example dynamically for each token.",
        )
    if not fields.flag(weights, "symmetric", default=True) or not fields.flag(inputs, "symmetric", default=True):
        raise UnsupportedError(
            "8-bit numbers with zero points are not supported.",
            why=[f"{name}: symmetric {side.get('symmetric', True)}" for name, side in sides.items()],
            remedy="quantise symmetrically.",
        )
    for side in sides.values():
        if side.get("num_bits", 8) != 8 or str(side.get("type", "int")) != kind:
            raise UnsupportedError(
                "Weights and activations of different kinds of numbers are not supported.",
                why=[f"{n}: {s.get('num_bits', 8)} bits, type {s.get('type', 'int')}" for n, s in sides.items()],
                remedy="quantise both to 8 bits, and both to integers or both to floats.",
            )
    if per == "block" and fields.blocks(weights, "block_structure") is None:
        raise UnsupportedError(
            "Blocks of no given size are not supported.",
            why="block_structure: null",
            remedy='set "block_structure": [128, 128], if the blocks are of that size.',
        )
    dynamic = fields.flag(inputs, "dynamic", default=False)
    if per == "block" and not dynamic:
        raise UnsupportedError(
            "Weights in blocks with static activations are not supported.",
            why="The kernels of blocks compute a scale for each 128 numbers of a row.",
            remedy="quantise the activations dynamically, in groups of 128.",
        )
    wanted = "group" if per == "block" else "token" if dynamic else "tensor"
    fields.choice(inputs, ["strategy"], [wanted])
    if wanted == "group" and inputs.get("group_size", 128) != 128:
        raise UnsupportedError(
            f"Activations in groups of {inputs['group_size']} are not supported.",
            why="The kernels of blocks compute a scale for each 128 numbers of a row.",
            remedy="use groups of 128.",
        )
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
    return _is_class(target) or target == path or path.endswith(f".{target}")


def _is_class(target: str) -> bool:
    """Return whether a target is the name of the class of all these layers."""
    return target == "Linear"
