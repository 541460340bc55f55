"""The same logits and tokens as transformers, from the same weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock.nn.generation import LoadedModel, generate, load_model

KINDS = (
    "llama",
    "llama_tied",
    "llama_biased",
    "llama3_rope",
    "linear_rope",
    "qwen2",
    "qwen3",
    "one_head_group",
)
DECODE = 8
FACTOR = 1.5


def _tokens(count: int, vocab: int, seed: int = 0) -> list[int]:
    made = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab, (count,), generator=made).tolist()


def our_logits(model: Any, tokens: list[int], prompt: int) -> torch.Tensor:
    """Return the logits at every position: the prompt in one step, then token by token through the cache."""
    cache = model.new_cache(len(tokens))
    ids, positions = torch.tensor(tokens), torch.arange(len(tokens))
    with torch.inference_mode():
        hidden = [model(ids[:prompt], positions[:prompt], cache)]
        hidden += [model(ids[i : i + 1], positions[i : i + 1], cache) for i in range(prompt, len(tokens))]
        return model.compute_logits(torch.cat(hidden)).double()


def their_logits(model: Any, tokens: list[int], prompt: int) -> torch.Tensor:
    """Return the same of a model of transformers."""
    ids = torch.tensor([tokens])
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.inference_mode():
        step = model(ids[:, :prompt], use_cache=True)
        logits = [step.logits[0]]
        for i in range(prompt, len(tokens)):
            step = model(ids[:, i : i + 1], **{name: step[name]}, use_cache=True)
            logits.append(step.logits[0])
        return torch.cat(logits).double()


def _compare(ours: Any, theirs: Any, exact: Callable[[Any], Any], tokens: list[int], prompt: int) -> float:
    reference = their_logits(exact(theirs), tokens, len(tokens))
    our_error = (our_logits(ours, tokens, prompt) - reference).abs().max()
    their_error = (their_logits(theirs, tokens, prompt) - reference).abs().max()
    return float(our_error / their_error)


@pytest.mark.parametrize("prompt", [1, 17, 512])
@pytest.mark.parametrize("kind", KINDS)
def test_largest_error_is_at_most_one_and_a_half_times_that_of_transformers(
    kind: str, prompt: int, checkpoints: Callable[[str], tuple[Path, Any]], exact: Callable[[Any], Any]
) -> None:
    """Against float64, prompt and decoding, float32 logits are as exact as those of transformers."""
    folder, theirs = checkpoints(kind)
    with opdock.set_current_config():
        ours = load_model(folder, dtype=torch.float32).model
    tokens = _tokens(prompt + DECODE, theirs.config.vocab_size)
    assert _compare(ours, theirs, exact, tokens, prompt) <= FACTOR


@pytest.mark.parametrize("kind", KINDS)
def test_float64_agrees_with_the_float64_reference_to_rounding(
    kind: str, checkpoints: Callable[[str], tuple[Path, Any]], exact: Callable[[Any], Any]
) -> None:
    """No layer falls back to a narrower type on the way."""
    folder, theirs = checkpoints(kind)
    with opdock.set_current_config():
        ours = load_model(folder, dtype=torch.float64).model
    tokens = _tokens(40, theirs.config.vocab_size)
    reference = their_logits(exact(theirs), tokens, len(tokens))
    assert (our_logits(ours, tokens, 17) - reference).abs().max() <= 1e-11 * reference.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_transformers(kind: str, checkpoints: Callable[[str], tuple[Path, Any]]) -> None:
    """64 steps on 5 prompts."""
    folder, theirs = checkpoints(kind)
    with opdock.set_current_config():
        ours = load_model(folder, dtype=torch.float32).model
        for seed in range(5):
            tokens = _tokens(5 + 3 * seed, theirs.config.vocab_size, seed)
            assert list(generate(ours, tokens, max_tokens=64)) == _their_greedy(theirs, tokens, 64)


def _their_greedy(model: Any, tokens: list[int], count: int) -> list[int]:
    ids = torch.tensor([tokens])
    # an id that never comes: a minimum of tokens would instead forbid the one that ends a text
    never = model.config.vocab_size
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, eos_token_id=never
    )
    return out[0, len(tokens) :].tolist()


def test_a_prompt_in_parts_gives_the_logits_of_the_whole(
    checkpoints: Callable[[str], tuple[Path, Any]],
) -> None:
    """The cache may be filled in any steps."""
    folder, _ = checkpoints("qwen3")
    with opdock.set_current_config():
        model = load_model(folder, dtype=torch.float64).model
    ids, positions = torch.tensor(_tokens(20, 300)), torch.arange(20)
    whole, parts = model.new_cache(20), model.new_cache(20)
    with torch.inference_mode():
        expected = model(ids, positions, whole)
        found = [model(ids[a:b], positions[a:b], parts) for a, b in ((0, 7), (7, 8), (8, 20))]
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-12, atol=1e-12)


def test_a_batch_gives_the_logits_of_its_sequences(checkpoints: Callable[[str], tuple[Path, Any]]) -> None:
    """Sequences of one length can share the steps."""
    folder, _ = checkpoints("llama")
    with opdock.set_current_config():
        model = load_model(folder, dtype=torch.float64).model
    rows = [_tokens(9, 300, seed) for seed in (1, 2)]
    with torch.inference_mode():
        cache = model.new_cache(9, batch=2)
        both = torch.tensor(rows)
        first = model(both[:, :8].flatten(), torch.arange(8).repeat(2), cache)
        last = model(both[:, 8], torch.tensor([8, 8]), cache)
        for i, row in enumerate(rows):
            alone = model(torch.tensor(row), torch.arange(9))
            torch.testing.assert_close(first.view(2, 8, -1)[i], alone[:8], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(last[i], alone[8], rtol=1e-12, atol=1e-12)


def test_smollm2_is_as_exact_as_in_transformers(
    loaded_smollm2: LoadedModel, transformers_smollm2: Any, exact: Callable[[Any], Any]
) -> None:
    """The weights of a GGUF file arrive in the right rows, rounding errors included."""
    tokens = loaded_smollm2.tokenizer.encode("The sea is deep, and the harbour was built by hands that")
    assert _compare(loaded_smollm2.model, transformers_smollm2, exact, tokens, len(tokens) - 3) <= FACTOR


def test_smollm2_says_what_transformers_says(loaded_smollm2: LoadedModel, transformers_smollm2: Any) -> None:
    """Greedy tokens; the long run is in benchmarks/parity.py."""
    tokens = loaded_smollm2.tokenizer.encode("Once upon a time")
    with opdock.set_current_config():
        found = list(generate(loaded_smollm2.model, tokens, max_tokens=12))
    assert found == _their_greedy(transformers_smollm2, tokens, 12)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [1, 17, 512])
def test_smollm2_is_as_exact_as_in_transformers_for_long_prompts(
    prompt: int, loaded_smollm2: LoadedModel, transformers_smollm2: Any, exact: Callable[[Any], Any]
) -> None:
    """Prompts of 1, 17 and 512 tokens, decoding included."""
    tokens = _tokens(prompt + DECODE, loaded_smollm2.config.vocab_size)
    assert _compare(loaded_smollm2.model, transformers_smollm2, exact, tokens, prompt) <= FACTOR
