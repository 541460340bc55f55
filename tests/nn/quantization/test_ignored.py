"""Lists of layers that stay unquantised."""

from __future__ import annotations

import pytest

from opdock.errors import ConfigError
from opdock.nn.quantization.ignored import is_layer_ignored, parts_of

PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
AT = "model.layers.0.self_attn"


def test_a_fused_layer_stands_for_its_parts() -> None:
    """By the mapping; any other layer stands for itself."""
    assert parts_of(f"{AT}.qkv_proj", PACKED) == [f"{AT}.q_proj", f"{AT}.k_proj", f"{AT}.v_proj"]
    assert parts_of("lm_head", PACKED) == ["lm_head"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([f"{AT}.o_proj"], True),
        (["o_proj"], True),
        (["model.layers.0"], True),
        (["re:.*self_attn.*"], True),
        (["model.layers.00", "proj", "self_att"], False),
        ([], False),
    ],
)
def test_names_are_whole_paths_their_ends_modules_or_expressions(names: list[str], expected: bool) -> None:
    """Never a part of a word."""
    assert is_layer_ignored(f"{AT}.o_proj", names, PACKED) is expected


def test_a_fused_layer_is_ignored_by_all_its_parts_or_its_own_name() -> None:
    """Both spellings occur in checkpoints."""
    assert is_layer_ignored(f"{AT}.qkv_proj", ["q_proj", "k_proj", "v_proj"], PACKED)
    assert is_layer_ignored(f"{AT}.qkv_proj", ["qkv_proj"], PACKED)
    assert not is_layer_ignored(f"{AT}.qkv_proj", ["o_proj"], PACKED)


def test_a_fused_layer_of_which_only_some_parts_are_ignored_is_an_error_with_its_name() -> None:
    """And the parts of both kinds."""
    with pytest.raises(ConfigError, match=r"qkv_proj[\s\S]*ignored:.*k_proj[\s\S]*not:.*q_proj.*v_proj"):
        is_layer_ignored(f"{AT}.qkv_proj", ["k_proj"], PACKED)


def test_names_of_awq_may_be_any_part_of_a_path() -> None:
    """AWQ's own rule."""
    assert is_layer_ignored(f"{AT}.o_proj", ["self_att"], PACKED, anywhere=True)
