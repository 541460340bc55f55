"""Environment variables that decide where XLA runs. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "TPU_VISIBLE_CHIPS"
"""Chips that the process may use: numbers, separated by commas. Unset: all. libtpu reads it. Example: ``0,1``."""

OLDER_VARIABLE = "TPU_VISIBLE_DEVICES"
"""What older releases of libtpu call it."""

PLATFORMS = "JAX_PLATFORMS"
"""The platforms that jax may start, the first of which it uses. ``proxy`` among them is Pathways."""

STAND_IN = "OPDOCK_TPU_ON"
"""``cpu``: this package runs on XLA's CPU client, without a TPU: for tests and development, at no useful speed."""


def hides_all(environ: Mapping[str, str]) -> str:
    """Return why the variables hide every chip, "" where they need not: an entry is no number from 0."""
    for name in (VARIABLE, OLDER_VARIABLE):
        value = environ.get(name)
        if value is not None and not value.split(",")[0].strip().isdigit():
            return f"{name}={value!r} hides all of them"
    return ""


def leaves_out_tpu(environ: Mapping[str, str]) -> str:
    """Return why jax is not to use TPUs, "" where it may."""
    value = environ.get(PLATFORMS, "")
    names = _names(value)
    return f"{PLATFORMS}={value!r} leaves TPUs out" if names and "tpu" not in names else ""


def wants_pathways(environ: Mapping[str, str]) -> bool:
    """Return whether TPUs are elsewhere, behind Pathways' proxy."""
    return "proxy" in _names(environ.get(PLATFORMS, ""))


def stands_in(environ: Mapping[str, str]) -> bool:
    """Return whether XLA's CPU client is to stand in for a TPU."""
    return environ.get(STAND_IN, "").strip().lower() == "cpu"


def _names(value: str) -> list[str]:
    return [name.strip().lower() for name in value.split(",") if name.strip()]
