"""The kit in pytest: ``--opdock-plugin=NAME``, and subclasses of ``Conformance``. Imports nothing heavy until used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from opdock.testing.check import Check
    from opdock.testing.session import Session

_SESSIONS = pytest.StashKey["list[Session]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("opdock", "opdock's conformance kit")
    group.addoption(
        "--opdock-plugin", metavar="NAME", default="", help="check the installed package with this entry point"
    )
    group.addoption(
        "--opdock-grid", choices=("small", "full"), default="small", help="how many inputs are tried (small)"
    )
    group.addoption("--opdock-seed", type=int, default=0, metavar="N", help="of the generated inputs (0)")
    group.addoption(
        "--opdock-timeout",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="for each input of a check (30; 180 in full)",
    )
    group.addoption("--opdock-json", metavar="FILE", default="", help="write the report there")


def pytest_configure(config: pytest.Config) -> None:
    """Take the kit's own suite when a package is named and no tests are."""
    config.stash[_SESSIONS] = []
    if config.option.opdock_plugin and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = [str(Path(__file__).with_name("suite.py"))]


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is checked, and with which seed."""
    option = config.option
    if not option.opdock_plugin:
        return None
    return f"opdock kit: {option.opdock_plugin}, {option.opdock_grid} grid, seed {option.opdock_seed}"


def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> Any:
    """Expand a subclass of Conformance; tests of its own in it are collected as well."""
    from opdock.testing.conformance import Conformance

    if not (isinstance(obj, type) and issubclass(obj, Conformance) and obj is not Conformance):
        return None
    kit = KitClass.from_parent(collector, name=name)
    kit.conformance = obj
    own = any(n.startswith("test") for n in dir(obj))
    return [kit, pytest.Class.from_parent(collector, name=name)] if own else [kit]


class KitClass(pytest.Collector):
    """One subclass of Conformance."""

    conformance: Any

    def collect(self) -> Iterator[pytest.Item]:
        """Ask the package what it has, and yield one item for each check of each subject."""
        from opdock.errors import OpdockError
        from opdock.testing.session import Session
        from opdock.testing.settings import Settings

        wanted, option = self.conformance, self.config.option
        plugin = wanted.plugin or option.opdock_plugin
        if wanted.plugin and option.opdock_plugin and wanted.plugin != option.opdock_plugin:
            return
        if not plugin:
            raise self.CollectError(f"{wanted.__name__} names no plugin: plugin = 'opdock_acme', an entry point.")
        try:
            settings = Settings(
                plugin,
                option.opdock_grid,
                option.opdock_seed,
                option.opdock_timeout,
                dict(wanted.environ),
                wanted.device,
            )
            session = Session(settings, wanted.skips)
            unused = session.unused_skips()
        except OpdockError as err:
            raise self.CollectError(str(err)) from err
        self.config.stash[_SESSIONS].append(session)
        if unused:
            raise self.CollectError(f"These skips match no check: {', '.join(unused)}")
        for check, subject in session.items():
            name = f"{check.name}[{subject}]" if subject else check.name
            yield KitItem.from_parent(self, name=name, session_=session, check=check, subject=subject)


class KitItem(pytest.Item):
    """One check of one subject."""

    def __init__(self, *, session_: Session, check: Check, subject: str, **kwargs: Any) -> None:
        """Keep them."""
        super().__init__(**kwargs)
        self._kit, self._check, self._subject = session_, check, subject

    def runtest(self) -> None:
        """Run it in the child."""
        result = self._kit.run(self._check.name, self._subject)
        if result.status == "failed":
            pytest.fail(f"{self._check.rule}\n{result.message}", pytrace=False)
        if result.status in ("skipped", "not run"):
            pytest.skip(f"{'declared' if result.status == 'skipped' else 'not run'}: {result.message.splitlines()[0]}")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Say where it is."""
        return self.path, None, f"{self.parent.name if self.parent else ''}::{self.name}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was declared, what could not be run, and how long it took."""
    for session in config.stash.get(_SESSIONS, []):
        report = session.report()
        counts = ", ".join(f"{n} {status}" for status, n in report.counts().items() if n)
        terminalreporter.section(f"opdock kit: {report.plugin} ({report.distribution}), on {report.device}")
        terminalreporter.write_line(f"{counts}; {report.grid} grid, seed {report.seed}, {report.seconds:.1f} s")
        for status in ("skipped", "not run"):
            reasons: dict[str, list[str]] = {}
            for result in report.of(status):
                reasons.setdefault(result.message.splitlines()[0] if result.message else "", []).append(result.id)
            for reason, ids in reasons.items():
                terminalreporter.write_line(f"{status}: {reason}")
                terminalreporter.write_line(f"    {', '.join(ids)}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report, and stop the children."""
    import json

    path = session.config.option.opdock_json
    runs = session.config.stash.get(_SESSIONS, [])
    if path and runs:
        told = [run.report().to_dict() for run in runs]
        Path(path).write_text(json.dumps(told[0] if len(told) == 1 else told, indent=1) + "\n", encoding="utf-8")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the children."""
    for session in config.stash.get(_SESSIONS, []):
        session.close()
