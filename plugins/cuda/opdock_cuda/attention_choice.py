"""The attention backends of this package, and when its own is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from opdock.platforms.interface import DeviceCapability

NAME = "CUDA_ATTN"
PATH = "opdock_cuda.attention:CudaAttentionBackend"
OPTIONAL = {
    "FLASHINFER": "opdock_cuda.flashinfer:FlashInferBackend",
    "FLASH_ATTN": "opdock_cuda.flash_attention:FlashAttentionBackend",
}
"""Backends over libraries that a user installs; each is taken only where it is asked for by name."""


def register() -> None:
    """Register them by name."""
    from opdock.nn.attention import register_backend

    register_backend(NAME, PATH)
    for name, path in OPTIONAL.items():
        register_backend(name, path)


def choose(selected: str | None, config: Any, capability: Callable[[], DeviceCapability | None]) -> str:
    """Return its path, or "" to leave the choice to the host.

    Args:
        selected: the name that was asked for, None for none.
        config: what is needed; None: nothing in particular.
        capability: returns that of the device; asked only where it matters.
    """
    if selected not in (None, NAME):
        return ""
    from opdock_cuda.attention import CudaAttentionBackend as Backend

    if selected == NAME:
        return PATH  # the host says what does not fit
    if Backend.why_not_here("cuda"):
        return ""
    if config is None:
        return PATH
    known = capability() if str(config.kv_cache_dtype).startswith("fp8") else None
    return "" if Backend.validate_configuration(config, known) else PATH
