"""opdock_cuda.predicates: what each kernel takes, and the reason where it does not, on fake CUDA tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock import ir
from opdock_cuda import predicates
from opdock_cuda.priorities import PROVIDED

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


def gpu(*shape: int, dtype: torch.dtype = BF16) -> Any:
    """Return a stand-in for a tensor of the first GPU, of which views can be taken; ``ask`` puts it there."""
    return torch.empty(shape, dtype=dtype, device="meta")


class Elsewhere:
    """A tensor on another device than the first GPU."""

    def __init__(self, x: torch.Tensor, device: str) -> None:
        self.x, self.device = x, device


def ask(name: str, *args: Any, **kwargs: Any) -> Any:
    """Return what a predicate says about fake CUDA tensors of the strides that the stand-ins have."""
    made: dict[int, Any] = {}

    def fake(value: Any) -> Any:
        x, device = (value.x, value.device) if isinstance(value, Elsewhere) else (value, "cuda:0")
        if not isinstance(x, torch.Tensor):
            return x
        if id(value) not in made:
            made[id(value)] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
            made[id(value)].requires_grad_(x.requires_grad)
        return made[id(value)]

    with FakeTensorMode():
        given, named = [fake(a) for a in args], {k: fake(v) for k, v in kwargs.items()}
        return getattr(predicates, name)(*given, **named)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", PROVIDED)
def test_what_the_ops_generators_make_is_taken(op: str, dtype: torch.dtype) -> None:
    for tokens, hidden in ((1, 4096), (7, 64), (0, 64), (3, 80), (2, 46)):
        args = ir.registry[op].generate_inputs(
            num_tokens=tokens, hidden_size=hidden, dtype=dtype, device=torch.device("cpu")
        )
        assert ask(op, *args) is True


@pytest.mark.parametrize("op", PROVIDED)
def test_a_cpu_tensor_is_refused_by_every_kernel(op: str) -> None:
    args = ir.registry[op].generate_inputs(device=torch.device("cpu"))
    said = ask(op, *(Elsewhere(a, "cpu") if isinstance(a, torch.Tensor) else a for a in args))
    assert "cpu, and the kernels run on CUDA" in said


@pytest.mark.parametrize("op", PROVIDED)
def test_float64_is_refused_by_every_kernel(op: str) -> None:
    args = ir.registry[op].generate_inputs(dtype=torch.float64, device=torch.device("cpu"))
    assert "no kernel for" in ask(op, *args)


@pytest.mark.parametrize("op", [op for op in PROVIDED if op.endswith("fp8_quant")])
def test_other_8_bit_floats_are_refused(op: str) -> None:
    args = ir.registry[op].generate_inputs(device=torch.device("cpu"), fp8_dtype=torch.float8_e5m2)
    assert ask(op, *args) == "no kernel that quantises to torch.float8_e5m2"


def test_a_weight_has_to_be_one_dense_row_of_the_same_dtype_on_the_same_device() -> None:
    x = gpu(4, 128)
    assert ask("rms_norm", x, None, 1e-5) is True
    assert "weight of torch.float32 beside x of torch.bfloat16" in ask("rms_norm", x, gpu(128, dtype=F32), 1e-5)
    assert ask("rms_norm", x, Elsewhere(gpu(128), "cuda:1"), 1e-5) == "weight is on cuda:1 and x on cuda:0"
    assert "weight is on cpu" in ask("rms_norm", x, Elsewhere(gpu(128), "cpu"), 1e-5)
    for weight in (gpu(64), gpu(256)[::2], gpu(1, 128), gpu(1)):
        assert "is not one dense row of x's last dimension, 128" in ask("rms_norm", x, weight, 1e-5)
    assert ask("rms_norm", x, gpu(128), 1e-5, 64) == "no kernel for a mean square over a part of the row"


@pytest.mark.parametrize("name", ["rms_norm", "silu_and_mul", "dynamic_per_token_scaled_fp8_quant"])
def test_rows_may_lie_in_two_leading_dimensions_of_any_strides(name: str) -> None:
    rest = {"rms_norm": (None, 1e-5)}.get(name, ())
    wide = gpu(6, 4, 3 * 128)
    taken = [wide, wide[..., 128:256], wide[::2, :, :128], wide.transpose(0, 1), gpu(128), gpu(1, 128).expand(5, 128)]
    for x in taken:
        assert ask(name, x, *rest) is True
    assert "x is not dense in its last dimension" in ask(name, gpu(128, 6).t(), *rest)
    four = gpu(3, 4, 5, 128)
    assert ask(name, four, *rest) is True
    assert "not those of two leading dimensions" in ask(name, four[:, :3, :4], *rest)
    assert "x has no dimension" in ask(name, gpu(), *rest)


def test_what_is_written_in_place_may_not_share_memory() -> None:
    x, residual, weight = gpu(4, 128), gpu(4, 128), gpu(128)
    assert ask("fused_add_rms_norm", x, residual, weight, 1e-5) is True
    assert ask("fused_add_rms_norm", gpu(4, 256)[:, :128], gpu(4, 384)[:, 128:256], weight, 1e-5) is True
    assert "x is written, and its elements share memory" in ask(
        "fused_add_rms_norm", gpu(1, 128).expand(4, 128), residual, weight, 1e-5
    )
    assert "x_residual is written" in ask("fused_add_rms_norm", x, gpu(1, 128).expand(4, 128), weight, 1e-5)
    assert "one tensor" in ask("fused_add_rms_norm", x, x, weight, 1e-5)


def test_a_residual_has_xs_shape_dtype_and_device() -> None:
    x = gpu(4, 128)
    assert "beside x" in ask("fused_add_rms_norm", x, gpu(4, 128, dtype=F32), None, 1e-5)
    assert "shape" in ask("fused_add_rms_norm", x, gpu(2, 2, 128), None, 1e-5)
    assert "cuda:1" in ask("fused_add_rms_norm", x, Elsewhere(gpu(4, 128), "cuda:1"), None, 1e-5)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul", "silu_and_mul_dynamic_per_token_fp8_quant"])
def test_a_gated_op_needs_two_halves(name: str) -> None:
    assert ask(name, gpu(4, 7)) == "the last dimension is odd"


def test_an_unknown_gelu_is_refused() -> None:
    assert ask("gelu_and_mul", gpu(4, 8), "erf") == "no kernel for approximate='erf'"


def test_a_scale_is_one_float32_number_on_the_device() -> None:
    x = gpu(4, 128)
    assert ask("static_scaled_fp8_quant", x, gpu(1, dtype=F32)) is True
    assert ask("static_scaled_fp8_quant", x, gpu(dtype=F32)) is True
    assert "scales are float32" in ask("static_scaled_fp8_quant", x, gpu(1))
    assert "is not one number" in ask("static_scaled_fp8_quant", x, gpu(4, dtype=F32))
    assert "the scale is on cpu" in ask("static_scaled_fp8_quant", x, Elsewhere(gpu(1, dtype=F32), "cpu"))
    assert "is not one number" in ask("dynamic_per_token_scaled_fp8_quant", x, gpu(2, dtype=F32))


def test_a_scale_for_each_row_needs_rows_with_elements() -> None:
    assert "rows without elements" in ask("dynamic_per_token_scaled_fp8_quant", gpu(4, 0))
    assert ask("static_scaled_fp8_quant", gpu(4, 0), gpu(1, dtype=F32)) is True


def test_inputs_that_require_gradients_are_refused_while_gradients_are_recorded() -> None:
    x, weight = gpu(4, 128).requires_grad_(), gpu(128).requires_grad_()
    assert "gradients" in ask("rms_norm", x, None, 1e-5)
    assert "gradients" in ask("rms_norm", gpu(4, 128), weight, 1e-5)
    assert "gradients" in ask("silu_and_mul", gpu(4, 256).requires_grad_()[:, :128])
    with torch.no_grad():
        assert ask("rms_norm", x, weight, 1e-5) is True


def test_more_rows_than_a_launch_are_refused() -> None:
    assert "more rows or columns than a launch" in ask("silu_and_mul", gpu(1 << 31, 2))
    assert ask("silu_and_mul", gpu(1 << 25, 128)) is True


def _rotary(**changed: Any) -> Any:
    args = {
        "positions": gpu(4, dtype=torch.int64),
        "query": gpu(4, 6 * 64)[:, : 4 * 64],
        "key": gpu(4, 2, 64),
        "head_size": 64,
        "cos_sin_cache": gpu(128, 64, dtype=F32),
        "is_neox": True,
    }
    return ask("rotary_embedding", **{**args, **changed})


def test_rotary_takes_views_of_qkv_and_a_partial_rotation() -> None:
    assert _rotary() is True
    assert _rotary(positions=gpu(4, dtype=torch.int32), cos_sin_cache=gpu(128, 32)) is True
    assert _rotary(query=gpu(8, 4, 64).transpose(0, 1)) is True


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("positions", lambda: gpu(4, dtype=torch.int16), "int64 and int32"),
        ("positions", lambda: gpu(8, dtype=torch.int64)[::2], "positions are not dense"),
        ("positions", lambda: gpu(3, dtype=torch.int64), "is not 3 rows"),
        ("positions", lambda: Elsewhere(gpu(4, dtype=torch.int64), "cpu"), "several devices"),
        ("key", lambda: gpu(4, 2, 64, dtype=F32), "one dtype"),
        ("key", lambda: gpu(4, 100), "rows of whole heads"),
        ("key", lambda: gpu(4, 2, 32), "rows of whole heads"),
        ("query", lambda: gpu(1, 256).expand(4, 256), "share memory"),
        ("query", lambda: gpu(256, 4).t(), "query is not dense"),
        ("cos_sin_cache", lambda: gpu(128, 64, dtype=torch.float16), "one dtype"),
        ("cos_sin_cache", lambda: gpu(128, 63), "does not fit head_size"),
        ("cos_sin_cache", lambda: gpu(128, 66), "does not fit head_size"),
        ("cos_sin_cache", lambda: gpu(0, 64), "does not fit head_size"),
        ("cos_sin_cache", lambda: gpu(64), "does not fit head_size"),
        ("cos_sin_cache", lambda: gpu(64, 64).t(), "not dense in its last dimension"),
    ],
)
def test_rotary_refuses_with_a_reason(name: str, value: Any, reason: str) -> None:
    assert reason in _rotary(**{name: value()})


def _cache(**changed: Any) -> Any:
    args = {
        "key": gpu(5, 3 * 2 * 64)[:, :128].view(5, 2, 64),
        "value": gpu(5, 2, 64),
        "key_cache": gpu(8, 16, 2, 64),
        "value_cache": gpu(8, 2, 16, 2, 64)[:, 1],
        "slot_mapping": gpu(5, dtype=torch.int64),
    }
    return ask("reshape_and_cache", **{**args, **changed})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("value", lambda: gpu(5, 2, 32), "do not fit"),
        ("value", lambda: gpu(5, 2, 64, dtype=F32), "does not convert"),
        ("key", lambda: gpu(5, 2, 64, dtype=torch.float64), "no kernel for key"),
        ("key", lambda: gpu(5, 64, 2).transpose(1, 2), "side by side"),
        ("key_cache", lambda: gpu(8, 2, 16, 64).transpose(1, 2), "rows of a block"),
        ("value_cache", lambda: gpu(7, 16, 2, 64), "do not fit"),
        ("value_cache", lambda: gpu(1, 16, 2, 64).expand(8, 16, 2, 64), "share memory"),
        ("slot_mapping", lambda: gpu(5, dtype=F32), "int64 or int32"),
        ("slot_mapping", lambda: gpu(6, dtype=torch.int64), "6 slots for 5 tokens"),
    ],
)
def test_the_cache_refuses_with_a_reason(name: str, value: Any, reason: str) -> None:
    assert _cache() is True
    assert reason in _cache(**{name: value()})


def test_predicates_have_the_parameters_of_their_ops() -> None:
    import inspect

    for op in PROVIDED:
        mine = inspect.signature(getattr(predicates, op)).parameters.values()
        theirs = ir.registry[op].signature.parameters.values()
        assert [(p.name, p.default) for p in mine] == [(p.name, p.default) for p in theirs]
