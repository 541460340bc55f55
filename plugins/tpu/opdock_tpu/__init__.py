"""Google TPUs for opdock.

``register`` is the entry point: it names the platform class where the probe finds a TPU, and is None to every
host but opdock.
"""

import opdock

__all__ = ["register"]

register = opdock.platform_plugin("opdock_tpu.platform:TpuPlatform", probe="opdock_tpu.probe:probe")
"""The platform of TPUs."""
