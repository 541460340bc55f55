"""Rows times a weight, whichever way they are computed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from opdock.nn.layers.matmul import _parts, linear


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """A number of threads that torch computes with."""
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(16,), (1, 16), (1, 1, 16), (5, 16), (0, 16)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("outputs", [12, 13])
def test_results_are_those_of_torchs_linear(
    dtype: torch.dtype, shape: tuple[int, ...], with_bias: bool, outputs: int, threads: int
) -> None:
    """For one row and many, with and without bias, for sizes that can be divided and others."""
    x, weight = torch.randn(shape).to(dtype), torch.randn(outputs, 16).to(dtype)
    bias = torch.randn(outputs).to(dtype) if with_bias else None
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))


def test_a_weight_with_gaps_is_taken(threads: int) -> None:
    """A slice of a larger one."""
    weight = torch.randn(12, 32)[:, :16]
    x = torch.randn(1, 16)
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


def test_the_blocks_are_equal_and_keep_all_threads_busy() -> None:
    """As few as do; one where the rows cannot be divided."""
    assert [_parts(12, n) for n in (1, 2, 3, 5)] == [1, 2, 3, 6]
    assert _parts(13, 2) == 1


def test_a_compiled_call_is_one_graph(threads: int) -> None:
    """The compiler sees torch's own linear, and splits it itself if it likes."""
    x, weight = torch.randn(1, 16), torch.randn(12, 16)
    compiled = torch.compile(linear, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), F.linear(x, weight))
