"""Replacements and providers as they are registered: is each of them ever used, and does it fit what it replaces."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from opdock import ir
from opdock.config import OpdockConfig
from opdock.journal import Registration, Site
from opdock.platforms import configure
from opdock.registry import choose_class, switches, tables
from opdock.testing.check import PROVIDER, REPLACEMENT, CannotRun, Fault, check

if TYPE_CHECKING:
    from opdock.testing.kit import Kit

_REGISTERED = ("platform.dispatch_key",)  # the last step that a package without its device passes too


def _replacement(subject: str) -> tuple[type, type, Registration]:
    return next(entry for entry in tables.replacements() if entry[0].__name__ == subject)


@check("registration.replacement_runs", kind=REPLACEMENT, needs=_REGISTERED)
def replacement_runs(kit: Kit, subject: str) -> str:
    """The replacement is built, and the method that the platform binds is its own."""
    target, cls, entry = _replacement(subject)
    platform = kit.require_platform()
    config = OpdockConfig()
    with configure.set_current_config(config):
        choice = choose_class(target, config.compilation_config, platform)
    if choice.chosen is not cls and tables.replacement_of(target) is not cls and not tables.replacement_of(cls):
        raise Fault(f"{cls.__name__} is never built: {choice.reason}.", who=entry.where())
    off = switches.is_switched_off(getattr(target, "name", None), config.compilation_config)
    if off or choice.method not in (None, switches.method_of(platform)):
        raise Fault(
            f"The platform's own configuration switches {cls.__name__} off.",
            who=entry.where(),
            why=[choice.reason, f"custom_ops {', '.join(config.compilation_config.custom_ops)}"],
            remedy="take the switch out of the configuration hooks, or the replacement out of register_oot.",
        )
    faults = [f for f in switches.faults_of_replacements(platform) if f.startswith(f"{cls.__name__} ")]
    if faults:
        raise Fault(faults[0], remedy=f"define {switches.method_of(platform)}.")
    own = [c for c in cls.__mro__ if c not in target.__mro__]
    changed = {name for c in own for name in vars(c) if not (name.startswith("__") and name != "__init__")}
    if not changed - {"name", "_dynamic_arg_dims"}:
        raise Fault(f"{cls.__name__} changes nothing of {target.__name__}.", who=entry.where(), remedy="delete it.")
    return f"{cls.__module__}.{cls.__qualname__}, {choice.method or 'forward'}"


@check("registration.replacement_keeps_the_dispatch", kind=REPLACEMENT, needs=("registration.replacement_runs",))
def replacement_keeps_the_dispatch(kit: Kit, subject: str) -> None:
    """The replacement overrides none of the methods that choose and call a method: switches go on working."""
    target, cls, entry = _replacement(subject)
    bypass = ("__call__", "__new__", "dispatch_forward", "enabled", "_bind", "_forward_method", "__getattribute__")
    for klass in (c for c in cls.__mro__ if c not in target.__mro__):
        found = [name for name in bypass if name in vars(klass)]
        if found:
            raise Fault(
                f"{klass.__name__} overrides {', '.join(found)}: it goes past the dispatch.",
                who=entry.where(),
                remedy="put the code into the method that the platform binds "
                f"({switches.method_of(kit.require_platform())}).",
            )


@check("registration.replacement_signature", kind=REPLACEMENT, needs=("registration.replacement_runs",))
def replacement_signature(kit: Kit, subject: str) -> None:
    """Constructor and forward methods take what the in-tree class's take: models call them alike."""
    target, cls, entry = _replacement(subject)
    pairs = [("__init__", "__init__")]
    if hasattr(cls, "dispatch_forward"):
        names = {n for c in cls.__mro__ if c not in target.__mro__ for n in vars(c) if n.startswith("forward_")}
        pairs += [("forward_native", name) for name in sorted(names)]
    else:
        pairs.append(("forward", "forward"))
    for theirs, mine in pairs:
        reason = misfit(getattr(target, theirs), getattr(cls, mine))
        if reason:
            raise Fault(
                f"{cls.__name__}.{mine} does not take what {target.__name__}.{theirs} takes: {reason}.",
                who=f"{Site.of(getattr(cls, mine))}  {entry.where()}",
                why=[f"in-tree: {inspect.signature(getattr(target, theirs))}"],
                remedy="give it the same parameters, with the same defaults.",
            )


