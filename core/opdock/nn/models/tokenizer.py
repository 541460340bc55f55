"""Text to token ids and back, also piece by piece while they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.extras import need
from opdock.nn.models.chat import render_chat
from opdock.nn.models.loader_hf import read_json

_BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character (yet)


class Tokenizer:
    """A ``tokenizers.Tokenizer`` with the chat template of its checkpoint.

    Args:
        backend: the tokenizer.
        chat_template: Jinja source, or None.
        special: ``bos_token``, ``eos_token`` and the like, for the template.
    """

    def __init__(
        self, backend: Any, *, chat_template: str | None = None, special: Mapping[str, str] | None = None
    ) -> None:
        """Keep the parts."""
        self.backend = backend
        self.chat_template = chat_template
        self.special = dict(special or {})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text.

        Args:
            text: may contain special tokens written out.
            add_special_tokens: add what the model expects around a text, such as the first token.
        """
        ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of messages written by the chat template, ending where the answer begins.

        Raises: UnsupportedError without a template; CheckpointError if the template fails.
        """
        if self.chat_template is None:
            raise UnsupportedError(
                "The model has no chat template.",
                remedy="give a text to go on with: opdock generate MODEL --no-chat -p TEXT",
            )
        text = render_chat(self.chat_template, messages, variables=self.special)
        return self.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def stream(self, *, skip_special_tokens: bool = True) -> StreamDecoder:
        """Return a decoder for ids that come one by one."""
        return StreamDecoder(self, skip_special_tokens=skip_special_tokens)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))


class StreamDecoder:
    """Decodes ids one by one; the pieces joined are the decoded whole, and no character is split.

    Args:
        tokenizer: decodes.
        skip_special_tokens: leave special tokens out.
    """

    _KEEP, _WINDOW = 4, 12  # ids decoded again for context: a few keep spaces and joined characters right

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        """Start at the beginning of a text."""
        self._tokenizer, self._skip = tokenizer, skip_special_tokens
        self._ids: list[int] = []
        self._given = 0  # characters of the window's text that were given out

    def push(self, token: int) -> str:
        """Return the text that is certain now; "" while a character is incomplete."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=self._skip)
        # up to three bytes of a character may be there; some decoders write one mark for each
        sure = text
        for _ in range(3):
            sure = sure.removesuffix(_BROKEN)
        piece = sure[self._given :]
        self._given = max(self._given, len(sure))
        if len(self._ids) >= self._WINDOW and sure == text:
            self._ids = self._ids[-self._KEEP :]
            self._given = len(self._tokenizer.decode(self._ids, skip_special_tokens=self._skip))
        return piece

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        text = self._tokenizer.decode(self._ids, skip_special_tokens=self._skip)
        piece = text[self._given :]
        self._given = len(text)
        return piece


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Return the tokenizer of a Hugging Face folder.

    Raises: CheckpointError if tokenizer.json is missing or broken.
    """
    tokenizers = need("tokenizers", "Reading a tokenizer")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            "tokenizer.json is missing.",
            who=str(folder),
            remedy="download the whole checkpoint; for an older one, save it once with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as err:  # the package raises bare Exception for every fault of the file
        raise CheckpointError(
            "tokenizer.json is broken.", who=str(path), why=str(err), remedy="download the checkpoint again."
        ) from err
    backend.no_truncation()
    backend.no_padding()
    return Tokenizer(backend, **_settings(folder))


def _settings(folder: Path) -> dict[str, Any]:
    """Return the chat template and the special tokens that the folder's settings name."""
    path, jinja = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    raw = read_json(path) if path.is_file() else {}
    template = raw.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    if jinja.is_file():
        template = jinja.read_text(encoding="utf-8")
    special = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = raw.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            special[key] = value
    return {"chat_template": template if isinstance(template, str) else None, "special": special}
