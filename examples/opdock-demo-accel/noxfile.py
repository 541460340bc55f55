"""The commands of this package: `nox -s tests`, `nox -s lint`, `nox -s build`.

They run in the Python that runs nox, since the library fits one PyTorch only: install the package there first.
"""

import sys

import nox


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run opdock's conformance kit and the package's own tests with two simulated devices."""
    session.run(sys.executable, "-m", "pytest", *session.posargs, env={"DEMO_ACCEL_DEVICES": "2"})


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style; `-- --fix` repairs."""
    session.run(sys.executable, "-m", "ruff", "check", *session.posargs, ".")
    session.run(sys.executable, "-m", "ruff", "format", *([] if session.posargs else ["--check"]), ".")


@nox.session(venv_backend="none")
def build(session: nox.Session) -> None:
    """Build the wheel into dist/."""
    session.run(sys.executable, "-m", "build", "--wheel", "--no-isolation")
