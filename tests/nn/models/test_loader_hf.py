"""Hugging Face folders, whole, split and broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from opdock.errors import CheckpointError, OpdockError, UnsupportedError
from opdock.nn.models.loader_hf import INDEX, SINGLE, HFCheckpoint, weight_files

safetensors_torch = pytest.importorskip("safetensors.torch", reason="needs safetensors")


def _split(folder: Path, parts: int = 3) -> dict[str, str]:
    """Spread the tensors over files and return the index's map."""
    tensors = safetensors_torch.load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    table = {name: f"model-{i % parts}.safetensors" for i, name in enumerate(tensors)}
    for file in set(table.values()):
        safetensors_torch.save_file({n: t for n, t in tensors.items() if table[n] == file}, folder / file)
    _write_index(folder, table)
    return table


def _write_index(folder: Path, table: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": table}))


def test_a_split_checkpoint_gives_the_tensors_of_the_whole(folder: Path) -> None:
    """Every tensor once, equal."""
    whole = dict(HFCheckpoint(folder).read())
    whole = {name: tensor.clone() for name, tensor in whole.items()}
    _split(folder)
    split = dict(HFCheckpoint(folder).read())
    assert split.keys() == whole.keys()
    assert all(torch.equal(split[name], whole[name]) for name in whole)


def test_a_tensor_in_two_files_is_the_one_that_the_index_names(folder: Path) -> None:
    """Whatever the names of the files; a file of an earlier version may still hold it."""
    table = _split(folder, 2)
    name = "model.norm.weight"
    first, last = sorted(set(table.values()))
    for chosen, other in ((first, last), (last, first)):
        for file, number in ((chosen, 2.0), (other, 5.0)):
            tensors = {**safetensors_torch.load_file(folder / file), name: torch.full((64,), number)}
            safetensors_torch.save_file(tensors, folder / file)
        _write_index(folder, {**table, name: chosen})
        found = [tensor for stored, tensor in HFCheckpoint(folder).read() if stored == name]
        assert [float(tensor[0]) for tensor in found] == [2.0]
    table.pop(name)
    _write_index(folder, table)
    with pytest.raises(CheckpointError, match=rf"'{name}' is in 2 files[\s\S]*{first}\n\s+{last}\nRemedy"):
        HFCheckpoint(folder)


def test_headers_are_read_without_the_data(folder: Path) -> None:
    """Shapes of all tensors."""
    checkpoint = HFCheckpoint(folder)
    assert checkpoint.shapes()["model.embed_tokens.weight"] == (320, 64)
    assert checkpoint.config.num_layers == 3


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "a/../../outside.safetensors",
        "/etc/outside.safetensors",
        "..\\outside.safetensors",
        "C:\\outside.safetensors",
        "C:outside.safetensors",
        "\\\\host\\share\\outside.safetensors",
        "model\0.safetensors",
    ],
)
def test_an_index_cannot_leave_its_folder(name: str, tmp_path: Path) -> None:
    """Whatever way it is written, and whether or not the file is there."""
    inner = tmp_path / "inner"
    inner.mkdir()
    safetensors_torch.save_file({"x": torch.zeros(1)}, tmp_path / "outside.safetensors")
    _write_index(inner, {"x": name})
    with pytest.raises(CheckpointError, match="outside the checkpoint's folder"):
        weight_files(inner)


def test_a_link_cannot_leave_the_folder(tmp_path: Path) -> None:
    """A link to a file elsewhere is refused as well."""
    inner = tmp_path / "inner"
    inner.mkdir()
    safetensors_torch.save_file({"x": torch.zeros(1)}, tmp_path / "outside.safetensors")
    (inner / SINGLE).symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(CheckpointError, match="outside the checkpoint's folder"):
        weight_files(inner)


def test_a_download_cache_may_link_to_its_own_blobs(tmp_path: Path) -> None:
    """Its snapshots are folders of links."""
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    safetensors_torch.save_file({"x": torch.zeros(1)}, blobs / "123")
    (snapshot / SINGLE).symlink_to(Path("..") / ".." / "blobs" / "123")
    assert weight_files(snapshot) == [snapshot / SINGLE]


def test_a_file_that_the_index_names_and_is_missing_is_named(folder: Path) -> None:
    """Before anything is read."""
    table = _split(folder)
    (folder / table["model.norm.weight"]).unlink()
    with pytest.raises(CheckpointError, match=f"'{table['model.norm.weight']}' is missing"):
        HFCheckpoint(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_one_clear_error(folder: Path, keep: int) -> None:
    """At any length."""
    data = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(data[:keep])
    with pytest.raises(CheckpointError, match="truncated or broken[\\s\\S]*bytes[\\s\\S]*Remedy:"):
        HFCheckpoint(folder)


def test_missing_files_say_what_belongs_there(folder: Path) -> None:
    """config.json and weights; pickles are named and not read."""
    (folder / SINGLE).unlink()
    with pytest.raises(CheckpointError, match="no safetensors"):
        HFCheckpoint(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="pytorch_model.bin is a pickle"):
        HFCheckpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match="config.json is missing"):
        HFCheckpoint(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', "[" * 100_000])
def test_a_broken_config_is_one_clear_error(folder: Path, text: str) -> None:
    """No JSON, or no object."""
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json (is not JSON|holds no JSON object)"):
        HFCheckpoint(folder)


@pytest.mark.parametrize("table", [None, {}, [], {"x": 1}])
def test_a_broken_index_is_one_clear_error(folder: Path, table: Any) -> None:
    """No map of names to files."""
    _write_index(folder, table)
    with pytest.raises(CheckpointError, match="no weight_map"):
        HFCheckpoint(folder)


def test_a_config_without_an_architecture_says_what_is_missing(folder: Path) -> None:
    """``architectures`` decides."""
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "architectures": []}))
    with pytest.raises(CheckpointError, match="names no architecture"):
        HFCheckpoint(folder)


def test_integer_weights_are_refused(folder: Path) -> None:
    """They belong to a quantisation that is not read."""
    tensors = safetensors_torch.load_file(folder / SINGLE)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    safetensors_torch.save_file(tensors, folder / SINGLE)
    with pytest.raises(UnsupportedError, match=r"model\.norm\.weight' has dtype I8"):
        HFCheckpoint(folder)


def test_ending_tokens_of_the_generation_settings_count(folder: Path) -> None:
    """Chat models list theirs there."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert HFCheckpoint(folder).config.eos_token_ids == (2, 9)


def test_every_error_ends_with_a_remedy(folder: Path) -> None:
    """What to do next."""
    (folder / "config.json").unlink()
    with pytest.raises(OpdockError, match="Remedy: "):
        HFCheckpoint(folder)
