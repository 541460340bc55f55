"""The small types of a platform: its kind, its CPU architecture, its device capability."""

from __future__ import annotations

import enum
from typing import NamedTuple


class PlatformEnum(enum.Enum):
    """The kind of a platform; it decides which ``forward_*`` a CustomOp binds."""

    CUDA = enum.auto()
    ROCM = enum.auto()
    TPU = enum.auto()
    XPU = enum.auto()
    CPU = enum.auto()
    OOT = enum.auto()
    UNSPECIFIED = enum.auto()


class CpuArchEnum(enum.Enum):
    """The architecture of the host's CPU."""

    X86 = enum.auto()
    ARM = enum.auto()
    POWERPC = enum.auto()
    S390X = enum.auto()
    RISCV = enum.auto()
    OTHER = enum.auto()
    UNKNOWN = enum.auto()

    @classmethod
    def of(cls, machine: str) -> CpuArchEnum:
        """Return the architecture for what ``platform.machine()`` prints."""
        name = machine.lower()
        if not name:
            return cls.UNKNOWN
        table = {
            ("x86_64", "amd64", "i386", "i686"): cls.X86,
            ("arm", "aarch"): cls.ARM,
            ("ppc",): cls.POWERPC,
            ("s390x",): cls.S390X,
            ("riscv",): cls.RISCV,
        }
        return next((arch for prefixes, arch in table.items() if name.startswith(prefixes)), cls.OTHER)


class DeviceCapability(NamedTuple):
    """A device's compute capability; it compares with another one and with plain pairs."""

    major: int
    minor: int

    def as_version_str(self) -> str:
        """Return for example ``9.0``."""
        return f"{self.major}.{self.minor}"

    def to_int(self) -> int:
        """Return for example 90; ValueError unless the minor number is one digit."""
        if not 0 <= self.minor < 10:
            raise ValueError(f"the minor number {self.minor} is not one digit")
        return self.major * 10 + self.minor
