"""What is particular to this device; all that every platform must do is in the kit.

The device stays in the process that loads it, so these tests run where it is plugged in:
DEMO_ACCEL_DEVICES=2 pytest tests/test_device.py
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opdock_demo_accel.probe import probe

REASON = probe()
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.usefixtures("_device"),
]


@pytest.fixture(scope="module")
def _device() -> Iterator[None]:
    """The platform, activated."""
    import opdock

    with opdock.set_current_config():
        yield


def test_tensors_go_to_the_device_and_back() -> None:
    """Values, strides and the device's name."""
    import torch

    x = torch.arange(6.0).view(2, 3)
    y = x.to("demo_accel").t()
    assert y.device == torch.device("demo_accel", 0)
    assert y.stride() == (1, 3)
    assert torch.equal(y.cpu(), x.t())


def test_memory_is_shared_by_views() -> None:
    """A write through a view is seen."""
    import torch

    x = torch.zeros(3, 4, device="demo_accel")
    x[1:].fill_(7)
    assert x[:, 0].tolist() == [0, 7, 7]


@pytest.mark.parametrize("index", [0, 1])
def test_a_tensor_stays_on_its_device(index: int) -> None:
    """Made, resized, computed and copied there, whichever is the current one."""
    import torch

    if index >= torch.accelerator.device_count():
        pytest.skip("needs DEMO_ACCEL_DEVICES=2")
    x = torch.arange(3.0, device=f"demo_accel:{index}")
    x.resize_(100)[3:] = 1
    made = [
        x,
        x.clone(),
        x * 2,
        torch.ops.demo_accel.rms_norm(x, None, 1e-5),
        x.view(10, 10) @ x.view(10, 10),
    ]
    assert {t.device.index for t in made} == {index}
    assert torch.accelerator.current_device_index() == 0


def test_random_numbers_are_repeatable() -> None:
    """The host's generator draws them."""
    import torch

    torch.manual_seed(1)
    first = torch.randn(4, device="demo_accel")
    torch.manual_seed(1)
    assert torch.equal(first.cpu(), torch.randn(4))


def test_a_device_that_is_not_there_is_an_error() -> None:
    """Devices count from 0."""
    import torch

    with pytest.raises(RuntimeError, match="there is no device 99"):
        torch.empty(1, device="demo_accel:99")


def test_devices_are_not_mixed() -> None:
    """Nothing is copied without a word."""
    import torch

    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="demo_accel") + torch.ones(2)


def test_an_operator_of_another_library_is_not_run_on_the_cpu() -> None:
    """Only aten falls back."""
    import torch

    with torch.library._scoped_library("demo_accel_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CPU")
        x = torch.ones(2, device="demo_accel")
        with pytest.raises(NotImplementedError, match="no demo_accel kernel"):
            torch.ops.demo_accel_test.twice(x)


def test_the_kernels_refuse_what_would_give_a_wrong_answer() -> None:
    """One tensor cannot hold two results; host memory is not read as the device's."""
    import torch

    x = torch.ones(2, 4, device="demo_accel")
    ops = torch.ops.demo_accel
    with pytest.raises(RuntimeError, match="single memory location"):
        ops.fused_add_rms_norm(x, x, None, 1e-5)
    with pytest.raises(RuntimeError, match="weight is float on cpu"):
        ops.rms_norm(x, torch.ones(4), 1e-5)
    with pytest.raises(RuntimeError, match="expected float"):
        ops.linear(x, torch.ones(3, 4, device="demo_accel", dtype=torch.float64), None)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)])
def test_attention_is_causal_over_the_cached_positions(heads: tuple[int, int]) -> None:
    """Against PyTorch's in float64; strided tensors, groups of heads, more keys than queries."""
    import torch

    query = torch.randn(2, 5, heads[0], 8, dtype=torch.float64)
    key, value = (torch.randn(2, heads[1], 9, 16, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(5, 9, dtype=torch.bool).tril(4)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), key[..., ::2], value[..., ::2], attn_mask=mask, scale=0.3, enable_gqa=True
    )
    q, k, v = (t.to("demo_accel") for t in (query, key, value))
    found = torch.ops.demo_accel.attention(q.transpose(1, 2), k[..., ::2], v[..., ::2], 0.3)
    torch.testing.assert_close(found.cpu().transpose(1, 2), expected)


def test_rows_without_tokens_are_fine() -> None:
    """Zero rows give zero rows."""
    import torch

    ops, empty = torch.ops.demo_accel, torch.empty(0, 8, device="demo_accel")
    assert ops.rms_norm(empty, None, 1e-5).shape == (0, 8)
    assert ops.silu_and_mul(empty).shape == (0, 4)
    assert ops.linear(empty, torch.ones(3, 8, device="demo_accel"), None).shape == (0, 3)


def test_compiled_code_keeps_the_device() -> None:
    """The platform's backend; Inductor has none for it."""
    import opdock
    import torch

    backend = opdock.current_platform.simple_compile_backend
    assert backend == "opdock_eager"

    def double(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.demo_accel.silu_and_mul(x) * 2

    x = torch.randn(3, 8)
    gate, up = x.chunk(2, dim=-1)
    found = torch.compile(double, backend=backend, fullgraph=True)(x.to("demo_accel"))
    assert found.device.type == "demo_accel"
    torch.testing.assert_close(found.cpu(), torch.nn.functional.silu(gate) * up * 2)
