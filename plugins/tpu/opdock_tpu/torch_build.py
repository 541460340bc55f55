"""Which torch, torchax, jax and libtpu are installed, and whether they fit one another; read from metadata alone."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

TORCH = SpecifierSet(">=2.11,<2.14")
TORCHAX = SpecifierSet("==0.0.13")
JAX = SpecifierSet(">=0.10,<0.11")
"""What this package was written for. Pallas and torchax change their interfaces with each release."""

INSTALL = "pip install 'jax[tpu]==0.10.2' torchax==0.0.13"


@dataclass(frozen=True)
class Builds:
    """Versions of what is installed; None where it is not.

    Args:
        torch, torchax, jax, jaxlib, libtpu: of the distributions.
        pathways: of pathwaysutils.
        wanted_libtpu: the versions of libtpu that this jax was built for; "" if it does not say.
    """

    torch: str | None = None
    torchax: str | None = None
    jax: str | None = None
    jaxlib: str | None = None
    libtpu: str | None = None
    pathways: str | None = None
    wanted_libtpu: str = ""


def read() -> Builds:
    """Return what is installed, importing none of it."""
    found = {name: _version(name) for name in ("torch", "torchax", "jax", "jaxlib", "libtpu")}
    requires = importlib.metadata.requires("jax") if found["jax"] else None
    return Builds(**found, pathways=_version("pathwaysutils"), wanted_libtpu=wanted_libtpu(requires or ()))


def wanted_libtpu(requires: Iterable[str]) -> str:
    """Return the versions of libtpu among the requirements of jax, "" if it names none."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.name == "libtpu":
            return str(requirement.specifier)
    return ""


def why_unfit(builds: Builds, *, libtpu: bool) -> str:
    """Return why these cannot run together, "" where they can; the first fault found.

    Args:
        builds: what is installed.
        libtpu: whether libtpu is needed.
    """
    needed = {"torch": builds.torch, "jax": builds.jax, "jaxlib": builds.jaxlib, "torchax": builds.torchax}
    if libtpu:
        needed["libtpu"] = builds.libtpu
    missing = [name for name, version in needed.items() if version is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return f"{' and '.join(missing)} {verb} not installed: {INSTALL}"
    wanted = {"torch": TORCH, "jax": JAX, "torchax": TORCHAX}
    if libtpu and builds.wanted_libtpu:
        wanted["libtpu"] = SpecifierSet(builds.wanted_libtpu)
    for name, specifier in wanted.items():
        version = needed[name]
        if version is not None and not _in(version, specifier):
            whose = f"jax {builds.jax}" if name == "libtpu" else "opdock-tpu"
            return f"{name} {version} is installed, and {whose} needs {name}{_text(specifier)}"
    if builds.jax != builds.jaxlib:
        return (
            f"jax {builds.jax} and jaxlib {builds.jaxlib} are of different releases: pip install jaxlib=={builds.jax}"
        )
    return ""


def _in(version: str, specifier: SpecifierSet) -> bool:
    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _text(specifier: SpecifierSet) -> str:
    return ",".join(sorted((str(part) for part in specifier), reverse=True))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
