"""Packages written for vLLM: what a port needs."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from opdock.platforms.engine_hooks import EngineHooks
from opdock.platforms.hook_check import REMOVED
from opdock.platforms.interface import Platform
from opdock.testing.contract.findings import Finding, Place, finding
from opdock.testing.contract.host import Facts
from opdock.testing.contract.platform_class import PlatformFact
from opdock.testing.contract.porting import Port, port_of
from opdock.testing.contract.replacements import Replacement
from opdock.testing.contract.world import World, host_package, members

OTHERS = frozenset(
    {
        "check_runner_kv_caches_multi_layer",
        "device_control_id_to_physical_device_id",
        "device_id_to_physical_device_id",
        "enable_multi_stream_overlap",
        "get_all_gpu_pci_bus_ids",
        "get_global_graph_pool",
        "get_kv_cache_config_builder_cls",
        "get_mla_prefill_backend_cls",
        "get_pass_manager_cls",
        "get_supported_vit_attn_backends",
        "get_vit_attn_backend",
        "is_arch_support_pdl",
        "is_cumem_allocator_available",
        "logical_device_id_to_visible_device_id",
        "pass_key",
        "register_triton_kernel_overrides",
        "stateless_init_device_torch_dist_pg",
        "supports_mx",
        "validate_environ",
        "visible_device_id_to_physical_device_id",
    }
)
"""Members of vLLM's Platform that are not here."""


@dataclass
class Use:
    """The uses of one name of vLLM."""

    port: Port
    places: list[Place] = field(default_factory=list)


def imports_of(world: World) -> dict[str, Use]:
    """Return every name that the package imports from vLLM, with its places."""
    uses: dict[str, Use] = {}
    for module in world.package.modules():
        for node in module.imports():
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            else:
                base = module.base_of(node)
                names = [base if a.name == "*" else f"{base}.{a.name}" for a in node.names]
            for name in names:
                if name == "vllm" or name.startswith("vllm."):
                    uses.setdefault(name, Use(port_of(name))).places.append(module.at(node))
    return uses


def check(facts: Facts, platforms: Sequence[PlatformFact], replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Yield what a port needs: imports, hooks, replacements."""
    for name, use in sorted(imports_of(facts.world).items()):
        more = f", {len(use.places)} places" if len(use.places) > 1 else ""
        yield finding(
            "port-import", f"{name}: {use.port.shown}{more}", use.places[0], why=use.port.note if use.port.ours else ""
        )
    for fact in platforms:
        if fact.foreign:
            yield from _hooks(facts.world, fact)
    for one in replacements:
        yield from _replacement(facts, one)


def who_calls(name: str) -> str:
    """Return who calls a member of a platform class here, "" for one that no host knows."""
    if name in REMOVED:
        return "gone: " + REMOVED[name]
    if name in vars(EngineHooks):
        return "an engine calls it; opdock itself does not"
    if name in vars(Platform) or name in Platform.__annotations__:
        return "opdock uses it" if _used(name) else "opdock's interface has it; nothing here asks for it yet"
    return "not here: an engine's" if name in OTHERS else ""


@functools.cache
def _used(name: str) -> bool:
    """Return whether the host's source, outside of the interface itself, asks a platform for a member."""
    host = host_package()
    asked = re.compile(rf"\.{name}\b|[\"']{name}[\"']".encode())
    skipped = ("opdock/platforms/interface.py", "opdock/platforms/engine_hooks.py", "opdock/testing/")
    mine = [f for f in host.paths.values() if not f.endswith(skipped[:2]) and skipped[2] not in f]
    return any(asked.search(host.files.read(f)) for f in mine)


def _hooks(world: World, fact: PlatformFact) -> Iterator[Finding]:
    for found in fact.own(world):
        for name, node in members(found.node).items():  # type: ignore[arg-type]
            told = who_calls(name)
            if told and not name.startswith("__"):
                yield finding("port-hook", f"{name}: {told}.", found.module.at(node))


def _replacement(facts: Facts, one: Replacement) -> Iterator[Finding]:
    if not one.base.startswith("vllm."):
        return
    name = one.name if isinstance(one.name, str) else None
    if name is None and one.name is None:
        name = one.base.rpartition(".")[2]
    if name is None or name in ("CustomOp", "PluggableLayer"):
        return
    known = facts.op_classes.get(name)
    here = f"opdock.nn.layers.{name}" if known else "no class of that name here"
    yield finding("port-replacement", f"{name}: {here}.", one.module.at(one.node))
