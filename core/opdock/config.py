"""The configuration that layers and ops are built under: plain data, checked when it is made.

What depends on the platform is filled in by ``opdock.set_current_config``; after that a configuration is
sealed, so that no two layers of one model are built under different switches.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

from opdock.errors import ConfigError, OrderError, suggest

if TYPE_CHECKING:
    from opdock.platforms.interface import Platform

NATIVE = "native"


class CompilationMode(IntEnum):
    """How a model is compiled."""

    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    OPDOCK_COMPILE = 3


class Sealed:
    """Refuses new values once it is sealed."""

    _sealed = False

    def __setattr__(self, name: str, value: object) -> None:
        """Set ``name``; OrderError when the configuration is in use already."""
        if self._sealed:
            raise _in_use(f"{type(self).__name__}.{name}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete ``name``; OrderError when the configuration is in use already."""
        if self._sealed:
            raise _in_use(f"{type(self).__name__}.{name}")
        object.__delattr__(self, name)

    def seal(self) -> None:
        """Refuse every later change."""
        object.__setattr__(self, "_sealed", True)


def _in_use(what: str) -> OrderError:
    return OrderError(
        f"{what} cannot change: layers are built under this configuration.",
        why="A built layer keeps the method that it bound; a change would reach only some layers.",
        remedy="make a new configuration and build the model again inside it.",
    )


class SealedList(tuple[str, ...]):
    """A list of directives that is in use; changing it is an error."""

    __slots__ = ()

    def append(self, *_: object, **__: object) -> NoReturn:
        """Refuse: see ``Sealed``."""
        raise _in_use("The list of switches")

    extend = remove = insert = pop = clear = sort = reverse = append
    __iadd__ = __imul__ = __setitem__ = __delitem__ = append


