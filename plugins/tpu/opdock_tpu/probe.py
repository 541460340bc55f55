"""Is there a TPU that this process can use? Asked without torch, jax, or a client of libtpu.

Three outcomes: None, a TPU is there; a reason in words, there is none to use; an error, a TPU is there and its library
is broken, which must not end as a silent run on the CPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping

from opdock.errors import PlatformError
from opdock_tpu import runtime, torch_build, visible


@functools.cache
def probe() -> str | None:
    """Return None where a TPU can be used, else why not; looked for once in a process.

    Raises: PlatformError where libtpu does not answer, or crashes, beside a TPU.
    """
    library, files = runtime.library_path(), runtime.has_device_files()
    return judge(torch_build.read(), runtime.ask, os.environ, library=library, device_files=files)


def judge(
    installed: torch_build.Builds,
    ask: Callable[[str], runtime.Answer],
    environ: Mapping[str, str],
    *,
    library: str = "",
    device_files: bool = False,
) -> str | None:
    """Return None where a TPU can be used, else why not; a pure function of what was read.

    Args:
        installed: versions.
        ask: looks at the PCI bus, and opens the library of a path, "" for none.
        environ: the environment variables.
        library: path of libtpu; "" if none is there.
        device_files: whether files of a TPU's driver are there.

    Raises: PlatformError where libtpu does not answer, or crashes, beside a TPU.
    """
    if visible.stands_in(environ):
        unfit = torch_build.why_unfit(installed, libtpu=False)
        return f"{visible.STAND_IN}=cpu asks for XLA on the CPU, and {unfit}" if unfit else None
    if visible.wants_pathways(environ):
        return _pathways(installed)
    where = "TPU_LIBRARY_PATH" if environ.get("TPU_LIBRARY_PATH") else f"libtpu {installed.libtpu}"
    seen = ask("")
    if seen.broken and device_files:
        raise _broken("The PCI bus cannot be read", seen.broken)
    if seen.broken:
        return f"no TPU was found: the PCI bus cannot be read, {seen.broken}"
    if not seen.chips:
        has = f", and {where} is installed" if library else "; libtpu is not installed either"
        return f"no TPU: none is on the PCI bus{has}"
    what = f"a TPU {seen.generation} is here, and "
    unwanted = visible.leaves_out_tpu(environ) or visible.hides_all(environ)
    if unwanted:
        return f"{what}{unwanted}"
    unfit = torch_build.why_unfit(installed, libtpu=not environ.get("TPU_LIBRARY_PATH"))
    if unfit:
        return f"{what}{unfit}"
    opened = ask(library)
    if opened.broken:
        raise _broken("libtpu does not work", opened.broken)
    if opened.missing:
        return f"{what}{where} cannot be opened ({opened.missing})"
    return None


def _pathways(installed: torch_build.Builds) -> str | None:
    what = f"{visible.PLATFORMS} asks for Pathways, and "
    unfit = torch_build.why_unfit(installed, libtpu=False)
    if unfit:
        return f"{what}{unfit}"
    return None if installed.pathways else f"{what}pathwaysutils is not installed: pip install pathwaysutils"


def _broken(what: str, how: str) -> PlatformError:
    return PlatformError(
        f"{what}: {how}.",
        why="A TPU was looked for in a process of its own, which must end.",
        remedy="restart the machine's TPU runtime; OPDOCK_PLATFORM=cpu runs on the CPU meanwhile.",
    )


def why_not() -> str:
    """Return why no TPU can be used, "" where one can; errors as reasons."""
    try:
        return probe() or ""
    except PlatformError as err:
        return err.what


def on_cpu() -> bool:
    """Return whether XLA's CPU client stands in for a TPU."""
    return visible.stands_in(os.environ)
