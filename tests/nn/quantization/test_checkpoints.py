"""Quantised checkpoints load, and give the logits of transformers with the dequantised weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from opdock.errors import CheckpointError, ConfigError, UnsupportedError
from opdock.nn.quantization import layouts
from opdock.nn.quantization.rounding import quantise_int4

pytestmark = pytest.mark.usefixtures("config")

EXACT = 2e-5  # float32 sums in another order
NEAR = 2e-3  # of the logits' deviation: a few elements lie at a tie, and are rounded to the other side


def _gptq(group: int, *, sym: bool, act_order: bool, less_one: bool) -> Any:
    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        inputs = weight.shape[1]
        size = inputs if group == -1 else group
        order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs)) if act_order else None
        codes, scales, zeros = quantise_int4(weight if order is None else weight[:, order], size, zero_points=not sym)
        zeros = torch.full_like(scales, 8, dtype=torch.uint8) if zeros is None else zeros
        g_idx = torch.arange(inputs) // size
        floats = (codes.float() - zeros.t().repeat_interleave(size, 1)) * scales.t().repeat_interleave(size, 1)
        if order is not None:
            back = torch.argsort(order)
            codes, g_idx, floats = codes[:, back], g_idx[back], floats[:, back]
        qzeros = layouts.pack(zeros, 1)
        return {
            "qweight": layouts.pack(codes.t(), 0),
            "qzeros": qzeros - 0x11111111 if less_one else qzeros,
            "scales": scales,
            "g_idx": g_idx.to(torch.int32),
        }, floats

    return quantise


@pytest.mark.parametrize("group", [-1, 32, 64])
@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("act_order", [True, False])
def test_gptq(packed: Any, loaded: Any, logits: Any, group: int, *, sym: bool, act_order: bool) -> None:
    """Group sizes, with and without zero points and act-order; both formats of zero points."""
    less_one = group != 64
    described = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": group,
        "desc_act": act_order,
        "sym": sym,
        "checkpoint_format": "gptq" if less_one else "gptq_v2",
    }
    folder, reference = packed(_gptq(group, sym=sym, act_order=act_order, less_one=less_one), described)
    torch.testing.assert_close(logits(loaded(folder)), logits(reference), atol=EXACT, rtol=EXACT)


def test_awq(packed: Any, loaded: Any, logits: Any) -> None:
    """Words along the outputs, in AWQ's order."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        codes, scales, zeros = quantise_int4(weight, 32, zero_points=True)
        assert zeros is not None
        floats = (codes.float() - zeros.t().repeat_interleave(32, 1)) * scales.t().repeat_interleave(32, 1)
        words, packed_zeros = layouts.pack_awq(codes.t().contiguous()), layouts.pack_awq(zeros)
        return {"qweight": words, "qzeros": packed_zeros, "scales": scales}, floats

    described = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    folder, reference = packed(quantise, described)
    torch.testing.assert_close(logits(loaded(folder)), logits(reference), atol=EXACT, rtol=EXACT)


def _rounded(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def _round_inputs(model: Any, rounded: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let transformers' quantised layers round what comes in."""
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(lambda _module, args: (rounded(args[0]),))


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).pow(2).mean().sqrt() / theirs.std())


