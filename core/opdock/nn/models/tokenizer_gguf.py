"""The tokenizer inside a GGUF file: byte-level BPE built from its lists of tokens and merges.

The file names the way in which a text is cut into words before the merges apply. That way is the one the
model was trained with: SmolLM cuts every digit off, Llama 3 takes up to three, GPT-2 takes all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeGuard

from opdock.errors import CheckpointError, UnsupportedError, suggest
from opdock.nn.extras import need
from opdock.nn.models.tokenizer import Tokenizer

logger = logging.getLogger("opdock")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = _CONTRACTIONS + _WORDS + r"|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + _WORDS + r"|\p{N}" + _REST

_GPT2_LIKE = ("default", "gpt-2", "gpt2", "mpt", "olmo", "jais", "trillion", "granite-docling")
_DIGIT_BY_DIGIT = (
    "smollm",
    "starcoder",
    "refact",
    "command-r",
    "codeshell",
    "exaone",
    "minerva-7b",
)
_LLAMA3_LIKE = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
_QWEN2_LIKE = ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan")
PRE_TOKENIZERS = (*_GPT2_LIKE, *_DIGIT_BY_DIGIT, *_LLAMA3_LIKE, *_QWEN2_LIKE)

_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens in tokenizer.ggml.token_type


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """Return the tokenizer that a GGUF file describes.

    Args:
        metadata: of the file.
        source: its path, for errors.

    Raises: CheckpointError if lists are missing or do not fit together; UnsupportedError for another kind of
        tokenizer or an unknown way of cutting.
    """
    tokenizers = need("tokenizers", "Reading a tokenizer")
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedError(
            f"The tokenizer is of kind {kind!r}, which opdock does not build from a GGUF file.",
            who=source,
            why="Known: gpt2 (byte-level BPE).",
            remedy="use the model's Hugging Face folder with tokenizer.json.",
        )
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not _strings(tokens) or not _strings(merges):
        raise CheckpointError(
            "The GGUF file has no lists of tokens and merges.", who=source, remedy="download the file again."
        )
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    if "tokenizer.ggml.pre" not in metadata:
        logger.warning("%s does not say how its tokenizer cuts words; taking GPT-2's way.", source)
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"The tokenizer cuts words in an unknown way, {pre!r}.",
            who=source,
            remedy=suggest(pre, PRE_TOKENIZERS),
        )
    try:
        model = tokenizers.models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in merges],
            fuse_unk=False,
            ignore_merges=pre in _LLAMA3_LIKE,
        )
    except Exception as err:  # the package raises bare Exception for a merge that names no token
        raise CheckpointError("The lists of tokens and merges do not fit together.", who=source, why=str(err)) from err
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = _pre_tokenizer(tokenizers, pre)
    backend.decoder = tokenizers.decoders.ByteLevel()
    if pre in _QWEN2_LIKE:
        backend.normalizer = tokenizers.normalizers.NFC()
    _add_whole_tokens(tokenizers, backend, tokens, metadata.get("tokenizer.ggml.token_type") or ())
    special = _special(metadata, tokens)
    _add_ends(tokenizers, backend, metadata, special, pre)
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(backend, chat_template=template if isinstance(template, str) else None, special=special)


def _strings(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)


def _pre_tokenizer(tokenizers: Any, pre: str) -> Any:
    make = tokenizers.pre_tokenizers
    if pre in _GPT2_LIKE:
        return make.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _DIGIT_BY_DIGIT:
        return make.Sequence(
            [make.Digits(individual_digits=True), make.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    pattern = tokenizers.Regex(_LLAMA3 if pre in _LLAMA3_LIKE else _QWEN2)
    return make.Sequence(
        [make.Split(pattern, behavior="isolated"), make.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _add_whole_tokens(tokenizers: Any, backend: Any, tokens: list[str], kinds: Any) -> None:
    """Make control tokens special, and user-defined ones whole; both are found in a text before it is cut."""
    marked = list(zip(tokens, kinds, strict=False))
    backend.add_special_tokens(
        [tokenizers.AddedToken(t, normalized=False, special=True) for t, k in marked if k == _CONTROL]
    )
    backend.add_tokens(
        [tokenizers.AddedToken(t, normalized=False, special=False) for t, k in marked if k == _USER_DEFINED]
    )


def _special(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {key: metadata.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    return {key: tokens[i] for key, i in ids.items() if isinstance(i, int) and 0 <= i < len(tokens)}


def _add_ends(tokenizers: Any, backend: Any, metadata: Mapping[str, Any], special: Mapping[str, str], pre: str) -> None:
    """Add the first and last token around every text, where the file or the kind asks for it."""
    bos = special.get("bos_token") if metadata.get("tokenizer.ggml.add_bos_token", pre in _LLAMA3_LIKE) else None
    eos = special.get("eos_token") if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    if bos is None and eos is None:
        return
    template = [part for part in (bos, "$A", eos) if part is not None]
    pair = [part for part in (bos, "$A", bos, "$B", eos) if part is not None]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=template,
        pair=pair,
        special_tokens=[(t, backend.token_to_id(t)) for t in dict.fromkeys((bos, eos)) if t is not None],
    )