@dataclass
class CompilationConfig(Sealed):
    """How the model is compiled, and which op classes use their platform's method.

    Args:
        mode: None means: not compiled.
        backend: name of a torch.compile backend; "" asks the platform.
        custom_ops: directives, one each: at most one base mode ``all`` or ``none``, and ``+op`` or ``-op``
            where op is the registered op name.
        fusions: directives likewise, for the fusions of compiled code: ``all`` (without a base mode too) or
            ``none``, ``+name``, ``-name``.

    Raises: ConfigError for a directive that is not of that form or contradicts another.
    """

    mode: CompilationMode | int | None = None
    backend: str = ""
    custom_ops: list[str] | SealedList = field(default_factory=list)
    fusions: list[str] | SealedList = field(default_factory=list)
    enabled_custom_ops: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    disabled_custom_ops: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check every field."""
        if self.mode is not None:
            try:
                self.mode = CompilationMode(self.mode)
            except ValueError:
                known = ", ".join(f"{m.value} ({m.name})" for m in CompilationMode)
                raise ConfigError(
                    f"mode={self.mode!r} is no compilation mode.", remedy=f"use one of {known}."
                ) from None
        backend: object = self.backend
        if not isinstance(backend, str):
            raise ConfigError(f"backend={backend!r} is not the name of a torch.compile backend.")
        self.custom_ops = _switches("custom_ops", self.custom_ops, "-rms_norm")
        self.fusions = _switches("fusions", self.fusions, "-add_rms_norm")

    @property
    def base_mode(self) -> str | None:
        """``all``, ``none``, or None while it is left to the platform."""
        return next((op for op in self.custom_ops if op in ("all", "none")), None)

    @property
    def compiles(self) -> bool:
        """Whether a model built under this configuration is compiled."""
        return self.mode not in (None, CompilationMode.NONE)

    @property
    def uses_inductor(self) -> bool:
        """Whether inductor generates code for what op classes leave native."""
        return self.compiles and self.backend in ("inductor", "opdock")

    def is_custom_op_enabled(self, op: str) -> bool:
        """Return whether the switches turn ``op`` on."""
        return (self.base_mode == "all" and f"-{op}" not in self.custom_ops) or f"+{op}" in self.custom_ops

    def seal(self) -> None:
        """Refuse every later change, of the list of directives too; again is a no-op."""
        if not self._sealed:
            self.custom_ops, self.fusions = SealedList(self.custom_ops), SealedList(self.fusions)
        super().seal()


def _switches(name: str, given: object, example: str) -> list[str]:
    """Return a list of switches of its own; ConfigError if it is none, or contradicts itself."""
    if not isinstance(given, list | tuple) or not all(isinstance(op, str) for op in given):
        raise ConfigError(f"{name}={given!r} is not a list of strings.", remedy=f'{name}=["all", "{example}"].')
    check_switches(given, name.removesuffix("s").replace("_", " "))
    return list(given)


def check_switches(directives: Sequence[str], kind: str = "custom op") -> None:
    """Raise ConfigError unless the directives are well formed and free of contradictions.

    Args:
        directives: ``all`` or ``none``, ``+name``, ``-name``.
        kind: of what they switch, for messages.
    """
    field_name = f"{kind.replace(' ', '_')}s"
    for op in directives:
        if op not in ("all", "none") and (len(op) < 2 or op[0] not in "+-"):
            raise ConfigError(
                f"Invalid syntax '{op}' for {kind}, must be 'all', 'none', '+op' or '-op' "
                f"(where 'op' is the {'registered op name' if kind == 'custom op' else 'name of a ' + kind})",
                remedy='give one directive for each list item, for example ["none", "+rms_norm"].',
            )
    if sum(op in ("all", "none") for op in directives) > 1:
        raise ConfigError(
            f"{field_name} can contain only one base mode: 'all' or 'none'", remedy="remove one of the two."
        )
    both = sorted({op[1:] for op in directives if op[0] == "+"} & {op[1:] for op in directives if op[0] == "-"})
    if both:
        raise ConfigError(
            f"{field_name} cannot both enable and disable the same operation(s): {', '.join(both)}. "
            "Remove either the '+' or '-' directive",
            remedy=f"keep +{both[0]} or -{both[0]}.",
        )


def parse_priority(op: str, value: object) -> list[str]:
    """Return a priority given as a list or as ``"a,b"``; ConfigError if it is neither."""
    names: list[Any] = value.replace(" ", "").split(",") if isinstance(value, str) else []
    if not isinstance(value, str) and isinstance(value, Iterable):
        names = list(value)
    if not names or not all(isinstance(n, str) and n.strip("-") for n in names):
        raise ConfigError(
            f"The priority of IR op {op!r} is not a list of provider names: {value!r}.",
            remedy=f'give at least one name, for example {op}="native" or {op}="-some_provider".',
        )
    wanted = {n for n in names if n[0] != "-"}
    dropped = {n[1:] for n in names if n[0] == "-"}
    if wanted & dropped or NATIVE in dropped:
        clash = sorted(wanted & dropped) or [NATIVE]
        raise ConfigError(
            f"The priority of IR op {op!r} cannot drop {clash[0]!r}: {', '.join(names)}.",
            why="native is the definition and always last." if clash == [NATIVE] else "It is listed as well.",
            remedy=f"remove -{clash[0]}.",
        )
    return list(dict.fromkeys(names))


def merge_priority(user: Sequence[str], platform: Sequence[str]) -> list[str]:
    """Return the user's providers, then the platform's that the user neither lists nor drops."""
    dropped = {name[1:] for name in user if name.startswith("-")}
    wanted = [name for name in user if not name.startswith("-")]
    return list(dict.fromkeys([*wanted, *(name for name in platform if name not in dropped)]))


class IrOpPriorityConfig(Mapping[str, list[str]]):
    """For each IR op, the names of its providers in the order in which they are tried.

    Any op may be named, out-of-tree ones too; the names are checked once the kernels are imported. ``-name``
    drops a provider that the platform lists. ``default`` is what an op that is not named gets.
    """

    def __init__(
        self, ops: Mapping[str, object] | None = None, /, *, default: Sequence[str] = (), **more: object
    ) -> None:
        """Take the priorities by op name, as a mapping or as keywords."""
        self._sealed = False
        self.default = tuple(default)
        self._ops = {op: parse_priority(op, value) for op, value in {**(ops or {}), **more}.items()}

    @classmethod
    def with_default(cls, default: Sequence[str], /, **ops: object) -> IrOpPriorityConfig:
        """Return priorities where an op that is not named gets a copy of ``default``."""
        return cls(ops, default=parse_priority("default", default))

    def __getitem__(self, op: str) -> list[str]:
        """Return the priority of ``op``, or the default."""
        return list(self._ops.get(op, self.default))

    def __getattr__(self, op: str) -> list[str]:
        """Return ``self[op]``."""
        if op.startswith("_"):
            raise AttributeError(op)
        return self[op]

    def __setattr__(self, op: str, value: object) -> None:
        """Set the priority of ``op``; OrderError when the configuration is in use already."""
        if self.__dict__.get("_sealed", False):
            raise _in_use(f"The priority of {op}")
        if op.startswith("_") or op == "default":
            object.__setattr__(self, op, value)
        else:
            self._ops[op] = parse_priority(op, value)

    def seal(self) -> None:
        """Refuse every later change."""
        self._sealed = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def __repr__(self) -> str:
        return f"IrOpPriorityConfig(default={list(self.default)}, {self._ops})"


@dataclass
class KernelConfig(Sealed):
    """Which kernels are preferred.

    Args:
        ir_op_priority: of the providers of IR ops.
        moe_backend: what computes the experts of a mixture, or ``auto``; checked where a layer is built.
    """

    ir_op_priority: IrOpPriorityConfig = field(default_factory=IrOpPriorityConfig)
    moe_backend: str = "auto"

    def __post_init__(self) -> None:
        """Accept a plain mapping for the priorities."""
        given: Mapping[str, object] = self.ir_op_priority
        if not isinstance(given, IrOpPriorityConfig):
            self.ir_op_priority = IrOpPriorityConfig(given)

    def seal(self) -> None:
        """Refuse every later change, of the priorities too."""
        self.ir_op_priority.seal()
        super().seal()


@dataclass
class OpdockConfig(Sealed):
    """Everything that a model is built under.

    ``platform`` is set, and the rest completed and sealed, by ``opdock.set_current_config``.
    """

    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)
    kernel_config: KernelConfig = field(default_factory=KernelConfig)
    platform: Platform | None = field(default=None, init=False, compare=False)

    def seal(self) -> None:
        """Refuse every later change, of the parts too."""
        self.compilation_config.seal()
        self.kernel_config.seal()
        super().seal()

    @classmethod
    def from_text(cls, compilation: str | None = None, priorities: Mapping[str, object] | None = None) -> OpdockConfig:
        """Make a configuration from a JSON object for ``CompilationConfig`` and priorities by op name.

        Raises: ConfigError for text that is no JSON object or names an unknown field.
        """
        given: Any = {}
        if compilation:
            try:
                given = json.loads(compilation)
            except json.JSONDecodeError as err:
                raise ConfigError(
                    f"The compilation configuration is not JSON: {err}.",
                    why=compilation,
                    remedy="""quote it for the shell, for example '{"custom_ops": ["none", "+rms_norm"]}'.""",
                ) from None
        known = [f.name for f in fields(CompilationConfig) if f.init]
        if not isinstance(given, dict):
            raise ConfigError("The compilation configuration is not a JSON object.", why=str(compilation))
        for name in given:
            if name not in known:
                raise ConfigError(f"The compilation configuration has no field {name!r}.", remedy=suggest(name, known))
        kernels = KernelConfig(IrOpPriorityConfig(priorities))
        return cls(CompilationConfig(**given), kernels)
