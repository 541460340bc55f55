"""What a check in the child is given."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from opdock.testing.check import CannotRun, Fault
from opdock.testing.settings import Settings, Target, find_target

if TYPE_CHECKING:
    from opdock.ir import IrOpImpl
    from opdock.platforms.interface import Platform


class Kit:
    """The platform under check, its device, and the settings.

    Attributes:
        settings: of the run.
        platform: None where there is none.
        activation: what activating told.
        last_input: the input that is being tried, for the message.
    """

    def __init__(self, settings: Settings, trail: int) -> None:
        """Nothing is activated yet; ``trail`` is a file that outlives the process."""
        self.settings, self._trail = settings, trail
        self.platform: Platform | None = None
        self.activation: dict[str, Any] = {}
        self.last_input = ""

    def trying(self, text: str) -> None:
        """Note the input that is tried next: code under check may end the process."""
        self.last_input = text
        os.ftruncate(self._trail, 0)
        os.pwrite(self._trail, text.encode(), 0)

    @cached_property
    def target(self) -> Target:
        """The package."""
        return find_target(self.settings.plugin)

    def require_platform(self) -> Platform:
        """Return the platform; CannotRun without one."""
        if self.platform is None:
            raise CannotRun(f"there is no platform: {self.activation.get('error', '')}")
        return self.platform

    @property
    def device_type(self) -> str:
        """Where tensors are made, whether or not it is there."""
        return self.settings.device or self.require_platform().device_type or "cpu"

    @cached_property
    def _absent(self) -> str:
        import torch

        platform = self.require_platform()
        if self.activation["status"] == "declined" and not self.settings.device:
            return f"{platform.device_name} is not here: {self.activation['error']}"
        try:
            torch.empty(1, device=self.device_type)
        except Exception as err:  # noqa: BLE001 - torch says it in many ways
            return f"no tensor can be made on {self.device_type}: {type(err).__name__}: {err}"
        return ""

    @property
    def has_device(self) -> bool:
        """Whether tensors can be made on the device."""
        return not self._absent

    def require_device(self) -> str:
        """Return the device type; CannotRun where it is not there."""
        if self._absent:
            raise CannotRun(self._absent)
        return self.device_type

    def provider(self, subject: str, *, to_run: bool = True) -> IrOpImpl:
        """Return the provider that a subject ``op/provider`` names; CannotRun if it is to run and cannot here."""
        from opdock import ir

        op, _, name = subject.partition("/")
        impl = ir.registry[op].impls.get(name)
        if impl is None:
            raise Fault(f"Provider {name} of op {op} is gone: it was registered when the platform was activated.")
        if to_run and impl.reason:
            raise CannotRun(f"it says that it is not supported here: {impl.reason}")
        return impl
