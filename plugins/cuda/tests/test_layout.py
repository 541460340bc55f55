"""opdock_cuda.layout: pure functions over shapes and strides, against a search through all elements."""

from __future__ import annotations

import itertools

import pytest
import torch

from opdock_cuda.layout import Rows, lies_apart, rows_of

SHAPES = [
    shape
    for rank in (1, 2, 3, 4)
    for shape in itertools.product(*[(1, 2, 3)] * (rank - 1), (1, 4))
    if len(shape) < 4 or 1 not in shape[1:]
]


def _views() -> list[torch.Tensor]:
    """Every order of the leading dimensions, dense, padded at each place, and expanded."""
    found = []
    for shape in SHAPES:
        for pad in range(len(shape)):
            padded = [n + (i == pad) for i, n in enumerate(shape)]
            whole = torch.arange(torch.Size(padded).numel()).view(padded)
            view = whole[tuple(slice(0, n) for n in shape)]
            orders = itertools.permutations(range(len(shape) - 1))
            found += [view.permute(*order, len(shape) - 1) for order in orders]
        found.append(torch.arange(shape[-1]).expand(shape))
    return found


def test_rows_are_found_where_the_kernels_find_them() -> None:
    served = 0
    for x in _views():
        rows = rows_of(x.shape, x.stride())
        if rows is None:
            continue
        served += 1
        starts = [r // rows.inner * rows.outer_stride + r % rows.inner * rows.inner_stride for r in range(_count(x))]
        assert starts == (x[..., 0] - x.flatten()[0]).flatten().tolist(), (x.shape, x.stride(), rows)
    assert served > 200


def test_up_to_two_leading_dimensions_always_fit() -> None:
    for x in _views():
        if x.ndim <= 3 and (x.stride(-1) == 1 or x.shape[-1] == 1):
            assert rows_of(x.shape, x.stride()) is not None


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((8,), (1,), Rows(1, 0, 0)),
        ((5, 8), (8, 1), Rows(1, 8, 0)),
        ((5, 2, 8), (100, 8, 1), Rows(2, 100, 8)),
        ((5, 2, 8), (16, 8, 1), Rows(1, 8, 0)),
        ((4, 3, 2, 8), (48, 16, 8, 1), Rows(1, 8, 0)),
        ((4, 3, 2, 8), (100, 16, 8, 1), Rows(6, 100, 8)),
        ((4, 3, 2, 8), (1000, 100, 8, 1), None),
        ((5, 8), (1, 5), None),
        ((), (), None),
    ],
)
def test_leading_dimensions_become_two(shape: tuple[int, ...], strides: tuple[int, ...], expected: Rows | None) -> None:
    assert rows_of(shape, strides) == expected


def test_elements_that_share_memory_are_seen() -> None:
    for x in _views():
        assert lies_apart(x.shape, x.stride()) == (x.unique().numel() == x.numel()), (x.shape, x.stride())
    assert not lies_apart((3, 4), (2, 1))
    assert lies_apart((3, 0), (0, 1))


def _count(x: torch.Tensor) -> int:
    return x.shape[:-1].numel()
