"""An out-of-tree package, installed by pip: chosen, refused, filtered, forced, and seen in the demo's table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLATFORM_GROUP = "vllm.platform_plugins"
WHO = "import opdock\np = opdock.current_platform\ntell([p.device_name, p._enum.name])"
RIVAL = """
from opdock import Platform, PlatformEnum
class RivalPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "rival"
    device_type = "cpu"
def register():
    return "opdock_rival.RivalPlatform"
"""


def _generate(env: Any, *more: str, **environ: str) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    done = env.opdock("generate", "smollm2", "-p", "The sky is", "--max-tokens", "4", "--json", *more, **environ)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["new_tokens"] == 4 and told["text"]
    return told, {(row["level"], row["op"]): row for row in told["served"]}


def test_b17_a_package_is_chosen_over_the_cpu_and_gone_when_it_is_uninstalled(
    env: Any, install: Callable[..., None], acme_wheel: Path
) -> None:
    """One active out-of-tree platform wins over any built-in one."""
    assert env.told(WHO) == ["cpu", "CPU"]
    install(acme_wheel)
    assert env.told(WHO) == ["acme", "OOT"]
    env.pip("uninstall", "--yes", "opdock-acme")
    assert env.told(WHO) == ["cpu", "CPU"]


def test_the_replaced_layer_and_the_added_provider_are_in_the_table_of_the_demo(
    env: Any, install: Callable[..., None], acme_wheel: Path
) -> None:
    """The text stays the same: what the package replaces computes the same."""
    plain, rows = _generate(env)
    assert plain["platform"] == "cpu"
    assert rows["layer", "rms_norm"]["served_by"] == "opdock.nn.layers.layernorm.RMSNorm"
    assert rows["ir", "silu_and_mul"]["served_by"] == "native"
    install(acme_wheel)
    told, rows = _generate(env)
    assert (told["platform"], told["text"]) == ("acme", plain["text"])
    norm, silu = rows["layer", "rms_norm"], rows["ir", "silu_and_mul"]
    assert (norm["served_by"], norm["method"]) == ("opdock_acme.layers.AcmeRMSNorm", "forward_oot")
    assert silu["served_by"] == "acme" and silu["calls"] == 4 * 30
    assert rows["layer", "silu_and_mul"]["method"] == "forward_native"
    text = env.opdock("generate", "smollm2", "-p", "The sky is", "--max-tokens", "4").stdout
    assert any(
        line.split()[:3] == ["rms_norm", "opdock_acme.layers.AcmeRMSNorm", "forward_oot"] for line in text.splitlines()
    )
    assert any(line.split()[:4] == ["silu_and_mul", "IR", "op", "acme"] for line in text.splitlines())


def test_a_user_takes_the_vendors_layer_and_provider_out_of_the_demo(
    env: Any, install: Callable[..., None], acme_wheel: Path
) -> None:
    """``-op`` builds the in-tree class; ``-provider`` in a priority drops the provider."""
    install(acme_wheel)
    switches = json.dumps({"custom_ops": ["-rms_norm"]})
    told, rows = _generate(env, "--compilation-config", switches, "--ir-op-priority.silu_and_mul=-acme")
    assert told["platform"] == "acme"
    assert rows["layer", "rms_norm"]["served_by"] == "opdock.nn.layers.layernorm.RMSNorm"
    assert rows["layer", "rms_norm"]["method"] == "forward_native"
    assert rows["ir", "silu_and_mul"]["served_by"] == "native"


def test_b17_two_active_packages_are_refused_and_both_distributions_named(
    env: Any, install: Callable[..., None], wheel: Callable[..., Path], acme_wheel: Path
) -> None:
    """Filtering or forcing decides; forcing imports no code of the other one."""
    entry = {PLATFORM_GROUP: {"rival": "opdock_rival:register"}}
    install(acme_wheel, wheel("opdock-rival", {"opdock_rival.py": RIVAL}, entry, version="0.7"))
    refused = env.run("import opdock; opdock.current_platform")
    assert refused.returncode == 1
    for words in (
        "PlatformConflictError: 2 out-of-tree platforms",
        "acme  opdock-acme 1.2.0",
        "rival  opdock-rival 0.7",
    ):
        assert words in refused.stderr
    assert "Remedy: set OPDOCK_PLATFORM=acme (or rival), set VLLM_PLUGINS" in refused.stderr
    doctor = env.opdock("doctor", "--json")
    told = json.loads(doctor.stdout)
    assert doctor.returncode == 3 and told["platform"] is None
    assert {c["distribution"]: c["verdict"] for c in told["candidates"]} == {
        "opdock-acme": "activated",
        "opdock-rival": "activated",
    }
    watch = WHO.replace("tell(", "import sys; tell([m for m in sys.modules if m in ('opdock_acme', 'opdock_rival')] + ")
    assert env.told(watch, VLLM_PLUGINS=" rival , ") == ["opdock_rival", "rival", "OOT"]
    assert env.told(watch, OPDOCK_PLATFORM="acme") == ["opdock_acme", "acme", "OOT"]
    assert env.told(watch, OPDOCK_PLATFORM="opdock-rival") == ["opdock_rival", "rival", "OOT"]
    assert env.told(watch, OPDOCK_PLATFORM="cpu") == ["cpu", "CPU"]
    assert env.told(watch, VLLM_PLUGINS="") == ["cpu", "CPU"]
    assert env.told(watch, VLLM_TARGET_DEVICE="cpu") == ["cpu", "CPU"]
    assert env.told(watch, ACME_DEVICE="away")[-2:] == ["rival", "OOT"]


def test_b05_one_name_in_two_distributions_is_refused_naming_both(
    env: Any, install: Callable[..., None], wheel: Callable[..., Path], acme_wheel: Path
) -> None:
    """Never the last one; the code of neither runs; the distribution's name can still force one."""
    entry = {PLATFORM_GROUP: {"acme": "opdock_rival:register"}}
    install(acme_wheel, wheel("opdock-rival", {"opdock_rival.py": RIVAL}, entry))
    refused = env.run("import opdock; opdock.current_platform")
    assert refused.returncode == 1
    for words in (
        "'acme'",
        "acme  opdock-acme 1.2.0  opdock_acme:register",
        "acme  opdock-rival 1.0  opdock_rival:register",
    ):
        assert words in refused.stderr
    assert "Remedy: pip uninstall opdock-rival" in refused.stderr
    assert env.told(WHO, OPDOCK_PLATFORM="cpu") == ["cpu", "CPU"]


