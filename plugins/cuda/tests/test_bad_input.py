"""What the kernels do not take: the predicate's reason, right values from the next provider, a GPU that still works."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from opdock import ir
from opdock.errors import OpdockError
from opdock.testing import oracle
from opdock_cuda import ops, predicates
from opdock_cuda.ops import ArgumentError
from opdock_cuda.priorities import PROVIDED

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "registered")]
DEVICE = "cuda"
WRAPPERS = {
    "rms_norm": ops.rms_norm,
    "fused_add_rms_norm": ops.fused_add_rms_norm_,
    "rms_norm_static_fp8_quant": ops.rms_norm_static_fp8,
    "rms_norm_dynamic_per_token_fp8_quant": ops.rms_norm_token_fp8,
    "fused_add_rms_norm_static_fp8_quant": ops.add_rms_norm_static_fp8,
    "fused_add_rms_norm_dynamic_per_token_fp8_quant": ops.add_rms_norm_token_fp8,
    "silu_and_mul": ops.silu_and_mul,
    "gelu_and_mul": ops.gelu_and_mul,
    "silu_and_mul_static_fp8_quant": ops.silu_and_mul_static_fp8,
    "silu_and_mul_dynamic_per_token_fp8_quant": ops.silu_and_mul_token_fp8,
    "static_scaled_fp8_quant": ops.static_fp8,
    "dynamic_per_token_scaled_fp8_quant": ops.token_fp8,
    "rotary_embedding": ops.rotary_embedding_,
}
Arguments = list[Any]


@pytest.fixture(autouse=True)
def the_gpu_still_works(kernels: None) -> Iterator[None]:
    """A fault of the device would show in any later call."""
    yield
    torch.cuda.synchronize()
    x = torch.full((3, 64), 300.0, dtype=torch.float16, device=DEVICE)
    assert torch.equal(ops.rms_norm(x), torch.ones_like(x))


def good(op: str, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    torch.manual_seed(0)
    made = ir.registry[op].generate_inputs(num_tokens=8, hidden_size=64, dtype=dtype, device=torch.device(DEVICE))
    return list(ir.registry[op].apply_arg_defaults(made))


def activations(op: str, change: Callable[[Tensor], Tensor], args: Arguments) -> Arguments:
    names = ir.registry[op].activations
    parameters = list(ir.registry[op].native.__code__.co_varnames)
    return [change(a) if parameters[n] in names else a for n, a in enumerate(args)]


def _tensors(args: Arguments) -> int:
    return sum(isinstance(a, Tensor) for a in args)


def on_the_cpu(op: str) -> Arguments:
    return [a.cpu() if isinstance(a, Tensor) else a for a in good(op)]


def on_two_devices(op: str) -> Arguments:
    args = good(op)
    last = max(n for n, a in enumerate(args) if isinstance(a, Tensor))
    args[last] = args[last].cpu()
    return args


def of_float64(op: str) -> Arguments:
    return activations(op, lambda x: x.double(), good(op))


def not_dense(op: str) -> Arguments:
    return activations(op, lambda x: x.t().contiguous().t(), good(op))


def of_three_strides(op: str) -> Arguments:
    def change(x: Tensor) -> Tensor:
        room = torch.full((2, 3, 3, x.shape[-1]), float("nan"), dtype=x.dtype, device=DEVICE)
        room[:, :2, :2] = x.view(2, 2, 2, -1)
        return room[:, :2, :2]

    return activations(op, change, good(op))


def of_no_dimension(op: str) -> Arguments:
    return activations(op, lambda x: x.flatten()[0], good(op))


BAD = (on_the_cpu, on_two_devices, of_float64, not_dense, of_three_strides, of_no_dimension)
SERVED = (on_the_cpu, of_float64, not_dense, of_three_strides)
"""Those that the definition has a result for."""


@pytest.mark.parametrize("bad", BAD, ids=lambda b: b.__name__)
@pytest.mark.parametrize("op", PROVIDED)
def test_the_kernel_refuses_with_a_reason_and_the_next_provider_is_right(op: str, bad: Callable[[str], Any]) -> None:
    args = bad(op)
    if bad is on_two_devices and _tensors(args) < 2:
        return  # one tensor is on one device
    said = getattr(predicates, op)(*args)
    assert isinstance(said, str) and said, said
    entry = ir.registry[op]
    with entry.set_priority(("cuda", "triton", "native")):
        if bad not in SERVED or (op == "rotary_embedding" and bad is of_three_strides):
            try:
                got = entry(*args)
            except (RuntimeError, OpdockError, IndexError, ValueError):
                return
        else:
            assert entry.dispatch(*args).provider != "cuda"
            got = entry(*args)
    host = [a.cpu().contiguous() if isinstance(a, Tensor) else a for a in args]
    native = oracle.expected(entry, host)
    assert native is not None
    oracle.compare(entry, "native", oracle.several(got), native, host, bad.__name__)


@pytest.mark.parametrize("bad", BAD, ids=lambda b: b.__name__)
@pytest.mark.parametrize("op", PROVIDED)
def test_the_checked_function_raises_one_clear_error(op: str, bad: Callable[[str], Any]) -> None:
    args = [a for a in bad(op) if not isinstance(a, torch.dtype)]
    if bad is on_two_devices and _tensors(args) < 2:
        return
    with pytest.raises(ArgumentError) as caught:
        WRAPPERS[op](*args[: len(inspect.signature(WRAPPERS[op]).parameters)])
    text = str(caught.value)
    assert "does not take these arguments" in text and "Remedy:" in text and len(text.splitlines()) >= 3


def cache_call() -> dict[str, Tensor]:
    key = torch.randn(6, 2, 64, device=DEVICE).bfloat16()
    cache = torch.zeros(2, 4, 2, 64, dtype=key.dtype, device=DEVICE)
    slots = torch.tensor([0, 7, 3, -1, 2, 1], device=DEVICE)
    return {"key": key, "value": key.clone(), "key_cache": cache, "value_cache": cache.clone(), "slot_mapping": slots}


CACHE_BAD: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "key on the CPU": lambda c: {"key": c["key"].cpu()},
    "cache on the CPU": lambda c: {"key_cache": c["key_cache"].cpu()},
    "slots on the CPU": lambda c: {"slot_mapping": c["slot_mapping"].cpu()},
    "float64": lambda c: {n: t.double() for n, t in c.items() if n != "slot_mapping"},
    "value of another dtype": lambda c: {"value": c["value"].float()},
    "slots of int16": lambda c: {"slot_mapping": c["slot_mapping"].short()},
    "slots that are not dense": lambda c: {"slot_mapping": c["slot_mapping"].repeat_interleave(2)[::2]},
    "more slots than keys": lambda c: {"slot_mapping": c["slot_mapping"].repeat(2)},
    "heads that lie apart": lambda c: {"key": torch.zeros(6, 2, 80, dtype=c["key"].dtype, device=DEVICE)[..., :64]},
    "heads outside": lambda c: {"value": c["value"].transpose(0, 1).contiguous().transpose(0, 1)},
    "places that lie apart": lambda c: {"key_cache": c["key_cache"].transpose(1, 2).contiguous().transpose(1, 2)},
    "two dimensions": lambda c: {"key": c["key"].flatten(1)},
    "another head size": lambda c: {"value_cache": c["value_cache"][..., :32].contiguous()},
    "blocks that share memory": lambda c: {"key_cache": c["key_cache"][:1].expand(2, 4, 2, 64)},
}


@pytest.mark.parametrize("bad", CACHE_BAD)
def test_a_cache_is_not_written_with_wrong_arguments(bad: str) -> None:
    call = cache_call()
    call.update(CACHE_BAD[bad](call))
    before = {n: t.clone() for n, t in call.items()}
    said = predicates.reshape_and_cache(**call)
    assert isinstance(said, str) and said
    with pytest.raises(ArgumentError) as caught:
        ops.reshape_and_cache_(**call)
    assert said in str(caught.value) and "Remedy:" in str(caught.value)
    assert all(torch.equal(call[n], t) for n, t in before.items())


def test_the_same_cache_is_written_with_right_arguments() -> None:
    call = cache_call()
    ops.reshape_and_cache_(**call)
    assert torch.equal(call["key_cache"].view(8, 2, 64)[[0, 7, 3, 2, 1]], call["key"][[0, 1, 2, 4, 5]])
