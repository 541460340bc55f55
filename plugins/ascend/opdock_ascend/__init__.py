"""Ascend NPUs for opdock.

``register`` is the entry point: it names the platform class where the probe finds an NPU, and is None to every
host but opdock.
"""

import opdock

__all__ = ["register"]

register = opdock.platform_plugin("opdock_ascend.platform:AscendPlatform", probe="opdock_ascend.probe:probe")
