"""opdock_cuda.ops: wrong calls raise one clear error, before anything is launched; the rest is in test_kernels.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock.errors import OpdockError, UnsupportedError
from opdock_cuda import library, ops
from opdock_cuda.ops import ArgumentError, _share_memory

X, W, S = torch.ones(3, 64), torch.ones(64), torch.ones(1)
OPTIONAL = ("weight", "scale_ub")
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


def good(device: str = "cpu") -> dict[str, list[Any]]:
    """Arguments by position that each kernel takes, but for their device."""

    def new(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=device)

    x, w, s, slots = new(6, 128), new(128), new(1, dtype=torch.float32), new(6, dtype=torch.int64)
    y, heads, table = new(6, 128), [new(6, 2, 64) for _ in range(3)], new(16, 64)
    caches = [new(2, 4, 2, 64) for _ in range(2)]
    return {
        "rms_norm": [x, w, 1e-6],
        "fused_add_rms_norm_": [x, y, w, 1e-6],
        "fused_add_rms_norm": [x, y, w, 1e-6],
        "silu_and_mul": [x],
        "gelu_and_mul": [x, "tanh"],
        "static_fp8": [x, s],
        "token_fp8": [x, s],
        "rms_norm_static_fp8": [x, w, s, 1e-6],
        "rms_norm_token_fp8": [x, w, 1e-6, s],
        "add_rms_norm_static_fp8": [x, y, w, s, 1e-6],
        "add_rms_norm_token_fp8": [x, y, w, 1e-6, s],
        "silu_and_mul_static_fp8": [x, s],
        "silu_and_mul_token_fp8": [x, s],
        "rotary_embedding_": [slots, *heads[:2], 64, table, True],
        "reshape_and_cache_": [*heads[:2], *caches, slots],
        "rotary_and_cache_": [slots, *heads, *caches, slots, 64, table, s, s, True],
    }


@pytest.mark.parametrize("name", CALLS)
def test_every_argument_of_a_wrong_type_or_layout_is_named_and_nothing_else_is_raised(name: str) -> None:
    names = list(inspect.signature(getattr(ops, name)).parameters)
    sparse = torch.zeros(2, 2).to_sparse()
    for n, value in enumerate(good()[name]):
        for wrong in (object(), [1.0], 3j, None, "x", sparse, True):
            allowed = (value is None, isinstance(value, str) and wrong == "x", isinstance(wrong, type(value)))
            if any(allowed[:2]) or (allowed[2] and wrong is not sparse) or (wrong is None and names[n] in OPTIONAL):
                continue
            args = list(good()[name])
            args[n] = wrong
            with pytest.raises(ArgumentError, match=f"{names[n]} is of (type|layout) "):
                getattr(ops, name)(*args)


@pytest.mark.parametrize("epsilon", [-1e-6, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [name for name, args in good().items() if any(isinstance(a, float) for a in args)])
def test_an_epsilon_that_gives_no_norm_is_refused(name: str, epsilon: float) -> None:
    args = [epsilon if isinstance(a, float) else a for a in good()[name]]
    with pytest.raises(ArgumentError, match="epsilon is .*, and has to be a number from 0"):
        getattr(ops, name)(*args)


def _elsewhere(t: torch.Tensor) -> torch.Tensor:
    other = "cpu" if torch.cuda.device_count() == 1 else "cuda:1"  # where there are GPUs, a fake one has to be there
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=other)


def _complex(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(t.shape, dtype=torch.complex64, device="cuda:0")


def _apart(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.shape, [2 * s for s in t.stride()], dtype=t.dtype, device="cuda:0")


def _no_dimension(t: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=t.dtype, device="cuda:0")


@pytest.mark.parametrize("bad", [_elsewhere, _complex, _apart, _no_dimension])
@pytest.mark.parametrize("name", CALLS)
def test_every_tensor_on_another_device_of_another_dtype_stride_or_rank_is_refused(
    name: str, bad: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """With fake tensors, which say that they are on a GPU; the same with right ones comes past the check."""
    with FakeTensorMode():
        args = good("cuda:0")[name]
        if not library.load():
            with pytest.raises(UnsupportedError, match="is not loaded"):
                getattr(ops, name)(*args)
        for n, value in enumerate(args):
            alone = sum(isinstance(a, torch.Tensor) for a in args) == 1  # on whichever GPU it is
            one = isinstance(value, torch.Tensor) and value.numel() == 1  # of any strides and rank
            if not isinstance(value, torch.Tensor) or (alone and bad is _elsewhere):
                continue
            if one and bad in (_apart, _no_dimension):
                continue
            with pytest.raises(ArgumentError, match="does not take these arguments"):
                getattr(ops, name)(*args[:n], bad(value), *args[n + 1 :])


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
