"""Is there an AMD GPU that this process can use? Asked without torch and without a HIP context.

Three outcomes: None, a GPU is there; a reason in words, there is none to use; an error, a GPU or its driver is there
and broken, or variables contradict one another: that must not end as a silent run on the CPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opdock.errors import PlatformError
from opdock_rocm import child, kfd, smi, torch_build, visible, wsl
from opdock_rocm.gpus import Facts, in_order


@dataclass(frozen=True)
class Seen:
    """What was found in the machine.

    Args:
        gpus: those in it, in HIP's order; under WSL those that HIP lets the process see.
        by: who said so.
        failure: in words, why nobody can tell.
        broken: whether that is a fault: the driver is there, and does not work.
    """

    gpus: Sequence[Facts] = ()
    by: str = "amdsmi"
    failure: str = ""
    broken: bool = False


@functools.cache
def probe() -> str | None:
    """Return None where a GPU can be used, else why not; looked for once in a process.

    Raises: PlatformError where the driver is there and does not work, or variables contradict one another.
    """
    return judge(look(), torch_build.read(), os.environ)


def judge(seen: Seen, build: torch_build.Build | None, environ: Mapping[str, str]) -> str | None:
    """Return None where a GPU can be used, else why not; a pure function of what was read.

    Args:
        seen: what is in the machine.
        build: what the installed PyTorch was built for; None where none is installed.
        environ: the environment variables.

    Raises: PlatformError where the driver is there and does not work, or variables contradict one another.
    """
    if seen.broken:
        raise PlatformError(
            f"The AMD driver does not work: {seen.by} says {seen.failure!r}.",
            why="The driver's device file is there, so a GPU was meant to be used.",
            remedy="see what amd-smi list says; OPDOCK_PLATFORM=cpu runs on the CPU meanwhile.",
        )
    if seen.failure:
        return seen.failure
    if not seen.gpus:
        return f"no AMD GPU: {seen.by} sees none"
    here = f"{seen.by} sees {len(seen.gpus)} GPU{'s' * (len(seen.gpus) != 1)}"
    if build is None:
        return f"{here}, and PyTorch is not installed"
    if build.hip is None:
        kind = f"for CUDA {build.cuda}" if build.cuda else "without HIP"
        return f"{here}, and PyTorch {build.version} is built {kind}: install a ROCm build of it"
    hidden = "" if seen.by == wsl.RUNTIME else visible.hides_all(environ, seen.gpus)
    return f"{here}, and {hidden}" if hidden else None


@functools.cache
def look() -> Seen:
    """Return what is in the machine, from amdsmi, the driver's files, or under WSL HIP's runtime; in bounded time."""
    if wsl.is_wsl():
        build = torch_build.read()
        if build is None or build.hip is None:
            kind = "is not installed" if build is None else f"{build.version} is built without it"
            return Seen(failure=f"no AMD GPU: under WSL one is found through HIP, and PyTorch {kind}")
        try:
            reason, found = wsl.read(wsl.ask(wsl.paths(build.libraries)))
        except child.Broken as err:
            return Seen(by=wsl.RUNTIME, failure=err.text, broken=True)
        return Seen(found, wsl.RUNTIME, reason and f"no AMD GPU: {wsl.RUNTIME} cannot be used: {reason}")
    if reason := kfd.why_not():
        return Seen(failure=reason)
    counted = kfd.all_facts()
    try:
        return Seen(in_order(smi.all_facts(), counted))
    except smi.Failure as failure:
        if counted:
            return Seen(counted, "the kernel's driver")
        if failure.missing:
            return Seen(failure=f"no AMD GPU: its driver's files name none, and {failure.text}")
        return Seen(failure=failure.text, broken=True)
    except child.Broken as err:
        return Seen(failure=err.text, broken=True)


def why_not() -> str:
    """Return why no GPU can be used, "" where one can; errors as reasons."""
    try:
        return probe() or ""
    except PlatformError as err:
        return err.what
