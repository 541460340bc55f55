"""Metadata, and what asking the package does besides answering; judged from facts of a fresh interpreter."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from opdock.discovery import loading, metadata
from opdock.platforms.who_may_run import requirement_fault
from opdock.testing.check import FACTS, CannotRun, Fault, check

if TYPE_CHECKING:
    from opdock.testing.session import Session

BREAKS_VLLM = ("cpu", "cuda", "rocm", "tpu", "xpu")
"""Entry-point names of vLLM's own platforms: a plugin of that name that declines hides vLLM's."""

MAX_SECONDS = 10.0
_NAMES = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_CLASS_PATH = re.compile(rf"{_NAMES}[.:]{_NAMES}")


def _platform_only(session: Session) -> dict[str, Any]:
    if not session.target.is_platform:
        raise CannotRun("the package offers hooks for any platform, and none of its own")
    return session.asked


@check("platform.requires_opdock", where=FACTS)
def requires_opdock(session: Session) -> None:
    """The distribution requires opdock, in a range that has this version: without that its code never runs."""
    from opdock import __version__

    if session.target.candidate.dist.requires_opdock is None:
        raise Fault(
            f"{session.target.distribution} does not require opdock: it counts as written for another host.",
            remedy='install_requires = opdock>=0.1,<0.2 (or dependencies = ["opdock>=0.1,<0.2"]).',
        )
    reason = requirement_fault(session.target.candidate, __version__)
    if reason:
        raise Fault(reason, remedy="widen the requirement on opdock, once the kit passes on this version.")


@check("platform.entry_point_name", where=FACTS)
def entry_point_name(session: Session) -> None:
    """The entry point has a name that does not take away one of vLLM's own platforms."""
    name = session.target.candidate.name
    if session.target.is_platform and name in BREAKS_VLLM:
        raise Fault(
            f"The entry point is named {name!r}, like one of vLLM's built-in platforms.",
            why="vLLM looks plugins up by name: when this one declines, vLLM's own is not found either.",
            remedy=f"name it opdock_{name} or after the vendor.",
        )
    others = [
        c.dist.name
        for c in metadata.scan().candidates_of(session.target.candidate.group)
        if c.name == name and c.dist.name != session.target.distribution
    ]
    if others:
        raise Fault(f"{', '.join(others)} has an entry point {name!r} too.", remedy="choose a name of your own.")


@check("platform.entry_point_target", where=FACTS)
def entry_point_target(session: Session) -> None:
    """What the entry point names is a module of this distribution."""
    reason = loading.locate(session.target.candidate)
    if reason:
        raise Fault(
            f"{session.target.candidate.value} cannot be loaded: {reason}",
            remedy="correct the entry point or the list of packages, and install again.",
        )


@check("platform.answers", where=FACTS, needs=("platform.entry_point_target",))
def answers(session: Session) -> str:
    """The module is imported and register() answers, in bounded time, with a class path or None."""
    told = session.asked
    if told["status"] != "answered":
        verb = {"raised": "raised", "timeout": "did not answer:", "exited": "ended the process:"}[told["status"]]
        raise Fault(
            f"{session.target.candidate.value} {verb} {told['error']}",
            why=told.get("trace", "").splitlines()[-12:],
            remedy="move what may fail or take long into import_kernels; the probe says None or the reason why not.",
        )
    answer = told["answer"]
    if session.target.is_platform and answer is not None and not _CLASS_PATH.fullmatch(answer.strip()):
        raise Fault(
            f"register() returned {answer}, expected a class path or None.",
            remedy="return it as text, 'package.module:Class': the class is imported once it is chosen.",
        )
    return answer or f"declined: {told['reason']}" if session.target.is_platform else ""


@check("platform.decline_reason", where=FACTS, needs=("platform.answers",))
def decline_reason(session: Session) -> str:
    """A package that declines says why."""
    told = _platform_only(session)
    if told["answer"] is None and not told["reason"]:
        raise Fault(
            "register() returned None and gave no reason.",
            why="opdock doctor can only say that the package declined.",
            remedy='return opdock.decline("no device: ..."), or return the reason from the probe.',
        )
    return str(told["reason"])


