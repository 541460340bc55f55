"""Tokenizers of folders and of GGUF files, streaming, chat templates."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.models.chat import render_chat
from opdock.nn.models.gguf_file import GGUFHeader
from opdock.nn.models.tokenizer import Tokenizer, tokenizer_from_folder
from opdock.nn.models.tokenizer_gguf import PRE_TOKENIZERS, tokenizer_from_gguf

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")

TRICKY = (
    "",
    "Hello world",
    " leading and trailing ",
    "tabs\tand\nnewlines\r\n\r\n  mixed",
    "don't can't I'LL we'Ve",
    "3.14159 2024-01-31 1,000,000 007",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 done",
    "日本語のテキスト 中文 한국어",
    "Ελληνικά Русский עברית العربية हिन्दी",
    "naïve café Ångström e\u0301",
    "a\u00a0b\u2003c\u200bd\ufeff",
    "<|im_start|>user\nhi<|im_end|>",
    "<|im_start|> <|im_endx|> <|endoftext|>",
    "def f(x):\n    return x**2  # code\n\n\n",
    "\x00\x01\x7f",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "a" * 300,
)
# blanks before what counts as a digit: see test_digits_are_cut_off_before_blanks_are_joined
DIGITS_AFTER_BLANKS = ("a  12", "\n\n7", "   3 4", "x² ½ Ⅷ ١٢٣")


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2: Path) -> Tokenizer:
    """Built from the file's lists."""
    return tokenizer_from_gguf(GGUFHeader(smollm2).metadata, str(smollm2))


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> Any:
    """The tokenizer that transformers builds from the same file."""
    transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
    return transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)


@pytest.mark.parametrize("text", TRICKY)
def test_gguf_ids_are_those_of_transformers(text: str, smollm2_tokenizer: Tokenizer, theirs: Any) -> None:
    """And the text comes back."""
    ids = smollm2_tokenizer.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert smollm2_tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", DIGITS_AFTER_BLANKS)
def test_digits_are_cut_off_before_blanks_are_joined(text: str, smollm2_tokenizer: Tokenizer) -> None:
    """SmolLM was trained with every digit cut off first, so the blanks before one stay together.

    transformers ignores this when it reads a GGUF file, and takes the last blank away from the others.
    """
    make = tokenizers.pre_tokenizers
    trained = make.Sequence([make.Digits(individual_digits=True), make.ByteLevel(add_prefix_space=False)])
    words = [word for word, _ in trained.pre_tokenize_str(text)]
    expected = [i for word in words for i in _bpe(smollm2_tokenizer, word)]
    assert smollm2_tokenizer.encode(text) == expected
    assert smollm2_tokenizer.decode(expected) == text


def _bpe(tokenizer: Tokenizer, word: str) -> list[int]:
    return [token.id for token in tokenizer.backend.model.tokenize(word)]


def test_chat_template_gives_the_ids_of_transformers(smollm2_tokenizer: Tokenizer, theirs: Any) -> None:
    """System, user and assistant."""
    for messages in (
        [{"role": "user", "content": "What is the capital of France?"}],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": 'Hi <b>there</b> & "all"'},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "2 + 2?"},
        ],
    ):
        text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert smollm2_tokenizer.encode_chat(messages) == expected


@pytest.mark.parametrize("text", [t for t in TRICKY if t])
def test_streamed_pieces_join_to_the_text(text: str, smollm2_tokenizer: Tokenizer) -> None:
    """And no piece holds a broken character."""
    stream = smollm2_tokenizer.stream(skip_special_tokens=False)
    pieces = [stream.push(i) for i in smollm2_tokenizer.encode(text)] + [stream.flush()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_characters_of_many_tokens_are_held_until_whole(smollm2_tokenizer: Tokenizer) -> None:
    """A byte token gives nothing until its character is complete."""
    text = "𓀀"
    ids = smollm2_tokenizer.encode(text)
    assert len(ids) >= 3
    stream = smollm2_tokenizer.stream()
    assert [stream.push(i) for i in ids] == [""] * (len(ids) - 1) + [text]


def test_any_ids_stream_to_what_they_decode_to(smollm2_tokenizer: Tokenizer) -> None:
    """Broken bytes too; what was held back comes at the end."""
    rng = random.Random(0)
    raw = range(20, 300)
    for _ in range(60):
        ids = [rng.choice(raw) for _ in range(40)]
        stream = smollm2_tokenizer.stream()
        found = "".join([stream.push(i) for i in ids] + [stream.flush()])
        assert found == smollm2_tokenizer.decode(ids)


def _metadata(**changes: Any) -> dict[str, Any]:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "</s>", "<think>", *alphabet, "12", "123", "1234"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 4] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["1 2", "12 3", "123 4"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        **{f"tokenizer.ggml.{k}": v for k, v in changes.items()},
    }


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["1234"]),
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("llama-bpe", ["123", "4"]),
    ],
)
def test_words_are_cut_as_the_file_says(pre: str, expected: list[str]) -> None:
    """All digits, one by one, or three at a time."""
    made = tokenizer_from_gguf(_metadata(pre=pre), "m.gguf")
    tokens = made.backend.encode("1234", add_special_tokens=False).tokens
    assert tokens == expected


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_way_of_cutting_gives_the_text_back(pre: str) -> None:
    """No text is lost at a cut."""
    made = tokenizer_from_gguf(_metadata(pre=pre), "m.gguf")
    for text in TRICKY:
        found = made.decode(made.encode(text, add_special_tokens=False), skip_special_tokens=False)
        assert found == text or "e\u0301" in text  # that pair is one character after normalisation


