"""Linear layers with 8-bit floats, on GPUs that do not multiply those of checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from opdock.nn.quantization.kernels.native import NativeScaledLinear
from opdock_rocm import gpus
from opdock_rocm.platform import RocmPlatform

if TYPE_CHECKING:
    from opdock.nn.quantization.spec import LinearSpec


class RocmFloat8Linear(NativeScaledLinear):
    """The native product, for gfx94x, whose 8-bit floats are others, and for GPUs that multiply none.

    The host goes by the compute capability, as NVIDIA counts it: with 9.0 and 9.4 it would take torch's product of
    float8_e4m3fn, which raises on these.
    """

    backend: ClassVar[str] = "rocm"

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str]:
        """Return yes where torch does not multiply float8_e4m3fn."""
        gfx = RocmPlatform.get_gfx()
        if gpus.multiplies_fp8(gfx) and not gpus.is_fnuz(gfx):
            return False, f"{gfx} multiplies float8_e4m3fn: torch's product is faster"
        return True, ""

    @classmethod
    def can_implement(cls, spec: LinearSpec) -> tuple[bool, str]:
        """Return yes for fp8 weights without blocks."""
        return (True, "") if spec.kind == "fp8" else (False, f"{spec.kind} weights")
