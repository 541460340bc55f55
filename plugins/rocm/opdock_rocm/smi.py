"""amdsmi, ROCm's own library: facts about the GPUs without a HIP context, asked in a process of its own."""

from __future__ import annotations

import contextlib
from typing import Any

from opdock_rocm import child
from opdock_rocm.gpus import Facts

NO_MODULE = "the module 'amdsmi' is not installed"

_PROGRAM = """
def ask(smi, name, handle):
    try:
        return getattr(smi, name)(handle)
    except Exception:
        return {}
def main():
    try:
        import amdsmi
    except ModuleNotFoundError as err:
        answer["no_module" if err.name == "amdsmi" else "error"] = str(err)
        return
    except Exception as err:
        answer["error"] = f"{type(err).__name__}: {err}"
        return
    try:
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
        answer["gpus"] = [
            [ask(amdsmi, "amdsmi_get_gpu_asic_info", h), ask(amdsmi, "amdsmi_get_gpu_vram_info", h)]
            for h in amdsmi.amdsmi_get_processor_handles()
        ]
        amdsmi.amdsmi_shut_down()
    except Exception as err:
        answer["error"] = " ".join(str(err).split()) or type(err).__name__
def plain(value):
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value if isinstance(value, (int, str)) else str(value)
main()
answer = plain(answer)
"""


class Failure(Exception):
    """amdsmi cannot tell: ``text`` is why; ``missing`` says that it is not installed."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.text, self.missing = text, missing


def all_facts(*, timeout: float = child.TIMEOUT) -> tuple[Facts, ...]:
    """Return the facts about every GPU in the machine, hidden ones too, in the order of the PCI bus.

    Raises: Failure where amdsmi is not there or answers with an error; child.Broken where it hangs or dies.
    """
    return read(child.ask(_PROGRAM, timeout=timeout))


def read(answer: dict[str, Any]) -> tuple[Facts, ...]:
    """Return the facts in an answer; raises Failure."""
    if "no_module" in answer:
        raise Failure(NO_MODULE, missing=True)
    if "error" in answer:
        raise Failure(str(answer["error"]))
    return tuple(_facts(dict(asic), dict(vram)) for asic, vram in answer["gpus"])


def _facts(asic: dict[str, Any], vram: dict[str, Any]) -> Facts:
    serial = str(asic.get("asic_serial", "")).lower().removeprefix("0x")
    gfx = str(asic.get("target_graphics_version", ""))
    return Facts(
        name=str(asic.get("market_name", "")),
        uuid=f"GPU-{serial}" if serial and serial != "n/a" else "",
        total_memory=_number(vram.get("vram_size")) << 20,
        gfx=gfx if gfx.startswith("gfx") else "",
        compute_units=_number(asic.get("num_compute_units")),
    )


def _number(value: Any) -> int:
    """Return a number of amdsmi's, 0 for its ``N/A``."""
    with contextlib.suppress(TypeError, ValueError):
        return int(value)
    return 0
