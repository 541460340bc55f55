"""The selection table, row by row, with plugins installed in a folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opdock import errors
from opdock.platforms import current

Install = Callable[..., str]
RAISES = "    raise RuntimeError('old driver')"


def verdicts() -> dict[str, str]:
    """Return the verdict of each candidate of the last selection."""
    selection = current.chosen_selection()
    assert selection is not None
    return {v.name: v.verdict for v in selection.verdicts}


@pytest.mark.parametrize("variable", ["VLLM_TARGET_DEVICE", "OPDOCK_PLATFORM"])
def test_cpu_by_name_loads_nothing(variable: str, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 1: the CPU is wanted, and a plugin that would raise is not even imported."""
    install("chip", source="raise SystemExit('imported')")
    monkeypatch.setenv(variable, "cpu")
    assert current.resolve().is_cpu()
    assert verdicts() == {"chip": "filtered"}


def test_forced_platform_is_used_and_no_other_is_imported(
    install: Install, active: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 2: only the named one runs."""
    install("bad", source="raise SystemExit('imported')")
    active("good")
    monkeypatch.setenv("OPDOCK_PLATFORM", "good")
    assert current.resolve().device_name == "good"
    assert verdicts() == {"bad": "filtered", "good": "activated"}


@pytest.mark.parametrize("alias", ["chip", "opdock_chip", "dist-opdock_chip", "CHIP"])
def test_forced_by_alias_or_distribution(alias: str, active: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2: OPDOCK_PLATFORM=cuda stands for opdock_cuda."""
    active("opdock_chip")
    monkeypatch.setenv("OPDOCK_PLATFORM", alias)
    assert current.resolve().device_name == "opdock_chip"


def test_forced_and_absent_lists_what_is_there(active: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2: absent is an error with near matches."""
    active("ascend")
    monkeypatch.setenv("OPDOCK_PLATFORM", "asend")
    with pytest.raises(errors.PlatformNotFoundError, match=r"asend[\s\S]*Remedy:.*'ascend'"):
        current.resolve()


def test_forced_and_declining_gives_its_reason(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2: declining is an error with the plugin's own reason."""
    install("chip", "    import opdock\n    return opdock.decline('no NVML device')")
    monkeypatch.setenv("OPDOCK_PLATFORM", "chip")
    with pytest.raises(errors.PlatformNotFoundError, match="declined: no NVML device"):
        current.resolve()


def test_forced_and_failing_gives_the_traceback(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2: failing is an error that shows where."""
    install("chip", RAISES)
    monkeypatch.setenv("OPDOCK_PLATFORM", "chip")
    with pytest.raises(
        errors.PlatformFailedError, match=r"(?s)old driver.*dist-chip 1.0.*Traceback.*Remedy:"
    ) as caught:
        current.resolve()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_one_active_wins_over_the_cpu(active: Install) -> None:
    """Row 3."""
    active("chip")
    assert current.resolve().device_name == "chip"
    assert verdicts() == {"chip": "activated"}


def test_one_active_wins_and_the_failure_of_another_is_a_warning(
    install: Install, active: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """Row 4, case B16: the healthy plugin is used, and one warning names the broken one."""
    install("bad", RAISES)
    active("good")
    with caplog.at_level(logging.WARNING, "opdock"):
        assert current.resolve().device_name == "good"
    warnings = [r.getMessage() for r in caplog.records if "bad" in r.getMessage()]
    assert len(warnings) == 1 and "dist-bad 1.0" in warnings[0] and "old driver" in warnings[0]


def test_b17_two_active_is_an_error_naming_both(active: Install) -> None:
    """Row 5: names, distributions, versions and what to set."""
    active("one")
    active("two", version="2.5")
    with pytest.raises(errors.PlatformConflictError) as caught:
        current.resolve()
    text = str(caught.value)
    assert "dist-one 1.0" in text and "dist-two 2.5" in text and "Remedy: set OPDOCK_PLATFORM=one (or two)" in text


def test_b15_none_active_and_one_failed_is_an_error(install: Install) -> None:
    """Row 6: no silent CPU."""
    install("chip", RAISES)
    with pytest.raises(errors.PlatformFailedError, match=r"(?s)old driver.*Traceback.*Remedy:.*OPDOCK_PLATFORM=cpu"):
        current.resolve()


def test_b15_failed_and_named_is_an_error_though_another_is_active(
    install: Install, active: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 7."""
    install("bad", RAISES)
    active("good")
    monkeypatch.setenv("VLLM_PLUGINS", "bad,good")
    with pytest.raises(errors.PlatformFailedError, match="it is named in VLLM_PLUGINS"):
        current.resolve()


def test_none_active_and_none_failed_is_the_cpu(install: Install) -> None:
    """Row 8: a plugin that declines without a word still has a reason in the verdict."""
    install("chip", "    return None")
    assert current.resolve().is_cpu()
    selection = current.chosen_selection()
    assert selection is not None and "None" in selection.verdicts[0].reason


def test_empty_target_is_unspecified(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 9: native methods, no device."""
    install("chip", "    return None")
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "empty")
    assert current.resolve().is_unspecified()


def test_empty_target_yields_to_an_active_plugin(active: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 9: only when no out-of-tree platform is active."""
    active("chip")
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "empty")
    assert current.resolve().device_name == "chip"


def test_two_active_builtins_are_an_error(monkeypatch: pytest.MonkeyPatch, active: Install) -> None:
    """Row 10: the table of built-ins has one entry today; with two, an out-of-tree platform still wins."""
    table = {"cpu": "opdock.platforms.cpu:cpu_platform_plugin", "other": "opdock.platforms.cpu:cpu_platform_plugin"}
    monkeypatch.setattr("opdock.platforms.builtin_platform_plugins", table)
    monkeypatch.setattr(current, "_scan", lambda: current.metadata.Scan((), ()))
    with pytest.raises(errors.PlatformConflictError, match=r"2 built-in platforms[\s\S]*cpu[\s\S]*other[\s\S]*Remedy:"):
        current.resolve()
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"OPDOCK_PLATFORM": "chip", "VLLM_TARGET_DEVICE": "cpu"}, "VLLM_TARGET_DEVICE=cpu"),
        ({"OPDOCK_PLATFORM": "cpu", "VLLM_TARGET_DEVICE": "empty"}, "VLLM_TARGET_DEVICE=empty"),
        ({"OPDOCK_PLATFORM": "chip", "VLLM_PLUGINS": "other"}, "VLLM_PLUGINS=other"),
        ({"OPDOCK_PLATFORM": "chip", "VLLM_PLUGINS": ""}, "VLLM_PLUGINS="),
    ],
)
def test_contradicting_variables_are_an_error_naming_both(
    variables: dict[str, str], named: str, active: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 11."""
    active("chip")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.PlatformConflictError, match=f"OPDOCK_PLATFORM=.*{named}"):
        current.resolve()


@pytest.mark.parametrize(
    ("value", "expected"), [("", "cpu"), (" chip , ", "chip"), ("other", "cpu"), ("other,chip", "chip")]
)
def test_b01_vllm_plugins_filters_by_stripped_name(
    value: str, expected: str, active: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unset means all, empty means none."""
    active("chip")
    monkeypatch.setenv("VLLM_PLUGINS", value)
    assert current.resolve().device_name == expected


def test_b01_unknown_name_in_the_filter_is_reported(
    active: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that no plugin has is reported with the nearest one."""
    active("ascend")
    monkeypatch.setenv("VLLM_PLUGINS", "asend")
    with caplog.at_level(logging.WARNING, "opdock"):
        assert current.resolve().is_cpu()
    assert "names 'asend'" in caplog.text and "Did you mean 'ascend'?" in caplog.text


def test_b05_one_name_in_two_distributions_is_an_error_naming_both(active: Install) -> None:
    """Never the last one."""
    first = active("one", entry_point="chip")
    second = active("two", entry_point="chip")
    with pytest.raises(errors.PlatformConflictError) as caught:
        current.resolve()
    assert all(part in str(caught.value) for part in ("dist-one", "dist-two", first, second, "Remedy:"))
    assert still_active() == []


def still_active() -> list[str]:
    """Return names that are active after a failed selection: none may be."""
    selection = current.chosen_selection()
    return [v.name for v in selection.verdicts if v.verdict == "activated"] if selection else []


def test_foreign_distribution_is_not_imported(install: Install) -> None:
    """A distribution that does not require opdock is never run."""
    install("vllm_chip", source="raise SystemExit('imported')", requires=None)
    assert current.resolve().is_cpu()
    assert verdicts() == {"vllm_chip": "foreign"}


def test_b21_requirement_on_another_opdock_fails_before_import(install: Install) -> None:
    """The version handshake is in the metadata."""
    install("chip", source="raise SystemExit('imported')", requires="opdock>=9")
    with pytest.raises(errors.PlatformFailedError, match="built for opdock>=9, this is opdock 0.1.0"):
        current.resolve()


def test_name_of_a_builtin_of_vllm_is_refused(active: Install) -> None:
    """Such a plugin breaks vLLM when it declines."""
    active("chip", entry_point="cuda")
    with pytest.raises(errors.PlatformFailedError, match="named 'cuda' like a built-in of vLLM"):
        current.resolve()


def test_forced_distribution_with_two_plugins_fails_for_the_one_that_failed(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One declines and one raises: none is active, and the error is the failure."""
    module = install("chip", "    return None\ndef other():\n" + RAISES)
    site = next(Path(p) for p in sys.path if Path(p, f"{module}.py").is_file())
    file = next(site.glob(f"{module}-*.dist-info")) / "entry_points.txt"
    file.write_text(file.read_text() + f"other = {module}:other\n")
    monkeypatch.setenv("OPDOCK_PLATFORM", "dist-chip")
    with pytest.raises(errors.PlatformFailedError, match="other: RuntimeError: old driver"):
        current.resolve()


def test_b05_one_name_twice_in_one_distribution_says_so(install: Install) -> None:
    """There is no other distribution to uninstall."""
    module = install("chip", "    return None")
    site = next(Path(p) for p in sys.path if Path(p, f"{module}.py").is_file())
    file = next(site.glob(f"{module}-*.dist-info")) / "entry_points.txt"
    file.write_text(file.read_text() + f"chip = {module}:other\n")
    with pytest.raises(errors.PlatformConflictError, match="dist-chip declares the platform plugin 'chip' more than"):
        current.resolve()
