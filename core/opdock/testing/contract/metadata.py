"""The rules about metadata: requirements, entry points, names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from opdock.discovery import entry_points
from opdock.discovery.entry_points import GENERAL_GROUP, GROUPS, HOOK_GROUP, PLATFORM_GROUP, Line
from opdock.discovery.folders import normalise
from opdock.platforms.who_may_run import RESERVED_NAMES
from opdock.testing.contract.findings import NOTE, WARNING, Finding, Place, finding
from opdock.testing.contract.source import Found
from opdock.testing.contract.subject import Subject
from opdock.testing.contract.world import Missing, World


def entries_of(subject: Subject) -> list[Line]:
    """Return the entry points in groups that opdock reads."""
    return [line for line in subject.lines if line.group in GROUPS and line.name and line.value]


def check(subject: Subject, world: World, opdock_version: str) -> Iterator[Finding]:
    """Yield what is wrong with the metadata."""
    at = Place(subject.metadata_file)
    yield from subject.findings
    yield from _groups(subject, at)
    yield from _requirements(subject, at, opdock_version)
    for line in entries_of(subject):
        yield from _entry(subject, world, line, at)
    yield from _taken(subject, at)


def _groups(subject: Subject, at: Place) -> Iterator[Finding]:
    for line in subject.lines:
        right = entry_points.misspelt(line.group)
        if line.value is None and (right or line.group in GROUPS):
            yield finding("entry-point-value", f"The line {line.text!r} in [{line.group}] is no 'name = value'.", at)
        if right and not line.name:
            yield finding(
                "group-misspelt",
                f"{subject.name} declares the group [{line.group}], which nothing reads.",
                at,
                remedy=f"[{right}]",
            )
    if not entries_of(subject) and (subject.lines or subject.metadata_file):
        yield finding(
            "entry-point-none",
            f"{subject.name} declares no entry point in {', '.join(GROUPS)}.",
            at,
            why="opdock finds packages by their entry points alone.",
            remedy=f"[{PLATFORM_GROUP}] for a platform, [{HOOK_GROUP}] for kernels.",
        )


def _requirements(subject: Subject, at: Place, version: str) -> Iterator[Finding]:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import SpecifierSet

    specifiers: list[SpecifierSet] = []
    for text in subject.requires:
        try:
            wanted = Requirement(text.strip())
        except InvalidRequirement as err:
            said = f"The requirement {text!r} cannot be read: {str(err).splitlines()[0]}."
            yield finding("metadata-unreadable", said, at)
            continue
        if wanted.marker is not None and "extra" in str(wanted.marker):
            continue
        name = normalise(wanted.name)
        if name == "opdock":
            specifiers.append(wanted.specifier)
        if name == "torch" and any(s.operator in ("==", "===") and "*" not in s.version for s in wanted.specifier):
            yield finding(
                "torch-pinned",
                f"{subject.name} requires torch{wanted.specifier}.",
                at,
                why="it can be installed beside no package that pins another torch.",
                remedy="torch>=X,<Y; a package with an extension says which builds it has wheels for.",
            )
    if not subject.metadata_file or normalise(subject.name) == "opdock":
        return
    if not specifiers:
        upper = _next_minor(version)
        yield finding(
            "requirement-missing",
            f"{subject.name} does not require opdock.",
            at,
            why="opdock takes it for a package of another host, and runs no code of it.",
            remedy=f"opdock>={version},<{upper}",
        )
        return
    yield from _bounds(subject, SpecifierSet(",".join(map(str, specifiers))), at, version)


def _bounds(subject: Subject, wanted: object, at: Place, version: str) -> Iterator[Finding]:
    from packaging.specifiers import SpecifierSet

    assert isinstance(wanted, SpecifierSet)  # noqa: S101 - for the type checker: packaging is imported late
    operators = {s.operator for s in wanted}
    exact = operators & {"==", "===", "~="}
    missing = [
        word
        for word, found in (("lower", {">", ">="} & operators), ("upper", {"<", "<="} & operators))
        if not found and not exact
    ]
    if missing:
        yield finding(
            "requirement-unbounded",
            f"{subject.name} requires opdock{wanted}, which has no {' and no '.join(missing)} bound.",
            at,
            why="the interface may change with a minor version.",
            remedy=f"opdock>={version},<{_next_minor(version)}",
        )
    if not wanted.contains(version, prereleases=True):
        yield finding(
            "requirement-excludes",
            f"{subject.name} requires opdock{wanted}; this is opdock {version}.",
            at,
            why="opdock does not run it.",
            remedy=f"check it against opdock {version} and widen the requirement.",
        )


def _next_minor(version: str) -> str:
    major, minor = ([*version.split("."), "0", "0"])[:2]
    return f"{major}.{int(minor) + 1 if minor.isdecimal() else 1}"


def _entry(subject: Subject, world: World, line: Line, at: Place) -> Iterator[Finding]:
    module, colon, attribute = (p.strip() for p in (line.value or "").partition(":"))
    names = [*module.split("."), *(attribute.split(".") if colon else [])]
    who = f"{line.name} = {line.value}"
    if not all(n.isidentifier() for n in names):
        yield finding("entry-point-value", f"{who!r} is not of the form 'name = package.module:attribute'.", at)
        return
    if line.name.lower() in RESERVED_NAMES and line.group == PLATFORM_GROUP:
        yield finding(
            "entry-point-reserved",
            f"The platform plugin is named {line.name!r} like a built-in of vLLM.",
            at,
            why="where both are installed, vLLM takes the name for its own platform.",
            remedy=f"name it after the package: {normalise(subject.name).replace('-', '_')}.",
        )
    if line.group in (PLATFORM_GROUP, GENERAL_GROUP) and not attribute:
        yield finding("entry-point-value", f"{who!r} names a module; [{line.group}] needs a function.", at)
    if not world.package.has(module):
        yield finding(
            "entry-point-dangling",
            f"{who!r}: {subject.name} does not ship module {module}.",
            at,
            why=_elsewhere(subject, module),
            remedy=f"ship it, or name one of {', '.join(sorted(world.package.tops)) or 'the modules of the package'}.",
        )
        return
    if not attribute or module in world.package.extensions or world.package.module(module) is None:
        return
    found = world.find(f"{module}.{attribute}")
    if isinstance(found, Missing):
        from opdock.errors import nearest

        close = nearest(found.name, found.module.bindings)
        yield finding(
            "entry-point-attribute",
            f"{who!r}: {found.module.name} has no attribute {found.name!r}.",
            Place(found.module.file),
            remedy=f"did you mean {close}?" if close else f"define {found.name} there.",
        )


def _elsewhere(subject: Subject, module: str) -> str:
    from opdock.discovery import locating

    try:
        spec = locating.find_spec(module)
    except Exception:  # noqa: BLE001 - a finder of somebody else's
        return ""
    if spec is None or not spec.origin or spec.origin.startswith(subject.path):
        return "" if spec is None else "its record does not list it."
    owner = locating._owner(spec.origin, module)
    return f"the module of that name here belongs to {owner or 'something else'} ({spec.origin})."


def _taken(subject: Subject, at: Place) -> Iterator[Finding]:
    from opdock.discovery import metadata

    mine = {(line.group, line.name) for line in entries_of(subject)}
    if not mine:
        return
    for other in metadata.scan().candidates:
        if (other.group, other.name) in mine and normalise(other.dist.name) != normalise(subject.name):
            foreign = other.dist.requires_opdock is None
            yield finding(
                "entry-point-taken",
                f"{other.dist.name} {other.dist.version} has an entry point {other.name!r} in [{other.group}] too.",
                at,
                why="vLLM keeps the last one silently."
                if foreign
                else "opdock refuses both: which one would run depends on the order of folders.",
                remedy=f"name it after the package: {normalise(subject.name).replace('-', '_')}.",
                level=NOTE if foreign else WARNING,
            )


def definition_of(world: World, line: Line) -> Found | None:
    """Return what an entry point names, where text can tell."""
    module, _, attribute = (p.strip() for p in (line.value or "").partition(":"))
    found = world.find(f"{module}.{attribute}" if attribute else module)
    return found if isinstance(found, Found) and isinstance(found.node, ast.AST) else None
