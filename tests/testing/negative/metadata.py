"""Packages whose metadata is wrong."""

from __future__ import annotations

from negative.base import ABSENT, NAME, Negative

_GROUP = "[vllm.platform_plugins]\n"

NEGATIVES = (
    Negative(
        "requires no opdock",
        "platform.requires_opdock",
        "does not require opdock",
        "a package that was copied from one written for vLLM",
        ABSENT,
        requires=("torch",),
    ),
    Negative(
        "requires another opdock",
        "platform.requires_opdock",
        "built for opdock>=99",
        "a requirement that was not widened for a new release",
        ABSENT,
        requires=("opdock>=99",),
    ),
    Negative(
        "requires opdock for its tests only",
        "platform.requires_opdock",
        "does not require opdock",
        "a requirement that belongs to an extra",
        ABSENT,
        requires=('opdock>=0.1; extra == "test"',),
    ),
    Negative(
        "entry point named cuda",
        "platform.entry_point_name",
        "vLLM looks plugins up by name",
        "a plugin that takes vLLM's own platform away when it declines",
        ABSENT,
        entry_points=f"{_GROUP}cuda = {NAME}:register\n",
        plugin="opdock-good",
    ),
    Negative(
        "entry point to a missing module",
        "platform.entry_point_target",
        "opdock_good.plugin",
        "a module that was renamed, or a package that packages.find leaves out",
        ABSENT,
        entry_points=f"{_GROUP}{NAME} = {NAME}.plugin:register\n",
    ),
    Negative(
        "entry point to a missing function",
        "platform.answers",
        "has no attribute 'registre'",
        "a function that was renamed",
        ABSENT,
        entry_points=f"{_GROUP}{NAME} = {NAME}:registre\n",
    ),
)
