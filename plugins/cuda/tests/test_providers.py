"""opdock_cuda.providers and priorities: what is registered, and in which order it is tried."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opdock import OpdockConfig, ir
from opdock_cuda import library
from opdock_cuda.platform import CudaPlatform
from opdock_cuda.priorities import FUSED, LEFT_TO_INDUCTOR, PROVIDED, default_priority

pytestmark = pytest.mark.usefixtures("registered")


def test_every_op_in_the_table_has_both_providers_and_no_other_has() -> None:
    for provider, more in (("cuda", FUSED), ("triton", ())):
        assert sorted((*PROVIDED, *more)) == sorted(name for name, op in ir.registry.items() if provider in op.impls)


def test_those_that_write_their_activations_say_so() -> None:
    assert {op for op in PROVIDED if ir.registry[op].impls["cuda"].inplace} == {
        "fused_add_rms_norm",
        "rotary_embedding",
    }
    assert all(ir.registry[op].impls["cuda"].inplace for op in FUSED)


def test_every_provider_promises_batch_invariance() -> None:
    """The order of a sum goes by the length of a row alone."""
    assert all(ir.registry[op].impls["cuda"].batch_invariant for op in (*PROVIDED, *FUSED))


@pytest.mark.skipif(library.load(), reason="the kernels are here")
@pytest.mark.parametrize("op", [*PROVIDED, *FUSED])
def test_where_the_kernels_are_not_the_provider_says_why(op: str) -> None:
    impl = ir.registry[op].impls["cuda"]
    assert not impl.supported
    assert impl.reason == library.why_not()


def test_kernels_come_first_in_eager_code_for_every_op_that_has_one() -> None:
    made = CudaPlatform.get_default_ir_op_priority(OpdockConfig())
    assert all(made[op] == ["cuda", "triton", "native"] for op in PROVIDED)
    assert made["all_reduce"] == ["native"]
    assert all(made[op] == ["cuda", "native"] for op in FUSED)


def test_what_inductor_does_as_well_is_left_to_it_and_has_a_reason() -> None:
    made = default_priority(inductor=True)
    assert {op for op in PROVIDED if made[op] == ["native"]} == set(LEFT_TO_INDUCTOR)
    assert made["rms_norm"] == made["fused_add_rms_norm"] == made["rotary_embedding"] == ["cuda", "triton", "native"]
    assert set(LEFT_TO_INDUCTOR) < set(PROVIDED)
    assert all(LEFT_TO_INDUCTOR.values())


def test_compiled_without_inductor_the_kernels_come_first_throughout() -> None:
    config = OpdockConfig.from_text('{"mode": 3, "backend": "opdock_eager"}')
    assert CudaPlatform.get_default_ir_op_priority(config)["silu_and_mul"] == ["cuda", "triton", "native"]


@pytest.mark.skipif(not library.load(), reason=f"needs the kernels: {library.why_not()}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", [*PROVIDED, *FUSED])
def test_on_fake_tensors_a_provider_gives_what_the_definition_gives(op: str, dtype: torch.dtype) -> None:
    with FakeTensorMode():
        for tokens in (0, 3):
            made = ir.registry[op].generate_inputs(num_tokens=tokens, dtype=dtype, device=torch.device("cuda:0"))
            args = ir.registry[op].apply_arg_defaults(made)
            mine, native = (ir.registry[op].impls[name].func_impl_fn(*args) for name in ("cuda", "native"))
            both = (mine, native) if isinstance(mine, tuple) else ((mine,), (native,))
            for a, b in zip(*both, strict=True):
                assert (a.shape, a.dtype, a.stride(), a.device) == (b.shape, b.dtype, b.stride(), b.device)
