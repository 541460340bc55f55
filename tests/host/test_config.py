"""Configuration: priorities, parsing, environment variables."""

from __future__ import annotations

import pytest

from opdock import env
from opdock.config import IrOpPriorityConfig, OpdockConfig, merge_priority
from opdock.errors import ConfigError, OrderError


def test_priorities_are_given_as_list_or_text() -> None:
    """Any op may be named; what is not named has the default."""
    config = IrOpPriorityConfig.with_default(["native"], rms_norm=" a, b ", my_op=["c"])
    assert (config.rms_norm, config["my_op"], config.other) == (["a", "b"], ["c"], ["native"])


@pytest.mark.parametrize("value", ["", "a,,b", [], [1], 3, None, "-"])
def test_impossible_priority_is_an_error_naming_the_op(value: object) -> None:
    """Before anything long is done."""
    with pytest.raises(ConfigError, match="'rms_norm' is not a list of provider names"):
        IrOpPriorityConfig(rms_norm=value)


@pytest.mark.parametrize("value", ["a,-a", "-native"])
def test_priority_cannot_drop_what_it_lists_or_native(value: str) -> None:
    """Native is the definition."""
    with pytest.raises(ConfigError, match="cannot drop"):
        IrOpPriorityConfig(rms_norm=value)


def test_users_order_comes_first_and_dropped_providers_are_gone() -> None:
    """A user can outrank and drop a platform's provider."""
    assert merge_priority(["b"], ["a", "b", "native"]) == ["b", "a", "native"]
    assert merge_priority(["-a"], ["a", "b", "native"]) == ["b", "native"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[1]", "not a JSON object"),
        ('{"customops": []}', "Did you mean 'custom_ops'"),
        ('{"mode": 9}', "no compilation mode"),
        ('{"custom_ops": "all"}', "not a list of strings"),
        ('{"backend": 3}', "not the name"),
    ],
)
def test_bad_compilation_config_is_one_clear_error(text: str, words: str) -> None:
    """Whatever is given on the command line."""
    with pytest.raises(ConfigError, match=words):
        OpdockConfig.from_text(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), ("", ()), (" a , b,", ("a", "b")), ("a,a", ("a",)), (",", ())],
)
def test_b01_plugin_filter_is_stripped(value: str | None, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset is None, empty is nothing."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if value is not None:
        monkeypatch.setenv("VLLM_PLUGINS", value)
    assert env.plugin_filter() == expected


def test_b62_flags_are_read_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change after import takes effect; nonsense is an error."""
    for value, expected in (("1", True), ("0", False), ("true", True)):
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", value)
        assert env.batch_invariant() is expected
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "maybe")
    with pytest.raises(ConfigError, match="neither on nor off"):
        env.batch_invariant()


@pytest.mark.parametrize("value", ["0", "-1", "x", "inf", "nan"])
def test_probe_timeout_must_be_a_positive_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds above 0."""
    monkeypatch.setenv("OPDOCK_PROBE_TIMEOUT", value)
    with pytest.raises(ConfigError, match="OPDOCK_PROBE_TIMEOUT"):
        env.probe_timeout()


def test_assigning_a_priority_by_attribute_is_seen_and_refused_once_sealed() -> None:
    """It would be kept beside the table and read by nobody."""
    config = OpdockConfig()
    config.kernel_config.ir_op_priority.rms_norm = "a,b"
    assert config.kernel_config.ir_op_priority["rms_norm"] == ["a", "b"]
    config.seal()
    with pytest.raises(OrderError, match="priority of rms_norm cannot change"):
        config.kernel_config.ir_op_priority.rms_norm = ["native"]


@pytest.mark.parametrize(
    "change",
    ["cc.mode = 0", "del cc.mode", "del c.platform", "cc.custom_ops += ['all']", "cc.custom_ops[0] = 'all'",
     "del cc.custom_ops[0]", "cc.custom_ops.clear()", "cc.custom_ops.pop()", "cc.custom_ops.sort(key=len)"],
)  # fmt: skip
def test_a_sealed_configuration_refuses_every_change(change: str) -> None:
    """Whichever way it is tried, the same error says what to do."""
    config = OpdockConfig.from_text('{"custom_ops": ["none"]}')
    config.seal()
    with pytest.raises(OrderError, match="cannot change: layers are built"):
        exec(change, {"c": config, "cc": config.compilation_config})
