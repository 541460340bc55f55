"""When the attention backend of this package is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdock.platforms.enums import DeviceCapability
from opdock_rocm import gpus

NAME = "ROCM_ATTN"
SDPA = "opdock.nn.attention.backends.sdpa:SdpaAttentionBackend"
PATH = "opdock_rocm.attention:RocmAttentionBackend"


def register() -> None:
    """Register it by name."""
    from opdock.nn.attention import register_backend

    register_backend(NAME, PATH)


def choose(selected: str | None, config: Any, gfx: Callable[[], str]) -> str:
    """Return its path where it fits, SDPA's where Triton's kernels are not for this GPU, or "": the host chooses.

    Args:
        selected: the name that was asked for, None for none.
        config: what is needed; None: nothing in particular.
        gfx: returns the architecture of the device; asked only where it matters.
    """
    if selected not in (None, NAME):
        return ""
    from opdock.nn.attention.backends.sdpa import SdpaAttentionBackend as Sdpa
    from opdock_rocm.attention import RocmAttentionBackend as Backend

    if selected == NAME:
        return PATH  # the host says what does not fit
    if config is None or Backend.why_not_here("cuda"):
        return ""
    found = gpus.capability(gfx())
    capability = None if found is None else DeviceCapability(*found)
    if not Backend.validate_configuration(config, capability):
        return PATH
    # The host would take its Triton backend next: the same kernel.
    return "" if Sdpa.validate_configuration(config, capability) else SDPA
