"""Texts token by token: limits, stops, and what is refused at the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock.errors import ConfigError
from opdock.nn.generation import LoadedModel, SamplingParams, generate, load_model, stream_text


@pytest.fixture
def loaded(checkpoints: Callable[[str], tuple[Path, Any]]) -> Iterator[LoadedModel]:
    """A small random model; its context holds 640 tokens."""
    folder, _ = checkpoints("llama")
    with opdock.set_current_config():
        yield load_model(folder, dtype=torch.float32)


def test_tokens_come_one_by_one_and_a_reason_at_the_end(loaded: LoadedModel) -> None:
    """The first can be read before the second is computed."""
    run = generate(loaded.model, [5, 6, 7], max_tokens=4)
    assert run.prompt_tokens == 3 and run.new_tokens == 0
    first = next(run)
    assert isinstance(first, int) and run.new_tokens == 1 and run.finish_reason is None
    assert len(list(run)) == 3
    assert run.finish_reason == "length" and run.new_tokens == 4
    assert list(run) == []


def test_a_stop_token_ends_the_text_and_is_not_given(loaded: LoadedModel) -> None:
    """Whatever comes before it stays."""
    tokens = list(generate(loaded.model, [5, 6, 7], max_tokens=20))
    at = 3
    run = generate(loaded.model, [5, 6, 7], max_tokens=20, stop_tokens=[tokens[at]])
    assert list(run) == tokens[: tokens.index(tokens[at])]
    assert run.finish_reason == "stop"


def test_the_context_ends_a_text(loaded: LoadedModel) -> None:
    """A prompt of 637 of 640 tokens leaves three."""
    run = generate(loaded.model, [5] * 637, max_tokens=100)
    assert len(list(run)) == 3
    assert run.finish_reason == "context"


def test_a_longer_text_begins_like_a_shorter_one(loaded: LoadedModel) -> None:
    """Steps through the cache equal one step over all."""
    tokens = list(generate(loaded.model, [9, 8, 7], max_tokens=10))
    for count in range(1, 10):
        following = next(generate(loaded.model, [9, 8, 7, *tokens[:count]], max_tokens=1))
        assert following == tokens[count]


def test_seeded_texts_repeat(loaded: LoadedModel) -> None:
    """And differ between seeds."""

    def run(seed: int) -> list[int]:
        return list(generate(loaded.model, [4, 5], SamplingParams(temperature=1.0, seed=seed), max_tokens=30))

    assert run(1) == run(1) != run(2)


def test_two_texts_at_once_do_not_disturb_each_other(loaded: LoadedModel) -> None:
    """Each has a cache of its own."""
    alone = [list(generate(loaded.model, [p], max_tokens=8)) for p in (10, 20)]
    first, second = (generate(loaded.model, [p], max_tokens=8) for p in (10, 20))
    mixed = list(zip(first, second, strict=True))
    assert [list(column) for column in zip(*mixed, strict=True)] == alone


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        ([], {}, "The prompt is empty"),
        ([5] * 640, {}, "has 640 tokens, and the model's context holds 640[\\s\\S]*639 tokens"),
        ([5] * 9000, {}, "has 9000 tokens"),
        ([320], {}, "token id 320, and the model knows 0 to 319"),
        ([-1], {}, "token id -1"),
        ([5], {"max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_an_impossible_request_is_refused_at_the_call(
    tokens: list[int], options: dict[str, Any], message: str, loaded: LoadedModel
) -> None:
    """Not at the first token."""
    with pytest.raises(ConfigError, match=message):
        generate(loaded.model, tokens, **options)
    if not options:
        with pytest.raises(ConfigError, match=message):
            stream_text(loaded, tokens)


def test_streamed_text_is_the_decoded_tokens(loaded: LoadedModel) -> None:
    """Joined, and without the token that ends it."""
    made = generate(loaded.model, [5, 6], max_tokens=40, stop_tokens=loaded.config.eos_token_ids)
    expected = loaded.tokenizer.decode(list(made))
    assert "".join(stream_text(loaded, [5, 6], max_tokens=40)) == expected


def test_no_gradient_mode_leaks_out_of_a_step(loaded: LoadedModel) -> None:
    """Between tokens the caller's own code runs as before."""
    run = generate(loaded.model, [5, 6], max_tokens=3)
    next(run)
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


@pytest.mark.parametrize("where", ["forward", "compute_logits"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_token_that_failed_can_be_asked_for_again(
    loaded: LoadedModel, where: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the layers too, when the cache holds its position already."""
    sampling = SamplingParams(temperature=temperature, seed=5)
    expected = list(generate(loaded.model, [5, 6, 7], sampling, max_tokens=8))
    original, calls = getattr(loaded.model, where), [0]

    def sometimes(*args: Any) -> Any:
        calls[0] += 1
        made = original(*args)
        if calls[0] in (1, 4, 5):
            raise MemoryError
        return made

    monkeypatch.setattr(loaded.model, where, sometimes)
    text, made, failures = generate(loaded.model, [5, 6, 7], sampling, max_tokens=8), [], 0
    while text.finish_reason is None:
        try:
            token = next(text)
        except MemoryError:
            failures += 1
            continue
        made.append(token)
    assert made == expected and failures == 3


def test_smollm2_answers(loaded_smollm2: LoadedModel) -> None:
    """The demo's question."""
    ids = loaded_smollm2.tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    with opdock.set_current_config():
        text = "".join(stream_text(loaded_smollm2, ids, max_tokens=20))
    assert "Paris" in text
