"""When the attention backend of this package is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opdock.platforms.interface import DeviceCapability

NAME = "CUDA_ATTN"
PATH = "opdock_cuda.attention:CudaAttentionBackend"


def register() -> None:
    """Register it by name."""
    from opdock.nn.attention import register_backend

    register_backend(NAME, PATH)


def choose(selected: str | None, config: Any, capability: DeviceCapability | None) -> str:
    """Return its path, or "" to leave the choice to the host.

    Args:
        selected: the name that was asked for, None for none.
        config: what is needed.
        capability: of the device.
    """
    if selected not in (None, NAME):
        return ""
    from opdock_cuda.attention import CudaAttentionBackend as Backend

    if selected is None and (Backend.why_not_here("cuda") or Backend.validate_configuration(config, capability)):
        return ""
    return PATH
