"""Run by test_interpreted.py under ``TRITON_INTERPRET=1``: this package's Triton path, on CPU tensors.

The platform is this package's, but for the device that its tensors are on: its hooks have registered the providers, the
replaced layer and the attention backend, and its priorities are in force.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import opdock
from opdock import context, ir
from opdock.ir.counter import counting
from opdock.nn.attention import get_attn_backend
from opdock.nn.kernels.triton import attention_launch, interpreting
from opdock.nn.kernels.triton.attention_tuning import SMALL_MEMORY
from opdock.nn.layers import GemmaRMSNorm
from opdock.platforms import current
from opdock.testing import oracle
from opdock.testing.attention_cases import AttentionCase, judge
from opdock_rocm.layers import RocmGemmaRMSNorm
from opdock_rocm.platform import RocmPlatform
from opdock_rocm.priorities import BY_AITER, PROVIDED

interpreting.round_like_hardware()
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Interpreted(RocmPlatform):
    """The platform, over CPU tensors."""

    device_type = "cpu"
    dispatch_key = "CPU"


@pytest.fixture(scope="module", autouse=True)
def rocm() -> Iterator[None]:
    """The hooks have run as the host runs them, and a configuration is set."""
    platform = Interpreted()
    with current.override(platform), pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_launch, "memory_of", lambda index: SMALL_MEMORY)  # cut as on an AMD GPU
        platform.import_kernels()
        context.mark_kernels_loaded()
        platform.import_ir_kernels()
        platform.register_oot()
        with opdock.set_current_config():
            yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("op", PROVIDED)
def test_tritons_providers_serve_and_the_others_say_why_not(op: str) -> None:
    args = ir.registry[op].generate_inputs(num_tokens=4, hidden_size=64, dtype=torch.bfloat16, device="cpu")
    made = oracle.several(ir.registry[op].native(*args))
    kept = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    got = oracle.several(getattr(ir.ops, op)(*args))
    oracle.compare(ir.registry[op], "triton", got, made, kept, op)
    impls = ir.registry[op].impls
    assert impls["triton"].reason == ""
    assert "built without HIP kernels" in impls["hip"].reason
    assert op not in BY_AITER or impls["aiter"].reason


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 64), (2, 3, 80), (1, 1), (5, 769)])
def test_gemmas_norm_is_the_formula(shape: tuple[int, ...], dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    layer = GemmaRMSNorm(shape[-1], 1e-5, dtype=weight_dtype)
    assert type(layer) is RocmGemmaRMSNorm
    layer.weight.data = (torch.randn(shape[-1]) * 0.3).to(weight_dtype)
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    for given in (None, residual):
        wide = x.double() if given is None else x.double() + residual.double()
        want = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * (1 + layer.weight.double())
        with torch.inference_mode():
            made = layer(x.clone()) if given is None else layer(x.clone(), given.clone())
        y = made if given is None else made[0]
        step = {torch.float32: 2e-6, torch.float16: 1.1e-3, torch.bfloat16: 8.5e-3}[dtype]
        torch.testing.assert_close(y.double(), want, atol=step, rtol=step)
        if given is not None:
            torch.testing.assert_close(made[1], (x + residual), atol=0, rtol=0)
        assert y.dtype is dtype


def test_what_the_kernel_does_not_take_is_the_in_tree_layers() -> None:
    layer = GemmaRMSNorm(64, dtype=torch.float32)
    x = torch.randn(64, 3).t()  # not dense
    want = GemmaRMSNorm.forward_native(layer, x)
    torch.testing.assert_close(layer(x), want)
    empty = layer(torch.empty(0, 64))
    assert empty.shape == (0, 64)


@pytest.mark.parametrize(
    "case",
    [
        AttentionCase((1, 1, 1, 1), (1, 15, 17, 70), head_size=16),
        AttentionCase((1, 19, 1, 7), (33, 19, 1, 40), head_size=16, padding=3),
        AttentionCase((1, 5), (40, 9), head_size=128, window=19),
        AttentionCase((1, 1), (90, 200), head_size=256),
    ],
    ids=["decode", "mixed", "window", "wide"],
)
def test_attention_cut_as_for_an_amd_gpu_is_the_formula(case: AttentionCase) -> None:
    assert judge(case, "ROCM_ATTN", dtype=torch.float32, device="cpu") == ""


def _model() -> Any:
    from opdock.nn.models.config import ModelConfig
    from opdock.nn.models.decoder import CausalDecoder

    config = ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=320,
        hidden_size=128,
        intermediate_size=256,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        rms_norm_eps=1e-5,
        max_position=128,
    )
    torch.manual_seed(0)
    model = CausalDecoder(config)
    for name, parameter in model.named_parameters():
        data = torch.randn(parameter.shape) * 0.08
        parameter.data = 1 + data if "norm" in name else data
    return model


def test_a_decoders_logits_are_natives() -> None:
    tokens = torch.randint(0, 320, (12,))
    outs, served = [], []
    for model in (_model(), _model().double()):  # float64 is native: no kernel takes it
        cache, rows = model.new_cache(16), []
        with torch.inference_mode(), counting() as count:
            for part, at in ((tokens[:9], 0), (tokens[9:10], 9), (tokens[10:], 10)):
                hidden = model(part, torch.arange(at, at + len(part)), cache)
                rows.append(model.compute_logits(hidden).double())
        outs.append(torch.cat(rows))
        served.append({pair for pair in count if pair[0] in PROVIDED})
    assert {provider for _, provider in served[0]} == {"triton"}
    assert {op for op, _ in served[0]} == {"rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding"}
    assert {provider for _, provider in served[1]} == {"native"}
    torch.testing.assert_close(outs[0], outs[1], atol=2e-4, rtol=1e-4)


def test_a_decoders_greedy_tokens_are_natives() -> None:
    from opdock.nn.generation import generate

    prompt = torch.randint(0, 320, (7,)).tolist()
    mine, native = (list(generate(model, prompt, max_tokens=16)) for model in (_model(), _model().double()))
    assert mine == native
    assert len(mine) == 16


def test_requests_in_one_batch_over_the_paged_cache_get_the_tokens_that_they_get_alone() -> None:
    from opdock.nn.batch import Batch
    from opdock.nn.generation import generate

    model = _model()
    assert get_attn_backend(32, torch.float32, block_size=16).get_name() == "ROCM_ATTN"
    prompts = [torch.randint(0, 320, (n,)).tolist() for n in (7, 20, 3)]
    alone = [list(generate(model, prompt, max_tokens=6)) for prompt in prompts]
    with Batch(model, max_requests=4, max_step_tokens=16) as batch:
        assert batch.generate(prompts, max_tokens=6) == alone
