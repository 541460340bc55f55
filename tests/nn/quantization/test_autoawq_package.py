"""A checkpoint whose words AutoAWQ packed, against transformers with the weights that it stands for."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the package says goodbye when it is imported
    gemm = pytest.importorskip("awq.modules.linear.gemm", reason="needs AutoAWQ, which is not installed")
    quantizer = pytest.importorskip("awq.quantize.quantizer")

pytestmark = pytest.mark.usefixtures("config")


@pytest.mark.parametrize("group", [32, 64])
def test_logits(packed: Any, loaded: Any, logits: Any, group: int) -> None:
    """The package keeps scales in float16: with such, codes and zero points give exactly its weights."""
    tool = object.__new__(quantizer.AwqQuantizer)
    tool.group_size, tool.zero_point, tool.w_bit = group, True, 4

    def quantise(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        floats, scales, zeros = tool.pseudo_quantize_tensor(weight.clone())
        linear.weight.data = floats
        made = gemm.WQLinear_GEMM.from_linear(linear, 4, group, False, scales.t().contiguous(), zeros.t().contiguous())
        wide = scales.repeat_interleave(group, 1)
        return dict(made.state_dict()), floats / wide * scales.half().float().repeat_interleave(group, 1)

    described = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    folder, reference = packed(quantise, described)
    torch.testing.assert_close(logits(loaded(folder)), logits(reference), atol=2e-5, rtol=2e-5)
