"""Loading: dtypes, progress, order, and what replaced layers may do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock.errors import CheckpointError, ConfigError, OrderError, UnsupportedError
from opdock.nn.generation import check_request, load_model
from opdock.nn.layers import ReplicatedLinear
from opdock.nn.models.config import ModelConfig
from opdock.nn.models.tokenizer import Tokenizer


def _change(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **changes}))


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, "bfloat16"])
def test_every_parameter_has_the_dtype_that_was_asked_for(folder: Path, dtype: torch.dtype | str) -> None:
    """By object or name, the rotary table too; the scales of an 8-bit cache are float32 whatever the model is."""
    model = load_model(folder, dtype=dtype).model
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    buffers = dict(model.named_buffers())
    scales = {name for name in buffers if name.endswith(("k_scale", "v_scale"))}
    assert {t.dtype for t in model.parameters()} == {wanted}
    assert {t.dtype for name, t in buffers.items() if name not in scales} == {wanted}
    assert {buffers[name].dtype for name in scales} == {torch.float32}
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.usefixtures("config")
def test_the_checkpoints_dtype_is_taken_where_none_is_asked_for(folder: Path) -> None:
    """As its configuration states it."""
    _change(folder, dtype="bfloat16")
    assert load_model(folder).model.lm_head.weight.dtype is torch.bfloat16


@pytest.mark.usefixtures("config")
def test_a_dtype_that_the_platform_lacks_is_refused_before_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those that it has."""
    platform = opdock.context.platform()
    monkeypatch.setattr(type(platform), "supported_dtypes", [torch.float32], raising=False)
    monkeypatch.setattr(torch.Tensor, "copy_", None)  # any weight would fail
    with pytest.raises(UnsupportedError, match="does not run bfloat16[\\s\\S]*float32[\\s\\S]*--dtype float32"):
        load_model(folder, dtype="bfloat16")
    with pytest.raises(UnsupportedError, match="Did you mean 'bfloat16'"):
        load_model(folder, dtype="bfloat")


def test_loading_outside_a_configuration_is_an_order_error(folder: Path) -> None:
    """Layers bind their methods under a configuration."""
    with pytest.raises(OrderError, match="config is not set"):
        load_model(folder)


@pytest.mark.usefixtures("config")
def test_progress_ends_at_the_total(folder: Path) -> None:
    """In numbers copied, never backwards."""
    seen: list[tuple[int, int]] = []
    model = load_model(folder, progress=lambda done, total: seen.append((done, total))).model
    assert seen == sorted(seen) and len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1] == sum(p.numel() for p in model.parameters())


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 4}, "9 missing"),
        ({"num_hidden_layers": 2}, "9 unexpected"),
        ({"intermediate_size": 96}, "of another shape"),
        ({"vocab_size": 400}, "of another shape"),
        ({"architectures": ["LlamaForCausalML"]}, "Did you mean 'LlamaForCausalLM'"),
    ],
)
def test_a_configuration_of_another_model_is_refused_before_it_is_built(
    folder: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the headers alone."""
    _change(folder, **changes)
    monkeypatch.setattr("opdock.nn.loading.build_model", None)
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


@pytest.mark.usefixtures("config")
def test_weights_are_whole_and_own_their_memory(folder: Path, checkpoints: Callable[[str], tuple[Path, Any]]) -> None:
    """Contiguous; the file may go."""
    _, theirs = checkpoints("llama")
    model = load_model(folder, dtype=torch.float32).model
    (folder / "model.safetensors").unlink()
    layer = theirs.model.layers[1]
    expected = torch.cat([layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight])
    assert torch.equal(model.model.layers[1].self_attn.qkv_proj.weight, expected)
    assert all(p.is_contiguous() and not p.requires_grad for p in model.parameters())


@pytest.mark.usefixtures("config")
def test_a_parameters_own_loader_comes_first(folder: Path) -> None:
    """As replaced layers bring them."""
    from opdock.nn.models.checkpoint import Target, load_weights

    layer = torch.nn.Module()
    layer.inner = ReplicatedLinear(2, 2, bias=False)
    seen = []
    layer.inner.weight.weight_loader = lambda param, tensor: seen.append(tuple(tensor.shape))

    class One:
        source = "memory"

        def read(self) -> Any:
            yield "w", torch.zeros(2, 2)

    load_weights(layer, {"w": Target("inner.weight", (2, 2))}, One())  # type: ignore[arg-type]
    assert seen == [(2, 2)]


@pytest.mark.usefixtures("config")
def test_a_callers_check_comes_before_the_model_is_built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a prompt that is too long costs no loading."""
    monkeypatch.setattr("opdock.nn.loading.build_model", None)

    def check(tokenizer: Tokenizer, config: ModelConfig) -> None:
        check_request(tokenizer.encode("x" * 700), config, 1)

    with pytest.raises(ConfigError, match="has 700 tokens, and the model's context holds 640"):
        load_model(folder, check=check)


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_weights_are_made_in_the_platforms_context_unless_on_the_cpu_and_can_be_written_later(
    device: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some devices have tensors inside ``inference_mode()`` alone; torch's own would leave weights that are fixed."""
    entered = []

    def inference_mode() -> torch.inference_mode:
        entered.append(device)
        return torch.inference_mode()

    monkeypatch.setattr(type(opdock.context.platform()), "inference_mode", staticmethod(inference_mode))
    model = load_model(folder, device=device).model
    assert entered == ([] if device == "cpu" else [device])
    assert {p.device.type for p in model.parameters()} == {device}
    assert not [name for name, p in (*model.named_parameters(), *model.named_buffers()) if p.is_inference()]
