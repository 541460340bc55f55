"""The command line as a whole: exit codes, errors, pipes, what is imported."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from opdock import __version__, cli
from opdock.cli import plugins
from opdock.errors import ConfigError


def opdock(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opdock", *words], capture_output=True, text=True, env={**os.environ, **more}
    )


def replace(monkeypatch: pytest.MonkeyPatch, run: Callable[..., int]) -> None:
    monkeypatch.setattr(plugins, "run", run)


def test_the_version_and_the_help_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Both end well."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"opdock {__version__}\n"
    assert cli.main(["generate", "--help"]) == 0
    assert "--ir-op-priority" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["explain", "rms_norm"], ["explain", "all_reduce"], ["explain", "fused_moe"]])
def test_ops_that_do_not_run_are_not_warned_about(words: list[str]) -> None:
    """No collective of several ranks keeps batch invariance; nor does one run here."""
    done = opdock(*words, VLLM_BATCH_INVARIANT="1")
    assert done.returncode == 0 and done.stdout and not done.stderr


@pytest.mark.parametrize("op", ["fused_moe", "multi_head_latent_attention"])
def test_every_op_class_can_be_explained_and_switched(op: str) -> None:
    """Also one that this model does not have."""
    assert op in opdock("explain", op).stdout
    done = opdock("generate", "no-such-model", "-p", "x", "--compilation-config", f'{{"custom_ops": ["all", "-{op}"]}}')
    assert done.returncode == 1 and "no-such-model" in done.stderr and op not in done.stderr


def test_no_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The help goes to stderr."""
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and all(name in shown.err for name in cli.COMMANDS)


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """And all of them."""
    assert cli.main(["docter"]) == 2
    assert "Did you mean 'doctor'?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["plugins", "--jso"], ["generate", "x"], ["plugins", "--ir-op-priority.a=b"]])
def test_wrong_usage_ends_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Abbreviations are not guessed: a later option could change their meaning."""
    assert cli.main(words) == 2
    assert "opdock" in capsys.readouterr().err


def test_an_error_is_told_on_stderr_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its text may come from a plugin and is escaped."""

    def run(_: object) -> int:
        raise ConfigError("broken \x1b[2J", who="plugin\u202e", remedy="do this.")

    replace(monkeypatch, run)
    assert cli.main(["plugins"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "ConfigError: broken \\x1b[2J\n  plugin\\u202e\nRemedy: do this.\n"


def test_a_file_that_cannot_be_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system's words say which."""

    def run(_: object) -> int:
        raise PermissionError(13, "Permission denied", "/x/model")

    replace(monkeypatch, run)
    assert cli.main(["plugins"]) == 1
    assert "'/x/model'" in capsys.readouterr().err


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a traceback."""

    def run(_: object) -> int:
        raise KeyboardInterrupt

    replace(monkeypatch, run)
    assert cli.main(["plugins"]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_warnings_of_the_library_are_shown_and_the_handler_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, so that JSON stays whole."""

    def run(_: object) -> int:
        logging.getLogger("opdock").warning("beware of %s", "\x07")
        return 0

    replace(monkeypatch, run)
    handlers = list(logging.getLogger("opdock").handlers)
    assert cli.main(["plugins"]) == 0
    assert capsys.readouterr() == ("", "warning: beware of \\x07\n")
    assert logging.getLogger("opdock").handlers == handlers


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    """No traceback, none at exit either."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "opdock", "completion", "bash"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_in_ascii_gets_escapes_in_place_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that cannot be encoded must not end half-way."""

    def run(_: object) -> int:
        sys.stdout.write("naïve\n")
        return 0

    replace(monkeypatch, run)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert cli.main(["plugins"]) == 0
    assert raw.getvalue() == b"na\\xefve\n"


@pytest.mark.parametrize(
    "words", [("plugins",), ("plugins", "--json"), ("doctor",), ("completion", "zsh"), ("--help",)]
)
def test_commands_that_run_no_model_import_no_torch(words: tuple[str, ...]) -> None:
    """Nor rich, whose tables are for terminals."""
    code = (
        "import sys; from opdock.cli import main; main(sys.argv[1:]); "
        "print(sorted({'torch', 'rich', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_module_runs_as_the_command() -> None:
    """``python -m opdock``."""
    done = opdock("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"opdock {__version__}\n", "")
