"""Attention backends that are wrong in one way fail the kit, and a right one, written apart from the host's, passes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import attention_package
import package
import pytest

from opdock.testing.session import Session
from opdock.testing.settings import Settings


def _attention(folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """Return status and message of each check of attention backends, up to the first failure."""
    monkeypatch.syspath_prepend(str(package.write(folder / "site", files)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = {}
    with contextlib.closing(Session(Settings(package.NAME))) as session:
        for check, subject in session.items():
            if check.name.startswith("attention."):
                result = session.run(check.name, subject)
                found[result.check] = result.status, result.message
    return found


@pytest.mark.parametrize("fault", list(attention_package.FAULTS))
def test_a_wrong_backend_is_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its values, in words that name the backend and the step; none of the faults stops the backend's import."""
    found = _attention(tmp_path, attention_package.files_of(fault), monkeypatch)
    assert found["attention.loads"][0] == "passed", found
    status, message = found["attention.values"]
    assert status == "failed"
    assert "GOOD_ATTN" in message
    if fault not in ("needs lengths on the host", "takes no case"):
        assert "is wrong in torch.float32" in message, message  # it computed: the fault is silent without the kit


def test_the_backend_without_a_fault_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a case would fail for another reason than its own."""
    found = _attention(tmp_path, attention_package.FILES, monkeypatch)
    assert {status for status, _ in found.values()} == {"passed"}, found


_ELSEWHERE = """

@register_backend("FAR_ATTN")
class FarBackend(GoodBackend):
    @staticmethod
    def get_name():
        return "FAR_ATTN"

    @classmethod
    def why_not_here(cls, device_type):
        return "its library is not installed"

    @classmethod
    def validate_configuration(cls, config, device_capability=None):
        return ["its library is not installed"]
"""


def test_a_backend_that_says_why_it_is_not_here_is_not_run_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one over a library that is not installed."""
    files = {**attention_package.FILES, "attention.py": attention_package.ATTENTION + _ELSEWHERE}
    status, message = _attention(tmp_path, files, monkeypatch)["attention.values"]
    assert status == "passed", message
    assert "FAR_ATTN: not run, its library is not installed" in message
    assert "GOOD_ATTN: " in message


def test_where_no_backend_is_here_nothing_was_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no pass."""
    far = "\n    @classmethod\n    def why_not_here(cls, device_type):\n        return 'no such chip'\n"
    files = {**attention_package.FILES, "attention.py": attention_package.ATTENTION + far}
    status, message = _attention(tmp_path, files, monkeypatch)["attention.values"]
    assert status == "not run", message
    assert "GOOD_ATTN: not run, no such chip" in message
