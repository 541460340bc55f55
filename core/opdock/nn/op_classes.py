"""All op classes of the host's models, wherever they are defined."""

from __future__ import annotations


def register_all() -> None:
    """Import every module of this package that registers an op class: reports and switches then know each by name."""
    import opdock.nn.attention
    import opdock.nn.layers
    import opdock.nn.layers.mla
    import opdock.nn.moe  # noqa: F401 - all register op classes
