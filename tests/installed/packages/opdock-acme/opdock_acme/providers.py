"""Providers of IR ops."""

from __future__ import annotations

import torch

from opdock import ir


@ir.ops.silu_and_mul.register_impl("acme")
def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
