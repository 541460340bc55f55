"""Batches: every request gets the tokens that it gets alone, whoever joins and leaves beside it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock.errors import ConfigError, OrderError, UnknownNameError, UnsupportedError
from opdock.nn.attention import PagedKVCache
from opdock.nn.batch import Batch, DrawError, runner
from opdock.nn.generation import LoadedModel, SamplingParams, generate, load_model

COUNT = 12


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def loaded(request: pytest.FixtureRequest, checkpoints: Callable[[str], tuple[Path, Any]]) -> Iterator[LoadedModel]:
    """Small random models in float32; their context holds 640 tokens."""
    folder, _ = checkpoints(request.param)
    with opdock.set_current_config():
        yield load_model(folder, dtype=torch.float32)


def prompts_of(lengths: list[int]) -> list[list[int]]:
    """Return random prompts of these lengths."""
    made = random.Random(5)
    return [[made.randrange(3, 320) for _ in range(length)] for length in lengths]


def alone(loaded: LoadedModel, prompt: list[int], count: int = COUNT) -> list[int]:
    """Return what the contiguous cache of one sequence makes."""
    return list(generate(loaded.model, prompt, max_tokens=count))


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("most", [8, 23, 8192])
def test_each_request_gets_what_it_gets_alone(loaded: LoadedModel, block_size: int, most: int) -> None:
    """Lengths around the border of a block; prompts whole, and in parts beside decodes."""
    prompts = prompts_of([1, 3, 4, 5, 15, 16, 17, 40])
    batch = Batch(loaded.model, max_requests=8, max_len=64, block_size=block_size, max_step_tokens=most)
    made = batch.generate(prompts, max_tokens=COUNT)
    batch.close()
    assert made == [alone(loaded, p) for p in prompts]


def test_joins_and_leaves_disturb_nobody(loaded: LoadedModel) -> None:
    """Requests join at random steps, some are removed; blocks go from hand to hand in a cache for three."""
    chance = random.Random(3)
    prompts = prompts_of([chance.randrange(1, 40) for _ in range(20)])
    batch = Batch(loaded.model, max_requests=3, max_len=64, block_size=4, num_blocks=40, max_step_tokens=17)
    made: dict[int, list[int]] = {}
    asked: dict[int, list[int]] = {}
    removed: set[int] = set()
    waiting = list(prompts)
    while waiting or batch.running:
        if waiting and chance.random() < 0.7:
            try:
                new = batch.add(waiting[0], max_tokens=COUNT)
            except UnsupportedError:
                pass
            else:
                asked[new], made[new] = waiting.pop(0), []
        if batch.running and chance.random() < 0.08:
            gone = chance.choice(batch.running)
            batch.remove(gone)
            removed.add(gone)
        for output in batch.step():
            assert output.request not in removed and output.token is not None
            made[output.request].append(output.token)
    assert batch.cache.allocator.num_free == 40
    batch.close()
    assert len(made) == 20 and 0 < len(removed) < 10
    for request, tokens in made.items():
        expected = alone(loaded, asked[request])
        assert tokens == expected[: len(tokens)]
        assert request in removed or len(tokens) == COUNT


def test_a_request_ends_for_a_reason(loaded: LoadedModel) -> None:
    """A stop token that is not given out, max_tokens, or the longest length."""
    prompt = prompts_of([6])[0]
    expected = alone(loaded, prompt, 8)
    stop = expected[3]
    batch = Batch(loaded.model, max_requests=3, max_len=14)
    ids = [
        batch.add(prompt, max_tokens=100, stop_tokens=[stop]),
        batch.add(prompt, max_tokens=5),
        batch.add(prompt, max_tokens=100),
    ]
    made: dict[int, list[int | None]] = {i: [] for i in ids}
    reasons: dict[int, Any] = {}
    while batch.running:
        for output in batch.step():
            made[output.request].append(output.token)
            assert output.request not in reasons
            if output.finish_reason is not None:
                reasons[output.request] = output.finish_reason
    batch.close()
    assert [reasons[i] for i in ids] == ["stop", "length", "context"]
    assert made[ids[0]] == [*expected[: expected.index(stop)], None]
    assert made[ids[1]] == expected[:5] and made[ids[2]] == expected
    assert batch.step() == []


def test_seeded_requests_draw_what_they_draw_alone(loaded: LoadedModel) -> None:
    """Beside a greedy one; each has a source of its own."""
    prompts = prompts_of([5, 9, 7])
    params = [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=9, seed=2),
    ]
    expected = [list(generate(loaded.model, p, s, max_tokens=COUNT)) for p, s in zip(prompts, params, strict=True)]
    batch = Batch(loaded.model, max_requests=3, max_len=64)
    ids = [batch.add(p, s, max_tokens=COUNT) for p, s in zip(prompts, params, strict=True)]
    made: dict[int, list[int | None]] = {i: [] for i in ids}
    while batch.running:
        for output in batch.step():
            made[output.request].append(output.token)
    batch.close()
    assert list(made.values()) == expected


def test_what_does_not_fit_is_refused_and_the_others_go_on(loaded: LoadedModel) -> None:
    """At add(), before anything is computed."""
    prompt = prompts_of([8])[0]
    batch = Batch(loaded.model, max_requests=2, max_len=32, block_size=4, num_blocks=7)
    with pytest.raises(ConfigError, match=r"has 40 tokens, and a request of this batch holds 32[\s\S]*max_len=41"):
        batch.add([5] * 40)
    with pytest.raises(ConfigError, match=r"holds 640[\s\S]*Remedy"):
        batch.add([5] * 640)
    with pytest.raises(ConfigError, match=r"never fit the cache[\s\S]*need 8 blocks of 4[\s\S]*num_blocks=8"):
        batch.add(prompt, max_tokens=100)
    with pytest.raises(ConfigError, match="empty"):
        batch.add([])
    first = batch.add(prompt, max_tokens=9)
    made = [o.token for o in batch.step()]
    with pytest.raises(
        UnsupportedError, match=r"1 requests run, and go on[\s\S]*4 blocks are needed, and 3 of 7 are free"
    ):
        batch.add(prompt, max_tokens=9)
    batch.add([7], max_tokens=2)
    with pytest.raises(UnsupportedError, match=r"max_requests=2[\s\S]*Remedy"):
        batch.add([7], max_tokens=1)
    while batch.running:
        made += [o.token for o in batch.step() if o.request == first]
    assert made == alone(loaded, prompt, 9)
    batch.close()


def test_an_unknown_request_cannot_be_removed(loaded: LoadedModel) -> None:
    """The error says whether it ended or never was."""
    batch = Batch(loaded.model, max_requests=2, max_len=32)
    first, second = batch.add([5, 6]), batch.add([7])
    batch.remove(first)
    with pytest.raises(UnknownNameError, match=rf"has ended, or was removed[\s\S]*running: {second}\."):
        batch.remove(first)
    with pytest.raises(UnknownNameError, match="No such id was given out"):
        batch.remove(77)
    batch.close()
    assert batch.running == () and batch.cache.allocator.num_free == batch.cache.num_blocks


def test_all_prompts_of_generate_are_checked_first(loaded: LoadedModel) -> None:
    """Nothing joins if one never fits."""
    batch = Batch(loaded.model, max_requests=2, max_len=32)
    with pytest.raises(ConfigError, match="token id 320"):
        batch.generate([[5, 6], [320]])
    assert batch.running == ()
    batch.close()


def test_the_model_is_as_before_after_a_batch(loaded: LoadedModel) -> None:
    """Also between the steps a text of its own goes through a cache of its own."""
    prompt = prompts_of([9])[0]
    expected = alone(loaded, prompt)
    batch = Batch(loaded.model, max_requests=2, max_len=64)
    batch.add(prompt)
    batch.step()
    assert alone(loaded, prompt) == expected
    batch.close()
    ids = torch.tensor(prompt)
    with torch.inference_mode():
        logits = loaded.model.compute_logits(loaded.model(ids, torch.arange(9)))
    assert int(logits[-1].argmax()) == expected[0]


def test_a_model_serves_one_batch_at_a_time(loaded: LoadedModel) -> None:
    """Until that is closed, or forgotten."""
    with Batch(loaded.model, max_requests=1, max_len=32) as batch:
        with pytest.raises(OrderError, match=r"serves another batch[\s\S]*Remedy: close"):
            Batch(loaded.model, max_requests=1, max_len=32)
        assert len(batch.generate([[5, 6]], max_tokens=3)[0]) == 3
    with pytest.raises(OrderError, match="closed"):
        batch.add([5])
    batch.close()
    batch = Batch(loaded.model, max_requests=1, max_len=32)
    del batch
    Batch(loaded.model, max_requests=1, max_len=32).close()


def test_a_step_that_fails_can_be_run_again(loaded: LoadedModel, run_again: Callable[..., Any]) -> None:
    """Memory may be short once: no request loses a token."""
    prompts = prompts_of([5, 20])
    failing = [3, 6]

    def fail(*_: object) -> None:
        failing[:] = [n - 1 for n in failing]
        if 0 in failing:
            raise MemoryError

    handle = loaded.model.model.layers[1].register_forward_pre_hook(fail)
    with Batch(loaded.model, max_requests=2, max_len=64, max_step_tokens=8) as batch:
        made, failures = run_again(batch, prompts, max_tokens=COUNT)
    handle.remove()
    assert failures == 2 and made == [alone(loaded, p) for p in prompts]


@pytest.mark.parametrize("where", ["compute_logits", "sample"])
def test_a_step_that_fails_behind_the_layers_can_be_run_again(
    loaded: LoadedModel, where: str, run_again: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In prompts and in decodes; what was drawn before the failure is drawn again."""
    prompts, drawn = prompts_of([5, 20, 3]), SamplingParams(temperature=0.9, top_k=40, seed=4)
    expected = [list(generate(loaded.model, p, drawn, max_tokens=COUNT)) for p in prompts]
    holder, calls = (loaded.model, [0]) if where == "compute_logits" else (runner, [0])
    original = getattr(holder, where)

    def sometimes(*args: Any) -> torch.Tensor:
        calls[0] += 1
        if calls[0] in (2, 3, 9, 13):  # of requests that draw, the first, or one in the middle
            raise MemoryError
        return original(*args)  # type: ignore[no-any-return]

    monkeypatch.setattr(holder, where, sometimes)
    with Batch(loaded.model, max_requests=3, max_len=64, max_step_tokens=9) as batch:
        made, failures = run_again(batch, prompts, sampling=drawn, max_tokens=COUNT)
    assert failures == 4 and made == expected


