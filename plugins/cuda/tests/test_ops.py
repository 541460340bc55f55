"""opdock_cuda.ops: wrong calls raise one clear error, before anything is launched; the rest is in test_kernels.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from opdock.errors import OpdockError
from opdock_cuda import ops
from opdock_cuda.ops import ArgumentError, _share_memory

X, W, S = torch.ones(3, 64), torch.ones(64), torch.ones(1)
CALLS: dict[str, Callable[[], Any]] = {
    "rms_norm": lambda: ops.rms_norm(X, W),
    "fused_add_rms_norm_": lambda: ops.fused_add_rms_norm_(X, X.clone(), W),
    "fused_add_rms_norm": lambda: ops.fused_add_rms_norm(X, X.clone(), W),
    "silu_and_mul": lambda: ops.silu_and_mul(X),
    "gelu_and_mul": lambda: ops.gelu_and_mul(X, "tanh"),
    "static_fp8": lambda: ops.static_fp8(X, S),
    "token_fp8": lambda: ops.token_fp8(X),
    "rms_norm_static_fp8": lambda: ops.rms_norm_static_fp8(X, W, S),
    "rms_norm_token_fp8": lambda: ops.rms_norm_token_fp8(X, W),
    "add_rms_norm_static_fp8": lambda: ops.add_rms_norm_static_fp8(X, X.clone(), W, S),
    "add_rms_norm_token_fp8": lambda: ops.add_rms_norm_token_fp8(X, X.clone(), W),
    "silu_and_mul_static_fp8": lambda: ops.silu_and_mul_static_fp8(X, S),
    "silu_and_mul_token_fp8": lambda: ops.silu_and_mul_token_fp8(X),
    "rotary_embedding_": lambda: ops.rotary_embedding_(torch.arange(3), X, X.clone(), 64, torch.ones(8, 64)),
    "reshape_and_cache_": lambda: ops.reshape_and_cache_(
        X.view(3, 1, 64), X.view(3, 1, 64), torch.ones(2, 4, 1, 64), torch.ones(2, 4, 1, 64), torch.arange(3)
    ),
    "rotary_and_cache_": lambda: ops.rotary_and_cache_(
        torch.arange(3),
        X,
        X.clone(),
        X.view(3, 1, 64),
        torch.ones(2, 4, 1, 64),
        torch.ones(2, 4, 1, 64),
        torch.arange(3),
        64,
        torch.ones(8, 64),
        S,
        S,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_cpu_tensor_is_an_error_with_a_remedy(name: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        CALLS[name]()
    assert "is on cpu, and the kernels run on CUDA" in str(caught.value)
    assert "Remedy: give " in str(caught.value)
    assert isinstance(caught.value, OpdockError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize("value", [3, None, "x", [1.0]])
def test_what_is_no_tensor_is_named(value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"x is of type {type(value).__name__}, and has to be: Tensor"):
        ops.rms_norm(value)


def test_every_op_of_the_library_has_a_wrapper_and_a_fake() -> None:
    import ast
    from pathlib import Path

    tree = ast.parse(Path(ops.__file__).with_name("fakes.py").read_text(encoding="utf-8"))
    table = next(n for n in tree.body if isinstance(n, ast.AnnAssign) and getattr(n.target, "id", "") == "FAKES")
    assert isinstance(table.value, ast.Dict)
    assert sorted(ast.literal_eval(k) for k in table.value.keys if k is not None) == sorted(CALLS)
    assert all(callable(getattr(ops, name)) for name in CALLS)
    sources = (Path(ops.__file__).parents[1] / "csrc").glob("*.cu")
    impls = [line for path in sources for line in path.read_text().splitlines() if "m.impl(" in line]
    assert sorted(line.split('"')[1] for line in impls) == sorted(CALLS)


def test_views_that_share_memory_are_told_from_views_that_interleave() -> None:
    wide = torch.ones(4, 128)
    assert not _share_memory(wide[:, :64], wide[:, 64:])
    assert _share_memory(wide[:, :64], wide[:, 63:127])
    assert _share_memory(wide[:, :64], wide[:, :64])
    assert _share_memory(wide, wide[1:3])
    assert not _share_memory(wide[:2], wide[2:])
    assert not _share_memory(wide, wide.clone())
    assert not _share_memory(wide[:0], wide)
