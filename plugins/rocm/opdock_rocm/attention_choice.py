"""Which attention backend AMD GPUs get: the host's Triton kernels, where they fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdock_rocm import gpus

NAME = "TRITON_ATTN"
PATH = "opdock.nn.attention.backends.triton:TritonAttentionBackend"


def choose(selected: str | None, config: Any, gfx: Callable[[], str]) -> str:
    """Return the path of the backend, or "" to leave the choice to the host.

    Args:
        selected: the name that was asked for, None for none.
        config: what is needed; None: nothing in particular.
        gfx: returns the architecture of the device; asked only where it matters.
    """
    if selected not in (None, NAME):
        return ""
    from opdock.nn.attention.backends.triton import TritonAttentionBackend as Backend

    if selected == NAME:
        return PATH  # the host says what does not fit
    if Backend.why_not_here("cuda"):
        return ""
    if config is None:
        return PATH
    if str(config.kv_cache_dtype).startswith("fp8") and not gpus.multiplies_fp8(gfx()):
        return ""  # such caches would be converted number by number, by code that was not tried
    return "" if Backend.validate_configuration(config) else PATH
