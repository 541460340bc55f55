"""VLLM_BATCH_INVARIANT=1 on a GPU: products of fixed order, and logits alone, in batches and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock import context, env
from opdock.nn.batch.capture import why_no_graphs
from opdock.nn.layers.matmul_invariant import invariant_linear
from opdock.nn.loading import load_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none"),
]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
LENGTHS = (7, 1, 500, 2, 1030, 64, 1500, 40)
OPTIONS = {"max_len": 2100, "count": 4}


@pytest.fixture(autouse=True)
def _config(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(env.VLLM_BATCH_INVARIANT, "1")
    with opdock.set_current_config():
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (4096, 4096), (100, 72), (49152, 576)])
def test_a_row_of_a_product_has_the_same_bits_among_any_number(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    """1 to 300 rows, at any place, wherever their memory begins; values against float64."""
    torch.manual_seed(0)
    x = torch.randn(300, inputs, device="cuda").to(dtype)
    weight, bias = (torch.randn(s, device="cuda").to(dtype) for s in ((outputs, inputs), (outputs,)))
    whole = invariant_linear(x, weight, bias)
    exact = x.double() @ weight.double().t() + bias.double()
    limit = torch.finfo(dtype).eps * exact.abs() + 2e-6 * inputs
    assert bool(((whole.double() - exact).abs() <= limit).all())
    for rows in (1, 2, 3, 7, 8, 16, 33, 64, 65, 128, 255):
        for start, shift in ((0, 0), (17, 1), (45, 8)):
            memory = torch.empty(rows * inputs + shift, dtype=dtype, device="cuda")[shift:].view(rows, inputs)
            memory.copy_(x[start : start + rows])
            assert torch.equal(invariant_linear(memory, weight, bias), whole[start : start + rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", ["small", "smollm2", "normed"])
def test_logits_are_the_same_bits_alone_in_any_batch_and_replayed(
    invariant: Any, config: str, dtype: torch.dtype
) -> None:
    """Lengths on both sides of a split of attention; steps op by op, and steps that are graphs."""
    model, prompts = invariant.model(getattr(invariant, config), dtype, "cuda"), invariant.prompts(LENGTHS)
    alone = [invariant.logits(model, [p], **OPTIONS)[0] for p in prompts]
    assert all(bool(logits.isfinite().all()) for logits in alone)
    for count in (2, 3, 8):
        assert invariant.same(invariant.logits(model, prompts[:count], **OPTIONS), alone[:count])
    assert invariant.same(invariant.logits(model, prompts[::-1], **OPTIONS)[::-1], alone)
    assert invariant.same(invariant.logits(model, prompts, max_requests=3, **OPTIONS), alone)
    if why_no_graphs(torch.device("cuda")):
        pytest.skip(why_no_graphs(torch.device("cuda")))
    assert context.platform().support_static_graph_mode()
    assert invariant.same(invariant.logits(model, prompts, graphs=True, **OPTIONS), alone)
    assert invariant.same(invariant.logits(model, prompts[:3], graphs=True, **OPTIONS), alone[:3])


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_prompts_in_equal_parts_have_the_same_bits(invariant: Any, dtype: torch.dtype) -> None:
    """The promise on GPUs: for the same parts."""
    model, prompts = invariant.model(invariant.smollm2, dtype, "cuda"), invariant.prompts(LENGTHS)
    options = {"max_requests": 8, "max_step_tokens": 135, **OPTIONS}  # parts of 128
    alone = [invariant.logits(model, [p], **options)[0] for p in prompts]
    assert invariant.same(invariant.logits(model, prompts, **options), alone)
    assert invariant.same(invariant.logits(model, prompts, graphs=True, **options), alone)


def test_quantised_layers_of_fixed_tiles_keep_the_promise(
    invariant: Any, checkpoints: Callable[[str], tuple[Path, Any]]
) -> None:
    """8-bit products by the Triton kernel, whatever torch's would be faster for."""
    model = load_model(checkpoints("llama")[0], dtype=torch.bfloat16, quantization="fp8").model
    prompts = invariant.prompts((7, 1, 90, 300))
    alone = [invariant.logits(model, [p], max_len=400)[0] for p in prompts]
    assert invariant.same(invariant.logits(model, prompts, max_len=400), alone)
    assert invariant.same(invariant.logits(model, prompts, max_len=400, graphs=True), alone)
