"""Our four packages installed together: what is selected where one or two of their devices are there."""

from __future__ import annotations

from importlib import import_module
from itertools import combinations

import pytest

from opdock.discovery import metadata
from opdock.errors import PlatformConflictError
from opdock.platforms import current, selection

NAMES = ("opdock_ascend", "opdock_cuda", "opdock_rocm", "opdock_tpu")


def chosen(monkeypatch: pytest.MonkeyPatch, present: tuple[str, ...]) -> selection.Selection:
    """Ask the real entry points, whose probes find a device in the packages that are named, and none in the others."""
    for name in NAMES:
        answer = None if name in present else f"no device of {name}"
        monkeypatch.setattr(import_module(f"{name}.probe"), "probe", lambda answer=answer: answer)
    for variable in ("OPDOCK_PLATFORM", "VLLM_PLUGINS", "VLLM_TARGET_DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    candidates = [c for c in metadata.scan().candidates_of(metadata.PLATFORM_GROUP) if c.name in NAMES]
    assert sorted(c.name for c in candidates) == sorted(NAMES)
    return current.select(candidates, current.request_from_env())


def test_without_any_device_the_cpu_is_chosen_and_each_package_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, ())
    assert found.error is None
    assert found.winner == "cpu"
    assert {v.name: v.reason for v in found.verdicts if v.name in NAMES} == {n: f"no device of {n}" for n in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_one_device_makes_its_package_win_over_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, (name,))
    assert found.error is None
    assert found.winner == name


@pytest.mark.parametrize("pair", list(combinations(NAMES, 2)), ids=" and ".join)
def test_two_devices_are_an_error_that_names_both_packages(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's and AMD's share torch's device ``cuda``, Ascend's takes PrivateUse1: which is meant, the user says."""
    found = chosen(monkeypatch, pair)
    assert isinstance(found.error, PlatformConflictError)
    assert all(name in str(found.error) for name in pair)
    assert not any(name in str(found.error) for name in NAMES if name not in pair)


@pytest.mark.parametrize("pair", list(combinations(NAMES, 2)), ids=" and ".join)
def test_the_user_may_choose_one_of_two(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in pair:
        chosen(monkeypatch, pair)  # sets the probes and clears the variables
        monkeypatch.setenv("VLLM_PLUGINS", wanted)
        candidates = [c for c in metadata.scan().candidates_of(metadata.PLATFORM_GROUP) if c.name in NAMES]
        assert current.select(candidates, current.request_from_env()).winner == wanted
        monkeypatch.delenv("VLLM_PLUGINS")
        monkeypatch.setenv("OPDOCK_PLATFORM", "cpu")
        assert current.select(candidates, current.request_from_env()).winner == "cpu"
