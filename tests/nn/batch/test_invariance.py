"""VLLM_BATCH_INVARIANT=1: a request has the same bits alone and in any batch, or an error names what cannot."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import opdock
from opdock import env, ir
from opdock.errors import ConfigError, OrderError, UnsupportedError
from opdock.nn.batch import Batch
from opdock.nn.batch.invariance import LARGEST_PART, promises
from opdock.nn.batch.request import Request, plan_step
from opdock.nn.generation import LoadedModel, generate
from opdock.nn.invariant import BatchInvarianceError, in_force
from opdock.nn.layers import matmul_invariant
from opdock.nn.loading import load_model
from opdock.nn.models.facts import MixtureConfig
from opdock.nn.sampling import SamplingParams

LENGTHS = (7, 1, 33, 2, 18, 64, 5, 40)


@pytest.fixture(autouse=True)
def _config(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The mode is on; op by op."""
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "1")
    with opdock.set_current_config():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", ["small", "smollm2", "normed"])
def test_logits_are_the_same_bits_alone_and_in_any_batch(invariant: Any, config: str, dtype: torch.dtype) -> None:
    """Of 2, 3 and 8 requests of mixed lengths; beside parts of prompts, with blocks of another size, and once more."""
    model, prompts = invariant.model(getattr(invariant, config), dtype), invariant.prompts(LENGTHS)
    alone = [invariant.logits(model, [p])[0] for p in prompts]
    for count in (2, 3, 8):
        assert invariant.same(invariant.logits(model, prompts[:count]), alone[:count])
    assert invariant.same(invariant.logits(model, prompts[::-1], max_requests=3, block_size=4)[::-1], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_threads_keep_the_promise(invariant: Any, dtype: torch.dtype) -> None:
    """Their bits may be others than those of one thread."""
    model, prompts = invariant.model(invariant.small, dtype), invariant.prompts([5, 2, 9])
    torch.set_num_threads(2)
    alone = [invariant.logits(model, [p], count=2)[0] for p in prompts]
    assert invariant.same(invariant.logits(model, prompts, count=2), alone)
    assert invariant.same(invariant.logits(model, prompts[::-1], count=2)[::-1], alone)


def test_on_the_cpu_the_parts_of_a_prompt_make_no_difference(invariant: Any) -> None:
    """Whole, in parts of 9 and token by token; and as one text over a contiguous cache."""
    model, prompts = invariant.model(invariant.small, torch.float32), invariant.prompts([30, 11, 3])
    whole = invariant.logits(model, prompts)
    assert invariant.same(invariant.logits(model, prompts, max_requests=3, max_step_tokens=11), whole)
    assert invariant.same(invariant.logits(model, prompts, max_requests=3, max_step_tokens=3), whole)
    for prompt, expected in zip(prompts, whole, strict=True):
        made: list[torch.Tensor] = []
        model.logits_processor.register_forward_hook(lambda _, __, logits, made=made: made.append(logits.clone()))
        list(generate(model, prompt, max_tokens=3))
        assert torch.equal(torch.cat(made), expected)


def test_replayed_steps_have_the_same_bits(invariant: Any) -> None:
    """Padded to the sizes of graphs."""

    def rerun(step: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        import contextvars

        inside, made = contextvars.copy_context(), step().clone()
        return lambda: made.copy_(inside.run(step)), made

    model, prompts = invariant.model(invariant.small, torch.float32), invariant.prompts([3, 12, 5])
    alone = [invariant.logits(model, [p])[0] for p in prompts]
    assert invariant.same(invariant.logits(model, prompts, graphs=True, capture=rerun), alone)


def test_a_real_model_has_the_same_bits_alone_and_beside_others(invariant: Any, loaded_smollm2: LoadedModel) -> None:
    """SmolLM2 with all its layers, and beside parts of a prompt."""
    texts = ("Hello", "The capital of France is", "Once upon a time there was a small dog")
    model, prompts = loaded_smollm2.model, [loaded_smollm2.tokenizer.encode(text) for text in texts]
    alone = [invariant.logits(model, [p], max_len=64)[0] for p in prompts]
    assert invariant.same(invariant.logits(model, prompts, max_len=64), alone)
    assert invariant.same(invariant.logits(model, prompts, max_len=64, max_requests=3, max_step_tokens=5), alone)


def test_values_are_those_without_the_mode(invariant: Any) -> None:
    """Close to what the fast way computes; the check sees that way's bits differ, or this CPU has no such kernel."""
    model, prompts = invariant.model(invariant.smollm2, torch.float32), invariant.prompts([7, 12, 30])
    kept = invariant.logits(model, prompts)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(env.VLLM_BATCH_INVARIANT)
        fast = invariant.logits(model, prompts)
        alone = [invariant.logits(model, [p])[0] for p in prompts]
    for a, b in zip(kept, fast, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
    if invariant.same(fast, alone):
        pytest.skip("on this CPU the fast products do not depend on the number of rows")
    assert not invariant.same(fast, alone)


# -- what is refused


def _refused(model: Any, **options: Any) -> str:
    """Return the message of the refusal; the model serves a batch without the mode afterwards."""
    with pytest.raises(BatchInvarianceError) as caught:
        Batch(model, max_len=64, **options)
    found = caught.value
    assert env.VLLM_BATCH_INVARIANT in found.what and found.who and found.why and found.remedy
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(env.VLLM_BATCH_INVARIANT)
        Batch(model, max_len=64).close()
    return str(found)


class _OddActivation(nn.Module):
    """What a package might write: a row's last elements take another exp in some batches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


def test_an_op_that_is_not_invariant_is_found_and_named_with_its_layer(invariant: Any) -> None:
    """Whatever it hides in."""
    model = invariant.model(invariant.small, torch.float32)
    model.model.layers[1].mlp.act_fn = _OddActivation()
    message = _refused(model)
    assert "layer model.layers.1.mlp.act_fn" in message and "op aten.silu" in message


def test_experts_are_refused(invariant: Any) -> None:
    """By the layer's name."""
    mixture = MixtureConfig(num_experts=4, top_k=2, intermediate_size=32, layers=frozenset((1,)))
    model = invariant.model(dataclasses.replace(invariant.small, mixture=mixture), torch.float32)
    assert "layer model.layers.1.mlp" in _refused(model) and "op moe_experts" in _refused(model)


def test_a_quantised_product_of_torch_is_refused_when_the_model_is_built(
    checkpoints: Callable[[str], tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when the batch is made, for a model that was built without the mode."""
    folder = checkpoints("llama")[0]
    with pytest.raises(UnsupportedError, match=r"linear layer 'model\.layers\.0\.self_attn\.q_proj'") as caught:
        load_model(folder, dtype=torch.float32, quantization="fp8")
    assert "NativeScaledLinear: VLLM_BATCH_INVARIANT=1, and it does not declare batch_invariant" in str(caught.value)
    monkeypatch.delenv(env.VLLM_BATCH_INVARIANT, raising=False)
    model = load_model(folder, dtype=torch.float32, quantization="fp8").model
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "1")
    message = _refused(model)
    assert "layer model.layers.0.self_attn.qkv_proj" in message and "op aten." in message


def test_exact_sums_of_integers_keep_the_promise(
    invariant: Any, checkpoints: Callable[[str], tuple[Path, Any]]
) -> None:
    """8-bit integers: torch's product over all rows has no order to choose."""
    model = load_model(checkpoints("llama")[0], dtype=torch.float32, quantization="int8_w8a8").model
    assert type(model.model.layers[0].mlp.down_proj.quant_method.kernel).__name__ == "IntMatmulLinear"
    prompts = invariant.prompts([7, 1, 33, 2])
    alone = [invariant.logits(model, [p])[0] for p in prompts]
    assert invariant.same(invariant.logits(model, prompts), alone)
    assert invariant.same(invariant.logits(model, prompts, max_requests=4, max_step_tokens=9), alone)


def test_compiled_code_is_refused_when_a_batch_or_a_text_starts(invariant: Any) -> None:
    """Nothing is compiled for that."""
    with opdock.set_current_config(opdock.OpdockConfig(opdock.CompilationConfig(mode=3))):
        model = invariant.model(invariant.small, torch.float32)
        opdock.compile.compile_model(model)
    assert "the compiled model" in _refused(model) and "mode=0" in _refused(model)
    with pytest.raises(BatchInvarianceError, match="would depend on the others"):
        generate(model, [1, 2])


def test_a_provider_that_does_not_declare_it_is_refused_where_nothing_else_is_there(
    invariant: Any, taken_back: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An op without a row-by-row definition, in a layer of its own; nothing is said beside the error."""
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "1")

    def twice(x: torch.Tensor) -> torch.Tensor:
        return x + x

    made = ir.register_op(twice, name="t_invariance_twice")
    made.op.set_default(["native"])

    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return made(x)  # type: ignore[no-any-return]

    model = invariant.model(invariant.small, torch.float32)
    model.model.norm = nn.Sequential()
    model.model.norm.forward = lambda x, residual: (inner(x + residual), residual)  # type: ignore[assignment]
    inner = model.model.norm.inner = Layer()
    with caplog.at_level(logging.WARNING, "opdock"):
        message = _refused(model)
    assert "IR op t_invariance_twice, provider native" in message and "layer model.norm.inner" in message
    assert not caplog.text


def test_a_choice_that_depends_on_the_number_of_rows_is_refused(
    invariant: Any, taken_back: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each provider keeps its promise, and the two have different bits."""
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "1")
    op = ir.registry["silu_and_mul"]

    @op.register_impl("t_few", supports_args=lambda x: x.shape[0] < 100, batch_invariant=True)
    def few(x: torch.Tensor) -> torch.Tensor:
        return ir.native.silu_and_mul(x)  # type: ignore[no-any-return]

    op.set_default(["t_few", "native"])
    message = _refused(invariant.model(invariant.small, torch.float32))
    assert "IR op silu_and_mul, provider t_few" in message and "native is chosen for 129" in message


@pytest.mark.parametrize("wrong", ["number", "place"])
def test_a_provider_that_declares_it_wrongly_is_found(
    invariant: Any, taken_back: None, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Another order for many rows, or for the last ones; the same provider without that is taken."""
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "1")
    op, off = ir.registry["silu_and_mul"], True

    @op.register_impl("t_wrong", batch_invariant=True)
    def run(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.double().chunk(2, -1)
        out = (gate / (1 + torch.exp(-gate)) * up).float()
        if off and x.shape[0] > 8:
            rows = out if wrong == "number" else out[8:]
            rows.copy_(torch.nextafter(rows, torch.tensor(1e9)))
        return out.to(x.dtype)

    op.set_default(["t_wrong", "native"])
    model = invariant.model(invariant.small, torch.float32)
    message = _refused(model)
    assert "IR op silu_and_mul, provider t_wrong" in message and "layer model.layers.0.mlp.act_fn" in message
    assert "declares batch_invariant, and a row among" in message
    off = False
    Batch(model, max_len=64).close()


def test_a_device_without_a_product_of_fixed_order_is_refused_by_the_layers_name(
    invariant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU stands for such a device."""
    why_not = matmul_invariant.why_not
    monkeypatch.setattr(matmul_invariant, "why_not", lambda _, dtype: why_not("cuda", dtype))
    message = _refused(invariant.model(invariant.small, torch.float64))
    assert "layer model.layers.0.self_attn.qkv_proj" in message and "takes no float64" in message
    assert "op linear, x (3, 64) and weight (128, 64)" in message


def test_a_packages_class_is_refused_unless_it_declares_it(invariant: Any) -> None:
    """What its code launches need not be an op of torch."""
    from opdock.nn.layers import RMSNorm

    class Fast(RMSNorm):
        pass

    model = invariant.model(invariant.small, torch.float32)
    for module in model.modules():
        if type(module) is RMSNorm:
            module.__class__ = Fast
    message = _refused(model)
    assert "layer model.layers.0.input_layernorm" in message and "test_invariance" in message
    Fast.batch_invariant = True  # type: ignore[attr-defined]
    Batch(model, max_len=64).close()


def test_a_backend_that_does_not_declare_it_is_refused_by_the_layers_name(invariant: Any) -> None:
    """Torch's attention promises no order."""
    model = invariant.model(invariant.small, torch.float32)
    model.model.layers[2].self_attn.attn.attn_backend = "SDPA"
    with pytest.raises(UnsupportedError, match="batch invariance not supported") as caught:
        Batch(model, max_len=64)
    assert "model.layers.2.self_attn.attn" in str(caught.value)


def test_the_variable_is_read_when_a_batch_is_made_and_may_not_change_while_it_runs(
    invariant: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither way; the next batch follows it."""
    model = invariant.model(invariant.small, torch.float32)
    with Batch(model, max_len=64) as batch:
        assert batch._runner.invariant and model.model.layers[0].self_attn.attn.served_by == "NATIVE"
        batch.add([1, 2, 3])
        monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "0")
        with pytest.raises(OrderError, match="was changed while a batch runs"):
            batch.step()
    with Batch(model, max_len=64) as batch:
        assert not batch._runner.invariant and model.model.layers[0].self_attn.attn.served_by == "SDPA"
        op = ir.registry["rms_norm"]
        assert op.dispatch(torch.ones(2, 8), None, 1e-5) is op.impls["native"]
        monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "1")
        with pytest.raises(OrderError, match="was changed while a batch runs"):
            batch.step()


# -- the pieces


def _request(number: int, prompt: int, scheduled: int = 0) -> Request:
    made = Request(number, [0] * prompt, 4, False, SamplingParams(), frozenset(), [0])
    made.scheduled = scheduled
    return made


def test_prompts_are_cut_into_the_same_parts_whoever_is_there() -> None:
    """A part that does not fit whole waits, and those behind it; decodes go on."""
    requests = [_request(0, 3, 3), _request(1, 25), _request(2, 4)]
    assert [(p.start, p.count) for p in plan_step(requests, 30, part=10)] == [(3, 1), (0, 10), (0, 4)]
    assert [(p.start, p.count) for p in plan_step(requests, 11, part=10)] == [(3, 1), (0, 10)]
    assert [(p.start, p.count) for p in plan_step(requests, 10, part=10)] == [(3, 1)]
    requests[1].scheduled = 20
    assert [(p.start, p.count) for p in plan_step(requests, 11, part=10)] == [(3, 1), (20, 5), (0, 4)]
    assert [(p.start, p.count) for p in plan_step(requests, 30)] == [(3, 1), (20, 5), (0, 4)]


def test_a_part_always_fits_beside_the_other_requests(invariant: Any) -> None:
    """And is the same for all batches that are not small."""
    model = invariant.model(invariant.small, torch.float32)
    for most, requests, part in ((8192, 32, LARGEST_PART), (8192, 1, LARGEST_PART), (16, 8, 9), (8, 8, 1)):
        with Batch(model, max_requests=requests, max_len=64, max_step_tokens=most) as batch:
            assert batch._part == part


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("aten.add.Tensor", True),
        ("aten.view.default", True),
        ("aten.t.default", True),
        ("aten.embedding.default", True),
        ("aten.mm.default", False),
        ("aten.linear.default", False),
        ("aten.exp.default", False),
        ("aten.sum.dim_IntList", False),
        ("aten._softmax.default", False),
        ("aten.scaled_dot_product_attention.default", False),
        ("opdock.invariant_linear.default", True),
        ("opdock.moe_experts.default", False),
    ],
)
def test_which_ops_of_torch_promise_it(name: str, kept: bool) -> None:
    """One rounding for each element, or none."""
    import opdock.nn.layers.matmul_invariant
    import opdock.nn.moe.op  # noqa: F401 - defines its op

    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    assert promises(found, (), {}) is kept


def test_products_of_this_package_say_by_an_argument_whether_they_keep_it() -> None:
    """Wherever it stands among the others."""
    pytest.importorskip("triton", reason="needs Triton, with which they are defined")
    import opdock.nn.kernels.triton.linear_calls  # noqa: F401 - defines them

    names = [a.name for a in torch.ops.opdock.scaled_linear.default._schema.arguments]
    for on in (True, False):
        assert promises(torch.ops.opdock.scaled_linear.default, [n == "invariant" and on for n in names], {}) is on


def test_a_scaled_sum_does_not_promise_it() -> None:
    """Some kernels round it once, others twice."""
    assert not promises(torch.ops.aten.add.Tensor, (), {"alpha": 2})


@pytest.mark.parametrize(("value", "on"), [("1", True), ("true", True), ("0", False), ("", False), (None, False)])
def test_the_variable_is_read_as_it_stands(monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool) -> None:
    """Whatever was imported before; nonsense is an error."""
    monkeypatch.delenv(env.VLLM_BATCH_INVARIANT, raising=False)
    assert not in_force()
    if value is not None:
        monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, value)
    assert in_force() is env.batch_invariant() is on
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "maybe")
    with pytest.raises(ConfigError, match="neither on nor off"):
        in_force()