def test_a_forced_platform_that_is_away_absent_or_contradicted_is_an_error_with_its_reason(
    env: Any, install: Callable[..., None], acme_wheel: Path
) -> None:
    """Never the CPU in its place."""
    install(acme_wheel)
    assert env.told(WHO, ACME_DEVICE="away") == ["cpu", "CPU"]
    program = "import opdock; opdock.current_platform"
    away = env.run(program, OPDOCK_PLATFORM="acme", ACME_DEVICE="away")
    assert "PlatformNotFoundError: OPDOCK_PLATFORM=acme: acme declined: ACME_DEVICE says" in away.stderr
    absent = env.run(program, OPDOCK_PLATFORM="acmee")
    assert "no installed distribution has a platform plugin of that name" in absent.stderr
    assert "Did you mean 'acme'?" in absent.stderr
    clash = env.run(program, OPDOCK_PLATFORM="acme", VLLM_PLUGINS="other")
    assert "OPDOCK_PLATFORM=acme and VLLM_PLUGINS=other contradict each other" in clash.stderr
    assert all(done.returncode == 1 and "Remedy:" in done.stderr for done in (away, absent, clash))


KERNELS = """
import opdock, torch
from opdock import ir

@opdock.hookimpl
def import_ir_kernels():
    @ir.ops.silu_and_mul.register_impl("fastsilu")
    def fastsilu(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

@opdock.hookimpl
def default_ir_op_priority(platform, config):
    return {"silu_and_mul": ["fastsilu"]} if platform.device_type == "cpu" else None
"""


def test_a_kernels_only_package_adds_a_provider_to_the_cpu_platform(
    env: Any, install: Callable[..., None], wheel: Callable[..., Path]
) -> None:
    """It brings no platform; its hooks extend the one that is chosen, and VLLM_PLUGINS filters it too."""
    entry = {"opdock.plugins": {"fastsilu": "opdock_fastsilu"}}
    install(wheel("opdock-fastsilu", {"opdock_fastsilu.py": KERNELS}, entry))
    told, rows = _generate(env)
    assert told["platform"] == "cpu"
    assert rows["ir", "silu_and_mul"]["served_by"] == "fastsilu"
    assert rows["layer", "silu_and_mul"]["served_by"] == "opdock.nn.layers.activation.SiluAndMul"
    _, rows = _generate(env, VLLM_PLUGINS="")
    assert rows["ir", "silu_and_mul"]["served_by"] == "native"
    _, rows = _generate(env, "--ir-op-priority.silu_and_mul=-fastsilu")
    assert rows["ir", "silu_and_mul"]["served_by"] == "native"
