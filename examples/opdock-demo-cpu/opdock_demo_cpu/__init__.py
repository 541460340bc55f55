"""The demo cpu for opdock. Importing the package imports no PyTorch: installing it changes nothing."""

import opdock

__all__ = ["register"]

register = opdock.platform_plugin(
    "opdock_demo_cpu.platform:DemoCpuPlatform",
    probe="opdock_demo_cpu.probe:probe",
)