def test_a_request_whose_logits_are_nan_is_named_and_the_others_go_on(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays until it is removed; no token of the others is lost."""
    prompts = prompts_of([5, 7])
    compute = loaded.model.compute_logits

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden)
        if len(logits) == 2:
            logits[1] = float("nan")
        return logits

    with Batch(loaded.model, max_requests=2, max_len=64) as batch:
        good, bad = batch.add(prompts[0], max_tokens=4), batch.add(prompts[1], SamplingParams(temperature=1.0))
        monkeypatch.setattr(loaded.model, "compute_logits", broken)
        for _ in range(2):
            with pytest.raises(DrawError, match=rf"drawn for request {bad}\.[\s\S]*Remedy: remove\({bad}\)"):
                batch.step()
        batch.remove(bad)
        made = [output.token for _ in range(4) for output in batch.step()]
        assert made == alone(loaded, prompts[0], 4) and good not in batch.running


def test_prompts_of_a_generate_that_failed_hold_no_place(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were added before go on."""
    prompts = prompts_of([5, 6, 7])
    with Batch(loaded.model, max_requests=3, max_len=32) as batch:
        before = batch.add(prompts[0], max_tokens=3)
        free = batch.cache.allocator.num_free
        with monkeypatch.context() as patch:
            patch.setattr(batch._runner, "launch", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                batch.generate(prompts[1:], max_tokens=3)
        assert batch.running == (before,) and batch.cache.allocator.num_free == free
        assert [o.token for _ in range(3) for o in batch.step()] == alone(loaded, prompts[0], 3)


def test_a_batch_whose_cache_was_taken_from_the_model_says_so(loaded: LoadedModel) -> None:
    """Its blocks are none of the other cache; and its end leaves the other cache where it is."""
    batch = Batch(loaded.model, max_requests=1, max_len=32)
    batch.add([5, 6])
    other = PagedKVCache.for_model(loaded.model, num_blocks=3)
    with pytest.raises(OrderError, match=r"uses another one[\s\S]*layer model.layers.0.self_attn.attn"):
        batch.step()
    batch.close()
    other.require_bound()
    with pytest.raises(OrderError, match=r"serves another batch[\s\S]*Remedy[\s\S]*unbind\(\) that cache"):
        Batch(loaded.model)
    other.unbind()


def test_a_batch_that_cannot_be_made_lets_go_of_the_model(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may be short behind the cache too."""
    monkeypatch.setattr(runner, "DecodeGraphs", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        Batch(loaded.model, max_len=32, graphs=True, capture=lambda step: (step, step()))
    Batch(loaded.model, max_requests=1, max_len=32).close()


def test_a_closed_batch_takes_no_work(loaded: LoadedModel) -> None:
    batch = Batch(loaded.model, max_requests=1, max_len=32)
    batch.close()
    for work in (lambda: batch.add([5]), lambda: batch.generate([[5]])):
        with pytest.raises(OrderError, match="closed"):
            work()


@pytest.mark.parametrize("tokens", [None, "abc", [1.5], [2.0], torch.ones(1, 3, dtype=torch.int64), {"ids": [1]}])
def test_a_prompt_that_is_no_row_of_ids_is_refused(loaded: LoadedModel, tokens: Any) -> None:
    """Nothing is rounded; ids in a tensor or an array are ids."""
    with Batch(loaded.model, max_requests=1, max_len=32) as batch:
        for work in (batch.add, batch.check, lambda given: batch.generate([[5], given])):
            with pytest.raises(ConfigError, match="no row of token ids"):
                work(tokens)
        assert not batch.running
        assert batch.generate([torch.tensor([5, 6])], max_tokens=3) == [alone(loaded, [5, 6], 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_requests": 0}, "max_requests=0"),
        ({"max_len": 1}, "max_len=1"),
        ({"max_len": 0}, "max_len=0"),
        ({"num_blocks": 0}, "num_blocks=0"),
        ({"block_size": 0}, "block_size=0"),
        ({"block_size": "16"}, "block_size='16' is no whole number"),
        ({"num_blocks": 2.5}, "num_blocks=2.5 is no whole number"),
        ({"max_step_tokens": None}, "max_step_tokens=None is no whole number"),
        ({"max_requests": 9, "max_step_tokens": 8}, "max_step_tokens=8[\\s\\S]*from 9"),
        ({"cache_dtype": "fp8"}, "cannot hold 'fp8'[\\s\\S]*torch.float8_e4m3fn"),
    ],
)
def test_impossible_numbers_are_refused(loaded: LoadedModel, options: dict[str, Any], message: str) -> None:
    """Before a cache is allocated."""
    with pytest.raises(ConfigError, match=message):
        Batch(loaded.model, **options)


def test_graphs_are_refused_on_the_cpu(loaded: LoadedModel) -> None:
    """With the reason and what to do."""
    with pytest.raises(UnsupportedError, match=r"device 'cpu'[\s\S]*platform[\s\S]*Remedy: leave graphs out"):
        Batch(loaded.model, graphs=True)
