"""``IrOp``: one native definition of an op, and the providers that may run in its place."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch.library import Library

from opdock import env, journal
from opdock.errors import DuplicateError, OrderError, RegistrationError
from opdock.ir import counter, plan, priority, tracing_tests
from opdock.ir.choice import Choice, Verdict
from opdock.ir.impl import NATIVE, IrOpImpl, Supported
from opdock.ir.inputs import InputGenerator
from opdock.ir.signature import (
    check_predicate,
    check_same_schema,
    refuse_keyword_only,
    schema_of,
    signature_of,
)
from opdock.ir.tolerance import Tolerances

logger = logging.getLogger("opdock")
F = TypeVar("F", bound=Callable[..., Any])

NAMESPACE = "opdock_ir"
RESERVED_PROVIDERS = (NATIVE, "unfused")
_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
_lock = threading.RLock()


class IrOp(Tolerances, InputGenerator):
    """An op of the IR; ``register_op`` makes it, and ``fn`` is the function that model code calls."""

    registry: ClassVar[Mapping[str, IrOp]]

    def __init__(
        self,
        name: str,
        native: Callable[..., Any],
        *,
        activations: Sequence[str] | None = None,
        allow_inplace: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        """Check the definition, then define the torch op; a refused one leaves nothing behind."""
        _check_name("Op", name)
        super().__init__(name)
        self.native, self.allow_inplace = native, allow_inplace
        self.site, self.__doc__ = journal.Site.of(native), native.__doc__
        refuse_keyword_only(
            inspect.signature(native),
            f"Op {name} has keyword-only arguments which are not currently supported. "
            "Lowering binds arguments by position.",
            f"op {name!r}  {self.site}",
        )
        resolved = signature_of(native, f"op {name!r}")
        self.signature = inspect.signature(native)
        self.parameters = list(self.signature.parameters)
        self._tensors = [n for n, p in resolved.parameters.items() if "Tensor" in str(p.annotation)]
        self.activations = tuple(activations or (n for n in self.parameters if n.startswith("x")))
        self._check_activations()
        self.activation_indices = tuple(self.parameters.index(n) for n in self.activations)
        self.schema = schema_of(native, f"op {name!r}")
        self.impls: dict[str, IrOpImpl] = {NATIVE: IrOpImpl(self, NATIVE, native, batch_invariant=batch_invariant)}
        self._fake: Callable[..., Any] = native
        self._scope: contextvars.ContextVar[plan.Plan] = contextvars.ContextVar(f"{NAMESPACE}.{name}")
        plan_class = type("Plan", (plan.Plan,), {"scoped": property(self._scope.get)})
        self._plan_class: Callable[..., plan.Plan] = plan_class
        self.head = plan_class("")
        self._plans: dict[object, plan.Plan] = {}
        self._scopes = self._serial = 0
        self.said: set[object] = set()  # what was logged once already
        self._library = Library(NAMESPACE, "FRAGMENT")
        try:
            self.fn = self._define("call", name)
            if allow_inplace:
                self.fn.maybe_inplace = self._define("inplace", f"{name}.maybe_inplace")  # type: ignore[attr-defined]
            self._default_names: list[str] = []
            self._put_default([NATIVE])
        except BaseException:
            self._library._destroy()
            raise
        self.native_fn = native
        if allow_inplace:
            native.maybe_inplace = native  # type: ignore[attr-defined] # so that both namespaces read alike
        self.torch_op = getattr(getattr(torch.ops, NAMESPACE), name).default
        for method in _PUBLIC_METHODS:
            setattr(self.fn, method, getattr(self, method))
        self.fn.op, self.fn.impls = self, self.impls  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"IrOp('{self.name}')"

    def __str__(self) -> str:
        first = (self.__doc__ or "").strip().splitlines()
        return repr(self) + (f" - {first[0]}" if first else "")

    def _check_activations(self) -> None:
        unknown = [n for n in self.activations if n not in self._tensors]
        if unknown:
            raise RegistrationError(
                f"Activation {unknown[0]!r} of op {self.name} is no tensor parameter.",
                who=str(self.site),
                remedy=f"name some of {', '.join(self._tensors)}.",
            )
        returned = str(signature_of(self.native, self.name).return_annotation).count("Tensor")
        if self.allow_inplace and returned != len(self.activations):
            raise RegistrationError(
                f"Inplace overload requires the same number of outputs as activations: op {self.name} has {returned} "
                f"outputs and {len(self.activations)} activations.",
                who=str(self.site),
            )

    # -- the torch ops and the public functions

    def _define(self, kind: str, qualname: str) -> Callable[..., Any]:
        # maybe_inplace has the functional schema on purpose: any backend may run it, and only a lowering pass
        # reads its name as "the activations are dead afterwards".
        self._library.define(qualname + self.schema)
        self._library.impl(qualname, self._run_plan, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{qualname}", self._run_fake, lib=self._library)
        packet = getattr(getattr(torch.ops, NAMESPACE), self.name)
        overload = packet.default if kind == "call" else packet.maybe_inplace
        positions = [self.parameters.index(n) for n in self._tensors]

        def slow(*args: Any) -> Any:
            if tracing_tests.is_plain_eager([args[i] for i in positions]):
                return fn.__globals__["_plan"](*args)
            return overload(*args)

        fn = plan.public_function(self.name, self.signature, self._tensors, overload, self.head, slow)
        fn.__globals__["_scoped"] = plan.scoped_function(self.name, self.signature, kind, self._current)
        fn.__globals__["_counted"] = counter.counted_function(self, kind)
        fn.__module__, fn.__doc__, fn.__qualname__ = self.native.__module__, self.native.__doc__, qualname
        fn.__annotations__ = dict(self.native.__annotations__)
        fn.overload = overload  # type: ignore[attr-defined]
        return fn

    def _run_plan(self, *args: Any) -> Any:
        return self.fn.__globals__["_plan"](*args)

    def _run_fake(self, *args: Any, **kwargs: Any) -> Any:
        return self._fake(*args, **kwargs)

    def _install(self) -> None:
        for fn, kind in ((self.fn, "call"), (getattr(self.fn, "maybe_inplace", None), "inplace")):
            if fn is not None:  # one dict store: atomic for every caller
                scope = fn.__globals__
                scope["_plan"] = (
                    scope["_counted"]
                    if counter.active()
                    else scope["_scoped"]
                    if self._scopes
                    else getattr(self._default, kind)
                )

    # -- registration

    def register_impl(
        self,
        provider: str,
        *,
        supported: Supported = True,
        supports_args: Callable[..., object] | None = None,
        inplace: bool = False,
        batch_invariant: bool = False,
    ) -> Callable[[Callable[..., Any]], IrOpImpl]:
        """Return a decorator that registers an implementation and returns it as an ``IrOpImpl``.

        Args:
            provider: its name: lower-case letters, digits, underscores; not ``native`` or ``unfused``.
            supported: whether it can run in this process: a bool, the reason why not, or a callable that says
                either and is asked once, when the provider is first considered.
            supports_args: takes the native parameters; False or a reason means no. It must work on fake tensors
                and read no data.
            inplace: it writes its results into the activations and returns them.
            batch_invariant: a row's bits do not depend on the other rows.

        Raises: RegistrationError, SchemaMismatchError or DuplicateError; nothing is registered then.
        """
        _check_name("Provider", provider)
        if provider in RESERVED_PROVIDERS:
            raise RegistrationError(f"Provider name {provider} is reserved.", remedy="name the library or the vendor.")

        def decorate(fn: Callable[..., Any]) -> IrOpImpl:
            present = self.impls.get(provider)
            if present is not None and journal.same_definition(present.impl_fn, fn):
                if present.impl_fn is fn:
                    return present
            elif present is not None:
                raise DuplicateError(
                    f"Implementation for provider {provider} already registered.",
                    who=f"op {self.name!r}",
                    why=[
                        f"registered at  {present.site}" + (f"  {present.owner}" if present.owner else ""),
                        f"again at       {journal.Site.of(fn)}" + (f"  {o}" if (o := journal.current_owner()) else ""),
                    ],
                    remedy="give one of the two another provider name.",
                )
            tracing_tests.refuse_early_registration(self.name, provider)
            check_same_schema(self.name, self.native, provider, fn)
            if supports_args is not None:
                check_predicate(provider, supports_args, self.signature)
            if inplace and not self.allow_inplace:
                raise RegistrationError(
                    f"Inplace implementation cannot be registered for op {self.name} that does not allow inplace.",
                    who=f"provider {provider!r}  {journal.Site.of(fn)}",
                    remedy="return new tensors.",
                )
            impl = IrOpImpl(
                self,
                provider,
                fn,
                supported=supported,
                supports_args=supports_args,
                inplace=inplace,
                batch_invariant=batch_invariant,
            )
            if env.strict():
                tracing_tests.probe(impl)
            self._add(impl, present)
            return impl

        return decorate

    def _add(self, impl: IrOpImpl, present: IrOpImpl | None) -> None:
        with _lock:
            if self._scopes or self._default_names not in ([], [NATIVE]):
                logger.warning(
                    "Warning: registering new impl %s for op %s while priority is set.",
                    impl.provider,
                    self.name,
                )
            self.impls[impl.provider] = impl
            self._forget_plans()
            journal.record("IR provider", f"{self.name}.{impl.provider}", lambda: self._remove(impl, present))

    def _remove(self, impl: IrOpImpl, present: IrOpImpl | None) -> None:
        with _lock:
            if self.impls.get(impl.provider) is impl:
                if present is None:
                    del self.impls[impl.provider]
                else:
                    self.impls[impl.provider] = present
                self._default_names = [n for n in self._default_names if n in self.impls]
                self._forget_plans()

    def _forget_plans(self) -> None:
        self._serial += 1  # part of the key: compiled code of an old provider of the same name must not be reused
        self._plans.clear()
        self._put_default(self._default_names or [NATIVE])

    def register_fake(self, fn: F) -> F:
        """Use ``fn`` on fake tensors; without it the native definition is used."""
        self._fake = fn
        return fn

    # -- priorities

    def _plan_for(self, names: Sequence[str]) -> plan.Plan:
        names, invariant = tuple(names), env.batch_invariant()
        if (names, invariant) not in self._plans:
            impls, _ = priority.filter_priority(self.name, self.impls, names, invariant=invariant)
            if NATIVE not in names and impls[-1].provider == NATIVE and names not in self.said:
                self.said.add(names)
                logger.warning(
                    "Op %s: No implementation in priority list supports all args, execution fallback to native is "
                    "possible. To silence this warning, explicitly add 'native' to the end of the priority list",
                    self.name,
                )
            codes = [plan.chain(self.name, self.signature, impls, self.activations, clone=c) for c in (True, False)]
            key = ",".join([*(i.provider for i in impls), str(self._serial)])
            self._plans[names, invariant] = self._plan_class(key, impls, *codes)
        return self._plans[names, invariant]

    def _put_default(self, names: Sequence[str]) -> None:
        made = self._plan_for(names)
        self._default, self._default_names, self.head.key = made, list(names), made.key
        self._install()

    def set_default(self, names: Sequence[str]) -> None:
        """Make ``names`` the process's priority; ``-name`` drops one from the priority in force.

        Raises: UnknownNameError for a provider that is not registered; the priority is unchanged then.
        """
        with _lock:
            self._put_default(priority.resolve_drops(self.name, names, self._default_names))

    @contextlib.contextmanager
    def set_priority(self, names: Sequence[str]) -> Iterator[None]:
        """Use ``names`` in this context: this thread or task, and what it calls."""
        made = self._plan_for(priority.resolve_drops(self.name, names, self.get_priority()))
        with _lock:
            token = self._scope.set(made)
            self._scopes += 1
            self._install()
        try:
            yield
        finally:
            with _lock:
                self._scope.reset(token)
                self._scopes -= 1
                self._install()

    def _current(self) -> plan.Plan:
        return self._scope.get(self._default)

    def get_priority(self) -> list[str]:
        """Return the names of the providers that are tried now, in order."""
        return [impl.provider for impl in self._current().impls]

    def supported_providers(self) -> list[str]:
        """Return the providers that can run in this process, in order of registration."""
        return [impl.provider for impl in self.impls.values() if impl.supported]

    # -- choosing

    def apply_arg_defaults(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the positional arguments with the defaults of the missing ones."""
        bound = self.signature.bind(*args)
        bound.apply_defaults()
        return bound.args

    def dispatch(self, *args: Any, **kwargs: Any) -> IrOpImpl:
        """Return the implementation that runs for these arguments; fake tensors will do."""
        for impl in self._current().impls:
            if not impl.refusal(*args, **kwargs):
                return impl
        raise OrderError(f"Op {self.name}: no provider takes these arguments, native included.")

    def explain(self, *args: Any, **kwargs: Any) -> Choice:
        """Return what runs for these arguments, with a reason for every registered provider."""
        names = self._default_names if self._current() is self._default else self.get_priority()
        _, left_out = priority.filter_priority(self.name, self.impls, names, invariant=env.batch_invariant())
        winner, verdicts = None, {}
        for impl in self._current().impls:
            reason = f"{winner.provider} comes before it" if winner else impl.refusal(*args, **kwargs)
            if not reason:
                winner = impl
                reason = "first in the priority that takes these arguments" if len(self.impls) > 1 else "the only one"
                verdicts[impl.provider] = Verdict(impl.provider, chosen=True, reason=reason)
            else:
                verdicts[impl.provider] = Verdict(impl.provider, chosen=False, reason=reason)
        for name, impl in self.impls.items():
            reason = left_out.get(name) or impl.reason or "not in the priority list"
            verdicts.setdefault(name, Verdict(name, chosen=False, reason=reason))
        if winner is None:
            raise OrderError(f"Op {self.name}: no provider takes these arguments, native included.")
        return Choice(winner, tuple(verdicts.values()))


_PUBLIC_METHODS = (
    "register_impl",
    "register_fake",
    "set_default",
    "set_priority",
    "get_priority",
    "supported_providers",
    "apply_arg_defaults",
    "dispatch",
    "explain",
    "register_input_generator",
    "generate_inputs",
    "override_tolerance",
    "get_tolerance",
)


def _check_name(kind: str, name: str) -> None:
    if not _NAME.match(name):
        raise RegistrationError(
            f"{kind} name {name!r} is invalid. Names must start with a letter or underscore, followed by lowercase "
            "letters, underscores, or digits only.",
        )
