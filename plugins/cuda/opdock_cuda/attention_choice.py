"""When the attention backend of this package is taken."""

from __future__ import annotations

from typing import Any

NAME = "CUDA_ATTN"
PATH = "opdock_cuda.attention:CudaAttentionBackend"


def register() -> None:
    """Register it by name."""
    from opdock.nn.attention import register_backend

    register_backend(NAME, PATH)


def choose(selected: str | None, config: Any) -> str:
    """Return its path, or "" to leave the choice to the host.

    Args:
        selected: the name that was asked for, None for none.
        config: what is needed; None: nothing in particular.
    """
    if selected not in (None, NAME):
        return ""
    from opdock_cuda.attention import CudaAttentionBackend as Backend

    if selected == NAME:
        return PATH  # the host says what does not fit
    if Backend.why_not_here("cuda") or (config is not None and Backend.validate_configuration(config)):
        return ""
    return PATH
