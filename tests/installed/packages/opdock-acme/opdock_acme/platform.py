"""The platform class."""

from __future__ import annotations

from importlib import import_module

from opdock import IrOpPriorityConfig, OpdockConfig, Platform, PlatformEnum


class AcmePlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "acme"
    device_type = "cpu"
    dispatch_key = "CPU"
    api_version = 1

    @classmethod
    def import_ir_kernels(cls) -> None:
        import_module("opdock_acme.providers")

    @classmethod
    def register_oot(cls) -> None:
        import_module("opdock_acme.layers")

    @classmethod
    def get_default_ir_op_priority(cls, config: OpdockConfig) -> IrOpPriorityConfig:
        return IrOpPriorityConfig(silu_and_mul=["acme", "native"])