def misfit(base: object, own: object) -> str:
    """Return why a call that fits ``base`` does not fit ``own``, or ""."""
    wanted = list(inspect.signature(base).parameters.values())  # type: ignore[arg-type]
    given = list(inspect.signature(own).parameters.values())  # type: ignore[arg-type]
    if any(p.kind is p.VAR_POSITIONAL for p in given) and any(p.kind is p.VAR_KEYWORD for p in given):
        return ""
    if [p.name for p in given[: len(wanted)]] != [p.name for p in wanted]:
        names = [p.name for p in given]
        lacking = next((p.name for p in wanted if p.name not in names), None)
        return f"{lacking!r} is missing" if lacking else "the order of the parameters differs"
    for theirs, mine in zip(wanted, given, strict=False):
        if theirs.default is not theirs.empty and mine.default is mine.empty:
            return f"{mine.name!r} has no default"
        if theirs.default is not theirs.empty and mine.default != theirs.default:
            return f"the default of {mine.name!r} is {mine.default!r}, in-tree {theirs.default!r}"
    extra = [
        p.name for p in given[len(wanted) :] if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    return f"{extra[0]!r} is required" if extra else ""


@check("registration.provider_is_tried", kind=PROVIDER, needs=("platform.configures",))
def provider_is_tried(kit: Kit, subject: str) -> str:
    """The default priority has the provider, before native and before anything that takes all arguments."""
    op_name, _, name = subject.partition("/")
    op = ir.registry[op_name]
    config = OpdockConfig()
    with configure.set_current_config(config):
        listed = list(config.kernel_config.ir_op_priority[op_name])
    if name not in listed:
        raise Fault(
            f"No priority lists provider {name} of op {op_name}: it never runs.",
            who=op.impls[name].where(),
            why=f"the default priority here is {', '.join(listed)}",
            remedy="in get_default_ir_op_priority: "
            f'IrOpPriorityConfig.with_default(["native"], {op_name}=["{name}", "native"]).',
        )
    for before in listed[: listed.index(name)]:
        impl = op.impls[before]
        if not impl.reason and impl.predicate is None:
            raise Fault(
                f"Provider {name} of op {op_name} is never reached: {before} comes first and takes any arguments.",
                who=op.impls[name].where(),
                why=f"the default priority here is {', '.join(listed)}",
                remedy=f"put {name} before {before}.",
            )
    return ", ".join(listed)


@check("registration.priority_names", needs=("platform.configures",))
def priority_names(kit: Kit, subject: str) -> None:
    """The platform's default priority names ops and providers that exist."""
    if not kit.target.is_platform:
        raise CannotRun("the package has no platform of its own")
    config = OpdockConfig()
    with configure.set_current_config(config):
        default = kit.require_platform().get_default_ir_op_priority(config)
    unknown = [f"op {name}" for name in default if name not in ir.registry]
    known = [name for name in default if name in ir.registry]
    unknown += [f"provider {p} of op {n}" for n in known for p in default[n] if p not in ir.registry[n].impls]
    if unknown:
        raise Fault(
            f"get_default_ir_op_priority lists what is not registered: {', '.join(unknown)}.",
            remedy="correct the names, or register the provider in import_ir_kernels.",
        )


@check("registration.one_way_for_each_op", needs=("platform.configures",))
def one_way_for_each_op(kit: Kit, subject: str) -> None:
    """No op has both a replaced layer, whose method calls no IR op, and a provider: one of them would be in vain."""
    for target, cls, entry in tables.replacements():
        name = getattr(target, "name", "")
        mine = f"{name}/"
        if entry.owner is None or not any(s.startswith(mine) for s in kit.activation["provider"]):
            continue
        if entry.owner.distribution == kit.target.distribution:
            raise Fault(
                f"{cls.__name__} replaces {target.__name__}, and {kit.target.distribution} provides IR op {name} too.",
                who=entry.where(),
                why="the layer runs; the provider runs only where the op is called by itself.",
                remedy="keep the provider: it serves eager and compiled code; or the layer, and drop the provider.",
            )
