"""A Hugging Face folder: config.json, safetensors in one file or many, tokenizer.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.extras import need
from opdock.nn.models.architectures import Architecture, find_architecture
from opdock.nn.models.config import ModelConfig, token_ids
from opdock.nn.models.quant_config import STORED, read_quant_config

if TYPE_CHECKING:
    import torch

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
_QUANTISED = ("quantization_config", "compression_config")


class HFCheckpoint:
    """An open folder.

    Args:
        folder: holds config.json and the safetensors.

    Raises: CheckpointError for a missing, truncated or broken file; UnsupportedError for a kind of weights
        that is not read, or a quantisation that the platform cannot run.
    """

    def __init__(self, folder: Path) -> None:
        """Read config.json and the headers."""
        self.folder = folder
        self.source = str(folder)
        raw = read_json(folder / "config.json")
        self.architecture = _architecture(raw, str(folder / "config.json"))
        quant_config = read_quant_config(raw, folder)
        plain = {key: value for key, value in raw.items() if key not in _QUANTISED}
        config = self.architecture.from_hf(_with_generation(plain, folder), str(folder / "config.json"))
        self.config: ModelConfig = dataclasses.replace(config, quant_config=quant_config)
        kinds = _FLOATS if quant_config is None else (*_FLOATS, *STORED)
        self._files = _once({path: _header(path, kinds) for path in weight_files(folder)}, folder)
        mapper = {} if quant_config is None else quant_config.get_checkpoint_weight_mapper()
        self._names = _names([name for header in self._files.values() for name in header], mapper)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name to shape, from the headers, under the names that the quantisation method knows."""
        return {self._names[name]: shape for header in self._files.values() for name, shape in header.items()}

    def read(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once; its memory is mapped from the file."""
        for path, header in self._files.items():
            with _open(path) as file:
                for name in header:
                    yield self._names[name], file.get_tensor(name)


def _names(stored: list[str], mapper: Mapping[str, str]) -> dict[str, str]:
    """Return the names of tensors in a checkpoint to their names here; ``mapper`` has the ends that differ."""
    names = {name: name for name in stored}
    for name in stored:
        end = next((end for end in mapper if name.endswith(end)), None)
        renamed = name if end is None else name.removesuffix(end) + mapper[end]
        if renamed not in names:
            names[name] = renamed
    return names


def _once(headers: dict[Path, dict[str, tuple[int, ...]]], folder: Path) -> dict[Path, dict[str, tuple[int, ...]]]:
    """Return the headers with each tensor in one file only: the one that the index names.

    Raises: CheckpointError for a tensor in two files of which the index names neither.
    """
    found: dict[str, list[Path]] = {}
    for path, header in headers.items():
        for name in header:
            found.setdefault(name, []).append(path)
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    table = read_json(folder / INDEX)["weight_map"] if twice else {}
    for name, paths in twice.items():
        chosen = folder / str(table.get(name))
        if chosen not in paths:
            raise CheckpointError(
                f"The tensor {name!r} is in {len(paths)} files, and the index names none of them for it.",
                who=str(folder),
                why=[path.name for path in paths],
                remedy="download the whole checkpoint into an empty folder.",
            )
        for path in paths:
            if path != chosen:
                del headers[path][name]
    return headers


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; CheckpointError if it is missing, no JSON, or no object."""
    try:
        with path.open(encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.name} is missing.",
            who=str(path.parent),
            remedy=f"download the whole checkpoint; {path.name} belongs beside the weights.",
        ) from None
    except (ValueError, RecursionError) as err:
        raise CheckpointError(
            f"{path.name} is not JSON.", who=str(path), why=str(err), remedy="download the checkpoint again."
        ) from err
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path.name} holds no JSON object.",
            who=str(path),
            why=f"It holds a {type(value).__name__}.",
            remedy="download the checkpoint again.",
        )
    return value


def _architecture(raw: Mapping[str, Any], source: str) -> Architecture:
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise CheckpointError(
            "The model's configuration names no architecture.",
            who=source,
            remedy='config.json needs a line such as "architectures": ["LlamaForCausalLM"].',
        )
    return find_architecture(names[0], source)


def _with_generation(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Add the ids that generation_config.json ends a text with: chat models list more there."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return raw
    ids = dict.fromkeys(token_ids(raw.get("eos_token_id")) + token_ids(read_json(path).get("eos_token_id")))
    return {**raw, "eos_token_id": list(ids)}


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint, each inside its folder.

    Raises: CheckpointError if there are none, one that the index names is missing, or a name leaves the
        folder.
    """
    index = folder / INDEX
    if not index.is_file():
        if (folder / SINGLE).is_file():
            return [_inside(folder, SINGLE, SINGLE)]
        raise _no_weights(folder)
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()) or not table:
        raise CheckpointError(f"{INDEX} has no weight_map.", who=str(index), remedy="download the checkpoint again.")
    return [_inside(folder, name, INDEX) for name in sorted(set(table.values()))]


def _inside(folder: Path, name: str, named_by: str) -> Path:
    """Return the path of a weight file.

    The name must be a plain relative path, on any system's terms. A link may lead out of the folder only into
    the ``blobs`` of the download cache that the folder is a snapshot of.
    """
    parts = {*PurePosixPath(name).parts, *PureWindowsPath(name).parts}
    absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor or "\0" in name
    path = folder / name
    roots = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":
        roots.append(folder.resolve().parent.parent / "blobs")
    if absolute or ".." in parts or not any(path.resolve().is_relative_to(root) for root in roots):
        raise CheckpointError(
            f"{named_by} names a file outside the checkpoint's folder: {name!r}.",
            who=str(folder),
            remedy="do not load this checkpoint; get it from a source that you trust.",
        )
    if not path.is_file():
        raise CheckpointError(
            f"The weight file {name!r} is missing.",
            who=str(folder),
            why=f"{named_by} names it.",
            remedy="download the whole checkpoint.",
        )
    return path


def _no_weights(folder: Path) -> CheckpointError:
    pickles = sorted(p.name for p in folder.glob("*.bin")) + sorted(p.name for p in folder.glob("*.pth"))
    why = f"{pickles[0]} is a pickle: reading it could run any code." if pickles else f"Neither {SINGLE} nor {INDEX}."
    return CheckpointError(
        "The folder holds no safetensors weights.",
        who=str(folder),
        why=why,
        remedy="download the safetensors files of the model, or use a GGUF file.",
    )


def _open(path: Path) -> Any:
    """Return the open safetensors file; CheckpointError if it is truncated or broken."""
    safetensors = need("safetensors", "Reading a Hugging Face checkpoint")
    try:
        return safetensors.safe_open(str(path), framework="pt")
    except (safetensors.SafetensorError, OSError, ValueError) as err:
        raise CheckpointError(
            f"The weight file {path.name!r} is truncated or broken.",
            who=str(path),
            why=f"{path.stat().st_size} bytes; {err}",
            remedy="download the file again.",
        ) from err


def _header(path: Path, kinds: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    with _open(path) as file:
        shapes = {}
        for name in file.keys():  # noqa: SIM118 - not a mapping
            part = file.get_slice(name)
            if part.get_dtype() not in kinds:
                raise UnsupportedError(
                    f"The tensor {name!r} has dtype {part.get_dtype()}, which opdock does not load.",
                    who=str(path),
                    why=f"Its config.json {'describes' if STORED[0] in kinds else 'has no'} quantisation; "
                    f"then {', '.join(kinds)} are read.",
                    remedy=f"use a checkpoint in one of {', '.join(_FLOATS)}, or a GGUF file.",
                )
            shapes[name] = tuple(part.get_shape())
        return shapes
