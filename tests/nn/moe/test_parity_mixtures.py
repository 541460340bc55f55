"""The same logits as transformers from the same checkpoints of mixtures, prefill and token by token."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.batch import Batch
from opdock.nn.generation import generate

KINDS = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v2_greedy",
    "deepseek_v3",
    "deepseek_v3_neox",
    "deepseek_v2_yarn",
    "deepseek_v3_yarn",
    "qwen3_moe_yarn",
)
TOKENS, PROMPT = 40, 23
FACTOR = 1.5
ROUTER = 3e-6  # transformers computes scores in float32, in its float64 run too


def tokens() -> Tensor:
    return torch.randint(3, 320, (TOKENS,), generator=torch.Generator().manual_seed(5))


def ours(model: Any, prompt: int) -> Tensor:
    """Return the logits at every position: the prompt in one step, the others one by one."""
    ids, positions = tokens(), torch.arange(TOKENS)
    cache = model.new_cache(TOKENS)
    with torch.inference_mode():
        hidden = [model(ids[:prompt], positions[:prompt], cache)]
        hidden += [model(ids[i : i + 1], positions[i : i + 1], cache) for i in range(prompt, TOKENS)]
        return model.compute_logits(torch.cat(hidden)).double()  # type: ignore[no-any-return]


def theirs(model: Any) -> Tensor:
    with torch.inference_mode():
        return model(tokens()[None]).logits[0].double()  # type: ignore[no-any-return]


def exact(model: Any) -> Any:
    """Return transformers' model in float64, norms included."""

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    double = copy.deepcopy(model).double()
    double.set_experts_implementation("eager")  # torch's grouped product takes no float64
    for module in double.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
    return double


@pytest.mark.parametrize("prompt", [1, PROMPT, TOKENS])
@pytest.mark.parametrize("kind", KINDS)
def test_float32_logits_are_as_exact_as_those_of_transformers(
    kind: str, prompt: int, config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any]
) -> None:
    """Against float64, the largest error is at most 1.5 times that of transformers, or 3e-6 of the largest logit."""
    folder, model = mixtures(kind)
    want = theirs(exact(model))
    error, their_error = (ours(load(folder), prompt) - want).abs().max(), (theirs(model) - want).abs().max()
    assert error <= max(FACTOR * their_error, ROUTER * want.abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_float64_agrees_but_for_their_float32_router(
    kind: str, config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any]
) -> None:
    folder, model = mixtures(kind)
    want = theirs(exact(model))
    model = load(folder, torch.float64)
    assert (ours(model, PROMPT) - want).abs().max() <= ROUTER * want.abs().max()


def test_a_cache_of_latent_attention_holds_one_short_row_for_each_position(
    config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any]
) -> None:
    """24 latent numbers and 16 of the rotated key, whatever the number of heads."""
    model = load(mixtures("deepseek_v3")[0])
    cache = model.new_cache(7, batch=2)
    assert [layer._keys.shape for layer in cache.layers] == [(2, 1, 8, 40)] * 3


def test_two_sequences_of_one_length_in_one_cache_are_those_alone(
    config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any]
) -> None:
    model = load(mixtures("deepseek_v2")[0])
    ids = torch.stack([tokens()[:9], tokens()[20:29]])
    with torch.inference_mode():
        cache, positions = model.new_cache(9, batch=2), torch.arange(9)
        both = [model(ids[:, :6].reshape(-1), positions[:6].repeat(2), cache).view(2, 6, -1)]
        both += [model(ids[:, i], positions[i : i + 1].repeat(2), cache).view(2, 1, -1) for i in range(6, 9)]
        for row, sequence in zip(torch.cat(both, dim=1), ids, strict=True):
            torch.testing.assert_close(row, model(sequence, positions), rtol=2e-4, atol=2e-4)


def test_an_expert_that_is_missing_from_a_checkpoint_is_named(
    config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any], tmp_path: Path
) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    folder, _ = mixtures("qwen3_moe")
    held = safetensors.load_file(folder / "model.safetensors")
    del held["model.layers.1.mlp.experts.5.up_proj.weight"]
    safetensors.save_file(held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"1 missing:\s+model\.layers\.1\.mlp\.experts\.5\.up_proj\.weight"):
        load(tmp_path)


def test_layers_for_further_tokens_behind_the_last_are_left_out(
    config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any], tmp_path: Path
) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    folder, _ = mixtures("deepseek_v3")
    held = safetensors.load_file(folder / "model.safetensors")
    held["model.layers.3.eh_proj.weight"] = torch.ones(2, 2)
    safetensors.save_file(held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert torch.equal(ours(load(tmp_path), PROMPT), ours(load(folder), PROMPT))


def test_latent_attention_refuses_batch_invariance_by_the_layers_name(
    monkeypatch: pytest.MonkeyPatch, config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any]
) -> None:
    folder, _ = mixtures("deepseek_v3")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(UnsupportedError, match="does not declare batch invariance") as caught:
        load(folder)
    assert "model.layers.0.self_attn" in str(caught.value)


@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe", "deepseek_v2_greedy", "deepseek_v3", "deepseek_v3_yarn"])
def test_each_request_of_a_batch_gets_the_tokens_that_it_gets_alone(
    kind: str, config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any]
) -> None:
    """Latent attention too, over the paged cache; prompts whole, and in parts beside decodes."""
    model = load(mixtures(kind)[0])
    prompts = [tokens()[i : i + n].tolist() for i, n in ((0, 1), (3, 5), (8, 17), (20, 16))]
    want = [list(generate(model, p, max_tokens=9)) for p in prompts]
    for most in (7, 512):
        with Batch(model, max_requests=4, max_len=48, block_size=4, max_step_tokens=most) as batch:
            assert batch.generate(prompts, max_tokens=9) == want


def test_latent_attention_over_a_paged_cache_is_compiled_as_one_graph(
    config: Any, mixtures: Callable[[str], tuple[Path, Any]], load: Callable[..., Any]
) -> None:
    model = load(mixtures("deepseek_v3")[0])
    prompts = [tokens()[:5].tolist(), tokens()[9:12].tolist()]
    want = [list(generate(model, p, max_tokens=4)) for p in prompts]
    model.compile(backend="eager", fullgraph=True)
    with Batch(model, max_requests=2, max_len=16, block_size=4) as batch:
        assert batch.generate(prompts, max_tokens=4) == want