@check("platform.no_side_effects", where=FACTS, needs=("platform.answers",))
def no_side_effects(session: Session) -> None:
    """Importing the module and asking it changes nothing in the process: it may not be the one that is chosen."""
    told = session.asked
    found = [f"{what}: {which}" for what, which in told["changes"].items()]
    if told["children"]:
        found.append(f"processes that still run: {', '.join(told['children'])}")
    if found:
        raise Fault(
            "Asking the package changes the process.",
            why=found,
            remedy="do it in import_kernels, which runs only when the platform is chosen.",
        )


@check("platform.asking_is_silent", where=FACTS, needs=("platform.answers",))
def asking_is_silent(session: Session) -> None:
    """Importing the module and asking it prints nothing."""
    if session.asked["printed"]:
        raise Fault(
            f"Asking the package prints {session.asked['printed']} bytes.",
            remedy="use logging; the output belongs to the program.",
        )


@check("platform.asking_starts_no_driver", where=FACTS, needs=("platform.answers",))
def asking_starts_no_driver(session: Session) -> None:
    """Importing the module and asking it initialises no device driver: a process that forks could not use it."""
    if session.asked["drivers"]:
        raise Fault(
            f"Asking the package initialises torch.{', torch.'.join(session.asked['drivers'])}.",
            remedy="look for the device without the driver: a file in /dev, the vendor's management library.",
        )


@check("platform.asking_is_light", where=FACTS, needs=("platform.asking_starts_no_driver",))
def asking_is_light(session: Session) -> str:
    """Importing the module and asking it imports no torch: every process asks every installed package."""
    told = _platform_only(session)
    heavy = [m for m in ("torch", "triton", "jax", "numpy") if m in told["modules"]]
    if heavy:
        raise Fault(
            f"Asking the package imports {', '.join(heavy)} ({told['seconds']:.1f} s, {len(told['modules'])} modules).",
            remedy='name the class as text: opdock.platform_plugin("pkg.platform:Class", probe=...), and let the probe '
            "import nothing heavy.",
        )
    if told["seconds"] > MAX_SECONDS:
        raise Fault(f"Asking the package takes {told['seconds']:.1f} s.", remedy="the probe only looks for the device.")
    return f"{told['seconds']:.2f} s, {len(told['modules'])} modules"


@check("platform.answers_again", where=FACTS, needs=("platform.answers",))
def answers_again(session: Session) -> None:
    """register() gives the same answer when it is called again."""
    told = _platform_only(session)
    if told["again"] != repr(told["answer"]):
        raise Fault(
            "register() gives another answer the second time.",
            why=[f"first {told['answer']!r}", f"then {told['again']}"],
            remedy="keep no state in register() and the probe.",
        )


@check("platform.answers_in_a_fork", where=FACTS, needs=("platform.answers_again",))
def answers_in_a_fork(session: Session) -> None:
    """register() gives the same answer in a forked child."""
    told = _platform_only(session)
    if told["forked"] != repr(told["answer"]):
        raise Fault(
            "register() gives another answer in a forked child.",
            why=[f"here {told['answer']!r}", f"in the child {told['forked']}"],
            remedy="keep no state that belongs to one process.",
        )


@check("platform.silent_to_other_hosts", where=FACTS, needs=("platform.answers",))
def silent_to_other_hosts(session: Session) -> None:
    """register() returns None to anybody but opdock: vLLM in the same environment is left alone."""
    told = _platform_only(session)
    if told["outside"] != "None":
        raise Fault(
            f"register() returns {told['outside']} outside opdock's own selection.",
            why="vLLM reads the same entry points: it would take the class for one of its own.",
            remedy='register = opdock.platform_plugin("pkg.platform:Class", probe=...).',
        )