def test_first_and_last_tokens_are_added_where_the_file_says() -> None:
    """Or where the kind does; never twice."""
    plain = tokenizer_from_gguf(_metadata(), "m.gguf")
    both = tokenizer_from_gguf(_metadata(add_bos_token=True, add_eos_token=True), "m.gguf")
    llama = tokenizer_from_gguf(_metadata(pre="llama-bpe"), "m.gguf")
    assert plain.encode("1") == both.encode("1")[1:-1]
    assert both.encode("1")[0] == 0 and both.encode("1")[-1] == 1
    assert llama.encode("1")[0] == 0
    assert llama.encode("1", add_special_tokens=False) == plain.encode("1")


def test_user_defined_tokens_stay_whole_and_visible() -> None:
    """Unlike control tokens, which a decoded text leaves out."""
    made = tokenizer_from_gguf(_metadata(), "m.gguf")
    ids = made.encode("<think>1</s>")
    assert ids[0] == 2 and ids[-1] == 1
    assert made.decode(ids) == "<think>1"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "llama"}, UnsupportedError, "kind 'llama'"),
        ({"model": None}, UnsupportedError, "kind None"),
        ({"pre": "smolm"}, UnsupportedError, "Did you mean 'smollm'"),
        ({"tokens": []}, CheckpointError, "no lists"),
        ({"merges": None}, CheckpointError, "no lists"),
        ({"merges": ["no such"]}, CheckpointError, "do not fit together"),
    ],
)
def test_unknown_and_broken_descriptions_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A guess would give wrong text without a word."""
    with pytest.raises(error, match=message):
        tokenizer_from_gguf(_metadata(**changes), "m.gguf")


def test_a_file_that_does_not_say_how_it_cuts_gets_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """GPT-2's way is taken."""
    metadata = _metadata()
    del metadata["tokenizer.ggml.pre"]
    made = tokenizer_from_gguf(metadata, "m.gguf")
    assert made.backend.encode("1234").tokens == ["1234"]
    assert "m.gguf does not say how" in caplog.text


def test_a_folder_without_tokenizer_says_what_to_do(folder: Path) -> None:
    """Missing and broken are told apart."""
    assert tokenizer_from_folder(folder).vocab_size == 320
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is broken"):
        tokenizer_from_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing[\s\S]*save_pretrained"):
        tokenizer_from_folder(folder)


@pytest.mark.parametrize("form", ["text", "list", "file"])
def test_a_folders_chat_template_is_found_in_every_place(folder: Path, form: str) -> None:
    """In the settings, among several, or in a file of its own."""
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    settings: dict[str, Any] = {"bos_token": {"content": "<s>"}}
    if form == "file":
        (folder / "chat_template.jinja").write_text(template)
    elif form == "list":
        settings["chat_template"] = [{"name": "default", "template": template}]
    else:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    made = tokenizer_from_folder(folder)
    assert made.encode_chat([{"role": "user", "content": "ab"}]) == [1, *made.encode("ab")]


def test_a_model_without_template_says_so(folder: Path) -> None:
    """And what to do."""
    with pytest.raises(UnsupportedError, match="no chat template[\\s\\S]*--no-chat"):
        tokenizer_from_folder(folder).encode_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{% include '/etc/hostname' %}",
        "{% for %}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ range(10000000) | list }}",
    ],
)
def test_a_template_that_reaches_out_or_fails_is_one_clear_error(template: str) -> None:
    """It runs in a sandbox."""
    with pytest.raises(CheckpointError, match="chat template cannot"):
        render_chat(template, [{"role": "user", "content": "hi"}])


def test_templates_have_what_checkpoints_use() -> None:
    """Loop controls, plain JSON, the date."""
    template = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
    message = {"role": "user", "content": "<é>"}
    assert render_chat(template, [message, message]) == json.dumps(message, ensure_ascii=False)
    assert len(render_chat("{{ strftime_now('%Y') }}", [])) == 4
