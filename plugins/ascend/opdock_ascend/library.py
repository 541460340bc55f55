"""torch_npu: loading it, or knowing why not. Importing it registers its operators; it starts no driver."""

from __future__ import annotations

import functools
import importlib
import os

from opdock.errors import PlatformError
from opdock_ascend.probe import AUTOLOAD

NAME = "npu"
"""What torch_npu calls PrivateUse1, torch's one place for a device of another package."""

FREE = "privateuseone"


@functools.cache
def why_not() -> str:
    """Return why torch_npu cannot be imported, "" where it is; the loader's words where it has any."""
    # torch would load torch_npu by itself, and where that fails `import torch` fails, for everybody.
    before = os.environ.get(AUTOLOAD)
    os.environ[AUTOLOAD] = "0"
    try:
        import torch

        taken = torch._C._get_privateuse1_backend_name()
        if taken not in (NAME, FREE):
            return f"another package has made PrivateUse1 its device {taken!r}, and a process has room for one"
        importlib.import_module("torch_npu")
    except (ImportError, OSError, RuntimeError) as err:
        return f"torch_npu cannot be imported: {str(err).splitlines()[0] if str(err) else type(err).__name__}"
    finally:
        if before is None:
            os.environ.pop(AUTOLOAD, None)
        else:
            os.environ[AUTOLOAD] = before
    return ""


def load() -> None:
    """Import torch_npu.

    Raises: PlatformError with the reason where that is not possible.
    """
    reason = why_not()
    if reason:
        raise PlatformError(
            f"opdock-ascend cannot run: {reason}.",
            why="Its kernels are torch_npu's, which needs CANN, and the one PrivateUse1 device of a process.",
            remedy=f"`python -c 'import torch_npu'` shows all of it; {AUTOLOAD}=0 lets torch run without torch_npu.",
        )
