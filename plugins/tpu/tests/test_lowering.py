"""opdock_tpu.lowering: what torchax runs for opdock, on device ``jax``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdock import ir
from opdock_tpu import xla

pytestmark = pytest.mark.usefixtures("activated")


@pytest.fixture
def arguments() -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(5, 64), torch.randn(5, 64), torch.randn(64), 1e-5]


def _there(values: list[Any]) -> list[Any]:
    return [value.to("jax") if isinstance(value, torch.Tensor) else value for value in values]


@pytest.mark.parametrize("provider", ["pallas", "native"])
@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm"])
def test_an_ir_op_runs_the_provider_of_its_priority_and_gives_natives_values(
    arguments: list[Any], name: str, provider: str
) -> None:
    op = ir.registry[name]
    given = arguments if name == "fused_add_rms_norm" else [arguments[0], *arguments[2:]]
    want = op.native(*given)
    with op.set_priority([provider, "native"]), xla.without_gradients():
        assert op.dispatch(*_there(given)).provider == provider
        got = op(*_there(given))
        results = [got] if isinstance(got, torch.Tensor) else list(got)
        results = [result.cpu() for result in results]
    for result, expected in zip(results, [want] if isinstance(want, torch.Tensor) else want, strict=True):
        torch.testing.assert_close(result, expected, atol=2e-6, rtol=2e-6)


def test_giving_activations_away_gives_the_same(arguments: list[Any]) -> None:
    op: Any = ir.ops.fused_add_rms_norm
    want = op.op.native(*arguments)
    with xla.without_gradients():
        got = [part.cpu() for part in op.maybe_inplace(*_there(arguments))]
    for result, expected in zip(got, want, strict=True):
        torch.testing.assert_close(result, expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("provider", ["pallas", "native"])
def test_an_op_is_compiled_once_for_each_set_of_shapes(
    jax: Any, arguments: list[Any], provider: str, compilations: Any
) -> None:
    op: Any = ir.ops.fused_add_rms_norm
    with op.set_priority([provider, "native"]), xla.without_gradients():
        given = _there(arguments)
        op(*given)
        before = compilations()
        op(*given)
        assert compilations() == before


def test_a_compiled_program_leaves_norms_to_xla(jax: Any, arguments: list[Any]) -> None:
    """The kernels are left out of it, and values are the same."""
    from torchax import interop

    op: Any = ir.ops.fused_add_rms_norm
    chosen = []

    def program(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        chosen.append(op.dispatch(x, r, w, 1e-5).provider)
        return op(x, r, w, 1e-5)[0] * 2

    with xla.enabled():
        given = _there(arguments[:3])
        chosen.append(op.dispatch(*given, 1e-5).provider)
        got = xla.compiled(program)(*given).cpu()
    assert chosen == ["pallas", "native"]
    torch.testing.assert_close(got, op.op.native(*arguments)[0] * 2, atol=4e-6, rtol=4e-6)
    with xla.left_to_xla():
        text = jax.jit(interop.jax_view(program)).lower(*(t.jax() for t in given)).as_text()
    assert "tpu_custom_call" not in text


def test_what_is_written_to_a_narrowed_view_is_written_to_the_tensor() -> None:
    with xla.without_gradients():
        x = torch.zeros(3, 6, device="jax")
        x.narrow(1, 2, 3).copy_(torch.ones(3, 3, device="jax"))
        part = x.narrow(-1, 1, 2)
        got, seen = x.cpu(), part.cpu()
    want = torch.zeros(3, 6)
    want[:, 2:5] = 1
    assert torch.equal(got, want)
    assert torch.equal(seen, want[:, 1:3])
    assert part.shape == (3, 2)


def test_copies_go_to_the_host_and_from_it() -> None:
    with xla.without_gradients():
        there, here = torch.empty(2, 3, device="jax"), torch.empty(2, 3)
        there.copy_(torch.tensor([1.0, 2.0, 3.0]))
        here.copy_(there)
    assert torch.equal(here, torch.tensor([[1.0, 2.0, 3.0]] * 2))


def test_numbers_of_64_bits_that_come_as_words_keep_their_values() -> None:
    numbers = torch.tensor([0, 5, -1, 2**31 - 1])
    with xla.without_gradients():
        got = numbers.view(torch.int32).to("jax").view(torch.int64)
        shaped = got.view(2, 2).cpu()
        bits = torch.tensor([1.0, -2.0], device="jax").view(torch.int32).cpu()
    assert shaped.tolist() == [[0, 5], [-1, 2**31 - 1]]
    assert torch.equal(bits, torch.tensor([1.0, -2.0]).view(torch.int32))


def test_pinned_memory_is_plain_memory() -> None:
    with xla.enabled():
        assert not torch.empty(3, pin_memory=True).is_pinned()


def test_torch_compile_works_for_cpu_tensors_beside_torchax() -> None:
    program = torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)
    assert torch.equal(program(torch.ones(3)), torch.full((3,), 2.0))
