"""The demo accel for opdock.

``register`` is the entry point. It is None to every host but opdock, and to opdock where the probe finds no
device. Importing the package imports neither PyTorch nor the library: installing it changes nothing.
"""

import opdock

__all__ = ["register"]

register = opdock.platform_plugin(
    "opdock_demo_accel.platform:DemoAccelPlatform",
    probe="opdock_demo_accel.probe:probe",
)
