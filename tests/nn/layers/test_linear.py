"""Linear layers of one rank and how checkpoints fill them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from opdock.errors import CheckpointError, ConfigError
from opdock.nn.layers import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from opdock.registry import op_registry

pytestmark = pytest.mark.usefixtures("config")


def _filled(layer: Any) -> Any:
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("cls", [ReplicatedLinear, ColumnParallelLinear, RowParallelLinear])
def test_output_is_x_times_weight_plus_bias(cls: type[LinearBase]) -> None:
    """And a second result, the bias that is left to add."""
    layer = _filled(cls(6, 4))
    x = torch.randn(2, 6)
    y, rest = layer(x)
    assert rest is None
    torch.testing.assert_close(y, F.linear(x, layer.weight, layer.bias))


def test_the_bias_can_be_left_out_left_over_or_not_returned() -> None:
    """bias, skip_bias_add and return_bias."""
    x = torch.randn(2, 6)
    assert ReplicatedLinear(6, 4, bias=False).bias is None
    left = _filled(ReplicatedLinear(6, 4, skip_bias_add=True))
    y, bias = left(x)
    assert bias is left.bias
    torch.testing.assert_close(y, F.linear(x, left.weight))
    alone = _filled(ReplicatedLinear(6, 4, return_bias=False))
    torch.testing.assert_close(alone(x), F.linear(x, alone.weight, alone.bias))


def test_qkv_shards_go_to_their_rows() -> None:
    """Shards may come in any order; keys and values have fewer heads."""
    layer = QKVParallelLinear(6, 3, 4, 2, bias=True)
    parts = {"q": torch.randn(12, 6), "k": torch.randn(6, 6), "v": torch.randn(6, 6)}
    for shard in ("v", "q", "k"):
        layer.weight_loader(layer.weight, parts[shard], shard)
        layer.weight_loader(layer.bias, parts[shard][:, 0], shard)
    torch.testing.assert_close(layer.weight.data, torch.cat(list(parts.values())))
    torch.testing.assert_close(layer.bias.data, torch.cat(list(parts.values()))[:, 0])


def test_merged_shards_are_numbered_and_may_come_joined() -> None:
    """None takes the whole."""
    layer = MergedColumnParallelLinear(6, [3, 5], bias=False)
    first, second = torch.randn(3, 6), torch.randn(5, 6)
    layer.weight_loader(layer.weight, second, 1)
    layer.weight_loader(layer.weight, first, 0)
    torch.testing.assert_close(layer.weight.data, torch.cat((first, second)))
    whole = torch.randn(8, 6)
    layer.weight_loader(layer.weight, whole)
    torch.testing.assert_close(layer.weight.data, whole)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes() -> None:
    """Nothing is broadcast into a weight."""
    layer = QKVParallelLinear(6, 3, 4, 2, prefix="model.layers.0.self_attn.qkv_proj")
    with pytest.raises(CheckpointError, match=r"\(6, 6\)[\s\S]*\(12, 6\)") as caught:
        layer.weight_loader(layer.weight, torch.zeros(12, 6), "k")
    assert "model.layers.0.self_attn.qkv_proj shard 'k'" in str(caught.value)
    with pytest.raises(CheckpointError, match="no shard 'w'"):
        layer.weight_loader(layer.weight, torch.zeros(12, 6), "w")
    plain = ReplicatedLinear(6, 4)
    with pytest.raises(CheckpointError):
        plain.weight_loader(plain.weight, torch.zeros(1, 6))


def test_heads_that_do_not_divide_are_refused() -> None:
    """Every group of query heads has one key head."""
    with pytest.raises(ConfigError, match="4 query heads cannot share 3"):
        QKVParallelLinear(6, 3, 4, 3)


def test_vendors_find_the_layers_under_their_names() -> None:
    """The names that replacements use."""
    expected = {
        "replicated_linear": ReplicatedLinear,
        "column_parallel_linear": ColumnParallelLinear,
        "merged_column_parallel_linear": MergedColumnParallelLinear,
        "qkv_parallel_linear": QKVParallelLinear,
        "row_parallel_linear": RowParallelLinear,
    }
    assert {name: op_registry[name] for name in expected} == expected


def test_copies_and_pickles_compute_the_same() -> None:
    """No layer holds what cannot be copied."""
    layer = _filled(MergedColumnParallelLinear(6, [3, 5]))
    x = torch.randn(2, 6)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(x)[0], layer(x)[0])
