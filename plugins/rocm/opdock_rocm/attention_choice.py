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
    name = gfx()
    found = gpus.capability(name)
    capability = None if found is None else DeviceCapability(*found)
    of_8_bits = str(config.kv_cache_dtype).startswith("fp8")
    if not (of_8_bits and not gpus.multiplies_fp8(name)) and not Backend.validate_configuration(config, capability):
        return PATH
    # The host would take its Triton backend next: the same kernel, and for NVIDIA's memory.
    return "" if Sdpa.validate_configuration(config, capability) else SDPA
