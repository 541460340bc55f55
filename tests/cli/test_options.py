"""Priorities, configurations, shapes and dtypes from words."""

from __future__ import annotations

import argparse

import pytest

from opdock.cli import options
from opdock.config import OpdockConfig
from opdock.errors import ConfigError


def config(*words: str) -> OpdockConfig:
    parser = argparse.ArgumentParser()
    options.add_config(parser)
    rest, dotted = options.take_dotted(words)
    args = parser.parse_args(rest)
    args.dotted = dotted
    return options.config_of(args)


@pytest.mark.parametrize(
    "words",
    [
        ("--ir-op-priority.rms_norm=a,-b",),
        ("--ir-op-priority.rms_norm", "a,-b"),
        ("--ir-op-priority", '{"rms_norm": "a,-b"}'),
        ('--ir-op-priority={"rms_norm": ["a", "-b"]}',),
    ],
)
def test_a_priority_is_given_in_any_of_four_ways(words: tuple[str, ...]) -> None:
    """Dotted with = or a blank, JSON with text or a list."""
    assert config(*words).kernel_config.ir_op_priority["rms_norm"] == ["a", "-b"]


def test_a_dotted_value_may_begin_with_a_dash() -> None:
    """It drops a provider."""
    assert options.take_dotted(["--ir-op-priority.x", "-a", "--json"]) == (["--json"], {"x": "-a"})


def test_dotted_and_json_priorities_of_two_ops_add_up() -> None:
    """Each op once."""
    made = config("--ir-op-priority", '{"a": "x"}', "--ir-op-priority.b=y").kernel_config.ir_op_priority
    assert (made["a"], made["b"]) == (["x"], ["y"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ir-op-priority.a=x", "--ir-op-priority.a", "y"), "given twice"),
        (("--ir-op-priority", '{"a": "x"}', "--ir-op-priority.a=y"), "given twice"),
        (("--ir-op-priority.a",), "names no provider"),
        (("--ir-op-priority.a=",), "names no provider"),
        (("--ir-op-priority.a", "--json"), "names no provider"),
        (("--ir-op-priority.=x",), "names no IR op"),
        (("--ir-op-priority", "{"), "not JSON"),
        (("--ir-op-priority", "[]"), "not a JSON object"),
        (("--ir-op-priority", '{"a": 3}'), "not a list of provider names"),
        (("--compilation-config", "{"), "not JSON"),
        (("--compilation-config", '{"custom_op": []}'), "Did you mean 'custom_ops'"),
        (("--compilation-config", '{"custom_ops": ["rms_norm"]}'), "Invalid syntax"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(words: tuple[str, ...], message: str) -> None:
    """With a remedy, but for the plainest."""
    with pytest.raises(ConfigError, match=message):
        config(*words)


def test_words_after_two_dashes_are_no_options() -> None:
    """As everywhere on a command line."""
    assert options.take_dotted(["--", "--ir-op-priority.a=x"]) == (["--", "--ir-op-priority.a=x"], {})


def test_a_shape_is_two_sizes() -> None:
    """Tokens, then hidden."""
    assert options.shape_of("1x4096") == options.shape_of("1,4096") == (1, 4096)
    assert options.shape_of(None) is None


@pytest.mark.parametrize("text", ["", "4096", "1x2x3", "0x4", "-1x4", "axb", "1x", "1x99999999999999", "²x1"])
def test_an_impossible_shape_is_refused(text: str) -> None:
    """Before anything is computed."""
    with pytest.raises(ConfigError, match="TOKENSxHIDDEN"):
        options.shape_of(text)


@pytest.mark.parametrize("name", ["floot32", "int8", "Tensor", "__doc__"])
def test_a_dtype_that_no_activation_has_is_refused(name: str) -> None:
    """With the known ones."""
    with pytest.raises(ConfigError, match="Known: bfloat16"):
        options.dtype_of(name)
