"""torchax and jax: loading them, or knowing why not. That starts no device: the first tensor makes XLA's client."""

from __future__ import annotations

import functools
import importlib
import logging

from opdock.errors import PlatformError
from opdock_tpu import gaps, probe, torch_build

NAME = "jax"
"""What torchax calls PrivateUse1, torch's one place for a device of another package."""

FREE = "privateuseone"


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what torchax says of each weight that is loaded, and is not so: ``lowering.copy_`` writes to it."""
    return not record.getMessage().startswith("In-place to .data modifications")


@functools.cache
def why_not() -> str:
    """Return why torchax cannot be imported, "" where it is; the words of what it raises where there are any."""
    try:
        import torch

        taken = torch._C._get_privateuse1_backend_name()
        if taken not in (NAME, FREE):
            return f"another package has made PrivateUse1 its device {taken!r}, and a process has room for one"
        unfit = torch_build.why_unfit(torch_build.read(), libtpu=False)
        if unfit:
            return unfit
        gaps.fill(torch.ops.aten)
        jax = importlib.import_module("jax")
        fast_path = torch.backends.mha.get_fastpath_enabled()
        importlib.import_module("torchax")
        logging.getLogger("torchax.tensor").addFilter(_is_news)
        torch.backends.mha.set_fastpath_enabled(fast_path)  # torchax turns it off, for CPU tensors too
        if probe.on_cpu():
            jax.config.update("jax_platforms", "cpu")
    except (ImportError, OSError, RuntimeError, AttributeError) as err:
        return f"torchax cannot be imported: {str(err).splitlines()[0] if str(err) else type(err).__name__}"
    return ""


def load() -> None:
    """Import torchax and jax, and teach torchax this package's operators and opdock's.

    Raises: PlatformError with the reason where that is not possible.
    """
    reason = why_not()
    if reason:
        raise PlatformError(
            f"opdock-tpu cannot run: {reason}.",
            why="Its tensors are torchax's, which needs jax, and the one PrivateUse1 device of a process.",
            remedy=f"{torch_build.INSTALL}; OPDOCK_PLATFORM=cpu runs on the CPU meanwhile.",
        )
    from opdock_tpu import lowering

    lowering.register()
