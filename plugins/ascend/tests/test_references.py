"""The references that stand in for NPU kernels: against torch's own functions, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = pytest.mark.usefixtures("torch_npu")


def _close(found: Tensor, expected: Tensor) -> None:
    assert found.device.type == "npu"
    torch.testing.assert_close(found.cpu(), expected.to(found.dtype))


def test_norms_are_torchs_norm(torch_npu: Any) -> None:
    x, residual, weight = torch.randn(5, 96), torch.randn(5, 96), torch.randn(96)
    on_npu = [t.npu() for t in (x, residual, weight)]
    _close(torch_npu.npu_rms_norm(on_npu[0], on_npu[2], 1e-5)[0], F.rms_norm(x, (96,), weight, 1e-5))
    _close(torch_npu.npu_gemma_rms_norm(on_npu[0], on_npu[2], 1e-5)[0], F.rms_norm(x, (96,), 1 + weight, 1e-5))
    y, _, total = torch_npu.npu_add_rms_norm(*on_npu, 1e-5)
    _close(y, F.rms_norm(x + residual, (96,), weight, 1e-5))
    _close(total, x + residual)


def test_gated_activations_are_torchs_activations(torch_npu: Any) -> None:
    x = torch.randn(5, 96)
    gate, up = x.chunk(2, dim=-1)
    _close(torch_npu.npu_swiglu(x.npu()), F.silu(gate) * up)
    for approximate in ("none", "tanh"):
        found = torch_npu.npu_gelu_mul(x.npu(), approximate=approximate)
        _close(found, F.gelu(gate, approximate=approximate) * up)


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_the_two_rotations_agree_and_turn_a_pair_by_its_angle(torch_npu: Any, mode: str) -> None:
    """As complex numbers: a pair is multiplied by e^(i angle)."""
    angles, x = torch.rand(4, 16) * 6, torch.randn(4, 3, 32)
    pairs = torch.stack(x.chunk(2, dim=-1), dim=-1) if mode == "half" else x.unflatten(-1, (16, 2))
    turned = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(4, 1, 16), angles[:, None])
    )
    expected = torch.cat(turned.unbind(-1), dim=-1) if mode == "half" else turned.flatten(-2)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions, rows = torch.arange(4).npu(), x.flatten(1).npu()
    query, key = torch_npu.npu_mrope(
        positions, rows, rows, cache.npu(), 32, mrope_section=[0, 0, 0], rotary_mode=mode, cache_mode="default"
    )
    _close(query.view(4, 3, 32), expected)
    assert torch.equal(query.cpu(), key.cpu())
    wide = [f.repeat(1, 2) if mode == "half" else f.repeat_interleave(2, -1) for f in (angles.cos(), angles.sin())]
    tables = [table.view(1, 4, 1, 32).npu() for table in wide]
    _close(torch_npu.npu_rotary_mul(x[None].npu(), *tables, rotary_mode=mode)[0], expected)


def test_attention_of_one_sequence_is_torchs_causal_attention(torch_npu: Any) -> None:
    query, key, value = torch.randn(5, 4, 16), torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1).npu()
    found = torch_npu.npu_fusion_attention(
        query.npu(), key.npu(), value.npu(), 4, "TND", atten_mask=mask, scale=0.3, actual_seq_qlen=[5],
        actual_seq_kvlen=[5], sparse_mode=3,
    )[0]  # fmt: skip
    batched = [t.transpose(0, 1)[None] for t in (query, key, value)]
    expected = F.scaled_dot_product_attention(*batched, is_causal=True, scale=0.3, enable_gqa=True)
    _close(found, expected[0].transpose(0, 1))


def test_int8_products_are_exact_before_they_are_scaled(torch_npu: Any) -> None:
    x, weight = torch.randint(-127, 128, (3, 64), dtype=torch.int8), torch.randint(-127, 128, (64, 8), dtype=torch.int8)
    scale, rows = torch.rand(8), torch.rand(3)
    found = torch_npu.npu_quant_matmul(
        x.npu(), weight.npu(), scale.npu(), pertoken_scale=rows.npu(), output_dtype=torch.bfloat16
    )
    _close(found, (x.double() @ weight.double()) * scale.double() * rows.double()[:, None])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("weight of another dtype", lambda n: n.npu_rms_norm(torch.ones(2, 64).npu(), torch.ones(64).half().npu())),
        ("no elements", lambda n: n.npu_swiglu(torch.ones(0, 64).npu())),
        ("an odd row", lambda n: n.npu_swiglu(torch.ones(2, 63).npu())),
        ("a long row", lambda n: n.npu_gelu_mul(torch.ones(2, 2048).npu())),
        ("three dimensions", lambda n: n.npu_rotary_mul(*[torch.ones(3, 4, 64).npu()] * 3)),
        ("float32", lambda n: n.npu_dynamic_quant(torch.ones(2, 64).npu())),
    ],
)
def test_what_the_documentation_rules_out_is_refused(torch_npu: Any, name: str, call: Any) -> None:
    with pytest.raises(ValueError, match="stand-in NPU"):
        call(torch_npu)
