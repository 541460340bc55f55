"""``opdock completion``: scripts that shells understand, made from the parsers."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from opdock import cli
from opdock.cli.completion import words

bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def complete(text: str, *typed: str) -> list[str]:
    """Return what bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in typed)
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(typed) - 1}; _opdock; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "--norc", "-c", text + ask], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@bash
def test_bash_accepts_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    """``bash -n``."""
    done = subprocess.run(["bash", "-n"], input=script("bash", capsys), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@bash
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("opdock", ""), list(cli.COMMANDS)),
        (("opdock", "do"), ["doctor"]),
        (("opdock", "--v"), ["--version"]),
        (("opdock", "explain", "--sh"), ["--shape"]),
        (("opdock", "generate", "x", "--top"), ["--top-k", "--top-p"]),
        (("opdock", "generate", ""), []),  # files
        (("opdock", "generate", "-p", "--"), []),  # a value
        (("opdock", "completion", ""), ["bash", "zsh", "fish"]),
        (("opdock", "nothing", "-"), []),
    ],
)
def test_bash_completes(typed: tuple[str, ...], offered: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Commands, options, choices; files where a value or a model is expected."""
    assert complete(script("bash", capsys), *typed) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_accept_theirs(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Checked where the shell is installed."""
    text = script(shell, capsys)
    assert "generate" in text and "ir-op-priority" in text
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_option_of_every_command_is_offered() -> None:
    """They come from the parsers."""
    found = words()
    assert list(found) == list(cli.COMMANDS)
    assert {"--prompt", "--no-chat", "--json"} <= set(found["generate"].options)
    assert "-p" in found["generate"].with_value and "--json" not in found["generate"].with_value
