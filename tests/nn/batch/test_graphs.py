"""The buffers and the order of replayed steps; what stands for the device's graph here runs the same code again."""

from __future__ import annotations

import contextvars
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock.errors import ConfigError, UnsupportedError
from opdock.nn.attention.backends.sdpa import SdpaAttentionBackend
from opdock.nn.batch import Batch, ReplayedGeneration, runner
from opdock.nn.batch.graphs import bucket_sizes
from opdock.nn.generation import LoadedModel, SamplingParams, generate, load_model
from opdock.nn.loading import build_model
from opdock.nn.models import ModelConfig
from opdock.nn.models.facts import MixtureConfig


class Rerun:
    """Captures nothing: a replay runs the step again, over the same buffers. Counts both."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        self.captured += 1
        inside = contextvars.copy_context()  # the forward context, which a graph has no need of
        made = step().clone()

        def replay() -> None:
            self.replayed += 1
            made.copy_(inside.run(step))

        return replay, made


@pytest.fixture(scope="module")
def loaded(checkpoints: Callable[[str], tuple[Path, Any]]) -> Iterator[LoadedModel]:
    """A small random model in float32."""
    folder, _ = checkpoints("llama")
    with opdock.set_current_config():
        yield load_model(folder, dtype=torch.float32)


def test_buckets_hold_every_batch_size() -> None:
    """Small ones exactly, larger ones with at most seven rows of padding."""
    assert bucket_sizes(1) == (1,) and bucket_sizes(3) == (1, 2, 3) and bucket_sizes(21) == (1, 2, 4, 8, 16, 21)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_replays_make_what_each_request_makes_alone(loaded: LoadedModel, count: int) -> None:
    """Odd batch sizes are padded; one graph serves all steps of a size."""
    chance = random.Random(count)
    prompts = [[chance.randrange(3, 320) for _ in range(chance.randrange(1, 40))] for _ in range(count)]
    capture = Rerun()
    batch = Batch(loaded.model, max_requests=7, max_len=64, block_size=4, graphs=True, capture=capture)
    made = batch.generate(prompts, max_tokens=20)
    batch.close()
    assert made == [list(generate(loaded.model, p, max_tokens=20)) for p in prompts]
    assert capture.captured == 1 and capture.replayed == 19


def test_joins_stops_and_removals_between_replays(loaded: LoadedModel) -> None:
    """Also while a step is in flight, whose other tokens count."""
    chance = random.Random(11)
    prompts = [[chance.randrange(3, 320) for _ in range(chance.randrange(1, 30))] for _ in range(24)]
    expected = [list(generate(loaded.model, p, max_tokens=16)) for p in prompts]
    capture = Rerun()
    batch = Batch(loaded.model, max_requests=5, max_len=48, block_size=4, graphs=True, capture=capture)
    made: dict[int, list[int | None]] = {}
    at: dict[int, int] = {}
    gone: set[int] = set()
    following = 0
    while following < 24 or batch.running:
        while following < 24 and len(batch.running) < 5 and chance.random() < 0.4:
            stop = [expected[following][9]] if following % 3 == 0 else []
            new = batch.add(prompts[following], max_tokens=16, stop_tokens=stop)
            made[new], at[new], following = [], following, following + 1
        if batch.running and chance.random() < 0.05:
            gone.add(chance.choice(batch.running))
            batch.remove(next(iter(gone & set(batch.running))))
        for output in batch.step():
            assert output.request not in gone
            made[output.request].append(output.token)
    assert batch.cache.allocator.num_free == batch.cache.num_blocks
    batch.close()
    for request, tokens in made.items():
        wanted: list[int | None] = list(expected[at[request]])
        if at[request] % 3 == 0:
            wanted = [*wanted[: wanted.index(wanted[9])], None]
        assert tokens == wanted[: len(tokens)] and (request in gone or len(tokens) == len(wanted))
    assert gone and capture.replayed > 50 and capture.captured <= 4


@pytest.mark.parametrize("where", ["replay", "sample"])
def test_a_replay_that_fails_can_be_run_again(
    loaded: LoadedModel, where: str, run_again: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was launched ahead, while the tokens of the step before it are not read yet."""
    chance = random.Random(2)
    prompts = [[chance.randrange(3, 320) for _ in range(n)] for n in (4, 17, 9)]
    sampling = SamplingParams(temperature=0.9, top_k=40, seed=4) if where == "sample" else SamplingParams()
    expected = [list(generate(loaded.model, p, sampling, max_tokens=12)) for p in prompts]
    holder = runner if where == "sample" else runner.DecodeGraphs
    original, calls = getattr(holder, where), [0]

    def sometimes(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        made = original(*args, **options)
        if calls[0] in (2, 5, 6, 10):
            raise MemoryError
        return made

    monkeypatch.setattr(holder, where, sometimes)
    with Batch(loaded.model, max_requests=3, max_len=48, block_size=4, graphs=True, capture=Rerun()) as batch:
        made, failures = run_again(batch, prompts, sampling=sampling, max_tokens=12)
    assert failures == 4 and made == expected


def test_drawn_tokens_are_the_next_input(loaded: LoadedModel) -> None:
    """Beside greedy ones, and though the next step is launched before they are read."""
    prompt = [5, 6, 7]
    sampling = [SamplingParams(temperature=1.0, seed=3), SamplingParams(), SamplingParams(temperature=1.3, seed=4)]
    expected = [list(generate(loaded.model, prompt, s, max_tokens=12)) for s in sampling]
    batch = Batch(loaded.model, max_requests=4, max_len=32, graphs=True, capture=Rerun())
    made: dict[int, list[int | None]] = {batch.add(prompt, s, max_tokens=12): [] for s in sampling}
    while batch.running:
        for output in batch.step():
            made[output.request].append(output.token)
    batch.close()
    assert list(made.values()) == expected


@pytest.mark.parametrize(
    ("prompt", "options"), [(5, {"max_tokens": 9}), (633, {}), (5, {"max_tokens": 1}), (5, {"stop": 4})]
)
def test_one_text_with_replays_is_the_same_text(loaded: LoadedModel, prompt: int, options: dict[str, int]) -> None:
    """Also its end, and the counts."""
    tokens = [random.Random(prompt).randrange(3, 320) for _ in range(prompt)]
    most = options.get("max_tokens", 30)
    plain = list(generate(loaded.model, tokens, max_tokens=most))
    stops = [plain[options["stop"]]] if "stop" in options else []
    expected = generate(loaded.model, tokens, max_tokens=most, stop_tokens=stops)
    found = ReplayedGeneration(loaded.model, tokens, max_tokens=most, stop_tokens=stops, capture=Rerun())
    assert found.prompt_tokens == prompt and found.finish_reason is None
    assert list(found) == list(expected) and list(found) == []
    assert (found.new_tokens, found.finish_reason) == (expected.new_tokens, expected.finish_reason)


def test_a_text_that_is_refused_lets_go_of_the_model(loaded: LoadedModel) -> None:
    """Also while its error is kept, as a debugger or a notebook does."""
    with pytest.raises(ConfigError, match="token id") as kept:
        ReplayedGeneration(loaded.model, [320], capture=Rerun())
    Batch(loaded.model, max_requests=1, max_len=32).close()
    assert kept.value.__traceback__ is not None


@pytest.mark.parametrize("experts", [False, True])
def test_a_backend_that_cannot_be_captured_is_refused_with_its_layer_when_the_batch_is_made(
    experts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the platform has graphs; nothing is captured, and the model is free again."""
    monkeypatch.setattr("opdock.nn.batch.batch.refuse_without_graphs", lambda _: None)
    mixture = MixtureConfig(4, 2, 32, frozenset([1]))
    config = ModelConfig(
        architecture="LlamaForCausalLM", vocab_size=64, hidden_size=32, intermediate_size=64, num_layers=2,
        num_heads=2, num_kv_heads=1, head_dim=16, rms_norm_eps=1e-5, max_position=64, mixture=mixture,
    )  # fmt: skip
    with opdock.set_current_config(opdock.OpdockConfig(kernel_config=opdock.KernelConfig(moe_backend="native"))):
        model = build_model(config, torch.float32, torch.device("cpu"))
        if experts:
            monkeypatch.setattr(SdpaAttentionBackend, "why_no_capture", lambda: None)
        words = "layer model.layers.1.mlp[\\s\\S]*MoE backend native" if experts else "attention backend SDPA"
        with pytest.raises(UnsupportedError, match=rf"cannot be captured[\s\S]*{words}[\s\S]*Remedy: leave graphs out"):
            Batch(model, graphs=True)
        Batch(model).close()
