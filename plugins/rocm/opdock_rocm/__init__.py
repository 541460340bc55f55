"""AMD GPUs for opdock.

``register`` is the entry point: it names the platform class where the probe finds a GPU, and is None to every
host but opdock.
"""

import opdock

__all__ = ["register"]

register = opdock.platform_plugin("opdock_rocm.platform:RocmPlatform", probe="opdock_rocm.probe:probe")