def _fp8(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    scale = weight.abs().max() / 448
    q = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale": scale}, q.float() * scale


def test_fp8_with_one_scale_for_each_tensor(packed: Any, loaded: Any, logits: Any) -> None:
    """The parts of a fused layer have scales of their own; rows are rounded with one scale each."""
    folder, reference = packed(_fp8, {"quant_method": "fp8", "activation_scheme": "dynamic"})
    plain = logits(reference)
    _round_inputs(reference, lambda x: _rounded(x, x.abs().amax(-1, keepdim=True) / 448))
    ours, theirs = logits(loaded(folder)), logits(reference)
    assert _error(ours, theirs) < NEAR
    assert _error(plain, theirs) > 10 * NEAR  # else the test would not see whether rows are rounded


def test_fp8_in_blocks(packed: Any, loaded: Any, logits: Any) -> None:
    """128 x 128, as DeepSeek's checkpoints have them."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tiles = weight.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        scale = tiles.abs().amax((1, 3)) / 448
        wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        q = (weight / wide).to(torch.float8_e4m3fn)
        return {"weight": q, "weight_scale_inv": scale}, q.float() * wide

    described = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    folder, reference = packed(quantise, described)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        groups = x.unflatten(-1, (-1, 128))
        return _rounded(groups, groups.abs().amax(-1, keepdim=True) / 448).flatten(-2)

    _round_inputs(reference, rounded)
    assert _error(logits(loaded(folder)), logits(reference)) < NEAR


def test_fp8_with_a_scale_of_the_activations_in_the_checkpoint(packed: Any, loaded: Any, logits: Any) -> None:
    """The parts of a fused layer take the largest."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        found, floats = _fp8(weight)
        return {**found, "input_scale": torch.tensor([0.01])}, floats

    folder, reference = packed(quantise, {"quant_method": "fp8", "activation_scheme": "static"})
    _round_inputs(reference, lambda x: _rounded(x, torch.tensor(0.01)))
    assert _error(logits(loaded(folder)), logits(reference)) < NEAR


def test_weights_can_be_loaded_twice_into_the_same_memory(packed: Any, loaded: Any, logits: Any) -> None:
    """A captured graph would go on reading it."""
    from opdock.nn.models.checkpoint import checkpoint_plan, load_weights
    from opdock.nn.models.loader_hf import HFCheckpoint
    from opdock.nn.models.quantised import quantised_plan
    from opdock.nn.quantization import finish_loading, start_loading

    described = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}
    folder, _ = packed(_gptq(32, sym=False, act_order=True, less_one=True), described)
    model = loaded(folder)
    before, places = logits(model), {n: p.data_ptr() for n, p in model.named_parameters()}
    for p in model.parameters():
        if p.is_floating_point():
            p.data.fill_(7.0)
    checkpoint = HFCheckpoint(folder)
    plan = quantised_plan(checkpoint_plan(checkpoint.config), checkpoint.config.quant_config, torch.float32)
    for _ in range(2):
        start_loading(model)
        load_weights(model, plan, checkpoint)
        finish_loading(model)
        finish_loading(model)
    assert torch.equal(logits(model), before)
    assert {n: p.data_ptr() for n, p in model.named_parameters()} == places


def _change(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": changes}))


def test_an_unknown_method_is_refused_with_near_matches(packed: Any, loaded: Any) -> None:
    """And the file's name."""
    folder, _ = packed(_fp8, {"quant_method": "gtpq"})
    with pytest.raises(CheckpointError, match=r"gtpq[\s\S]*config.json[\s\S]*Did you mean 'gptq'"):
        loaded(folder)


def test_scales_that_are_missing_are_named_before_anything_is_read(packed: Any, loaded: Any) -> None:
    """With the layer."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        found, floats = _fp8(weight)
        return {"weight": found["weight"]}, floats

    folder, _ = packed(quantise, {"quant_method": "fp8"})
    with pytest.raises(CheckpointError, match=r"14 missing[\s\S]*layers.0.mlp.down_proj.weight_scale"):
        loaded(folder)


def test_sizes_that_groups_do_not_divide_are_refused_with_the_layers_name(packed: Any, loaded: Any) -> None:
    """Before anything is read."""
    folder, _ = packed(_fp8, {"quant_method": "gptq", "bits": 4, "group_size": 96})
    with pytest.raises(UnsupportedError, match=r"\.q_proj[\s\S]*128 inputs are no multiple of the group size 96"):
        loaded(folder)


def test_zero_points_in_a_checkpoint_that_calls_itself_symmetric_are_refused(packed: Any, loaded: Any) -> None:
    """The words are what counts."""
    described = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    folder, _ = packed(_gptq(32, sym=False, act_order=False, less_one=True), described)
    with pytest.raises(CheckpointError, match=r"qkv_proj' has zero points"):
        loaded(folder)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"quant_method": "gptq", "bits": 3, "group_size": 32}, "GPTQ with 3 bits"),
        ({"quant_method": "gptq", "group_size": 32}, "has none of 'bits'"),
        ({"quant_method": "gptq", "bits": "4", "group_size": 32}, "'bits'.*not a whole number"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}, "gemv"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"Blocks of \[64, 64\]"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "no config_groups"),
    ],
)
def test_configurations_that_cannot_be_loaded_say_why(
    packed: Any, loaded: Any, described: dict[str, Any], message: str
) -> None:
    """And which file."""
    folder, _ = packed(_fp8, described)
    with pytest.raises((UnsupportedError, CheckpointError), match=rf"{message}[\s\S]*config.json"):
        loaded(folder)


def test_layers_in_the_list_stay_as_they_are(packed: Any, loaded: Any, logits: Any) -> None:
    """And a fused layer of which one part is listed is refused."""

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {"weight": weight.clone()}, weight

    folder, reference = packed(quantise, {"quant_method": "fp8", "ignored_layers": ["re:.*_proj"]})
    torch.testing.assert_close(logits(loaded(folder)), logits(reference), atol=EXACT, rtol=EXACT)
    _change(folder, quant_method="fp8", ignored_layers=["q_proj", "k_proj", "o_proj", "mlp"])
    with pytest.raises((ConfigError, CheckpointError), match="v_proj"):
        loaded(folder)
