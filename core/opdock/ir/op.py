"""``IrOp``: one native definition of an op, and the providers that may run in its place."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from opdock import env, journal
from opdock.errors import RegistrationError
from opdock.ir import choice, counter, eager, plan, schema, strict
from opdock.ir.choice import Choice
from opdock.ir.impl import IrOpImpl, Supported
from opdock.ir.inputs import InputGenerator
from opdock.ir.plan import Plan
from opdock.ir.priority import Filtered, expand, filter_priority
from opdock.ir.providers import Providers, refuse_before_kernels
from opdock.ir.schema import NATIVE
from opdock.ir.scopes import Scopes, lock
from opdock.ir.signature import site_of
from opdock.ir.tolerance import Tolerances
from opdock.ir.torch_op import NAMESPACE, TorchOps

logger = logging.getLogger("opdock")
F = TypeVar("F", bound=Callable[..., Any])


class IrOp(Tolerances, InputGenerator):
    """An op of the IR; ``register_op`` makes it and puts it in ``registry``.

    ``fn`` is what model code calls: a generated plain function with the native signature, which has the methods
    of the op as attributes, and the op itself as ``op``.

    Args:
        name: lower-case letters, digits, underscores.
        native: the definition, a Python function with annotations.
        activations: parameters whose memory may be reused; None takes those that begin with ``x``.
        allow_inplace: adds ``fn.maybe_inplace``, to which the activations are given away.
        batch_invariant: whether a row's bits of the native definition do not depend on the other rows.

    Raises: RegistrationError for a definition that no op can have; nothing is left in torch then.
    """

    registry: ClassVar[Mapping[str, IrOp]] = {}

    def __init__(
        self,
        name: str,
        native: Callable[..., Any],
        *,
        activations: Sequence[str] | None = None,
        allow_inplace: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        """Check the definition, then define the torch ops."""
        schema.check_name("Op", name)
        super().__init__(name)
        self.native, self.allow_inplace, self.site = native, allow_inplace, site_of(native)
        self.signature = schema.op_signature(name, native)
        self.schema = schema.schema_of(native, f"op {name!r}")
        self.layout = plan.Layout(name, self.signature)
        self.parameters = self.layout.parameters
        self.tensors = schema.tensor_parameters(self.signature)
        self.activations = tuple(activations or (n for n in self.parameters if n.startswith("x")))
        schema.check_activations(
            name, native, self.signature, self.schema, self.activations, allow_inplace=allow_inplace
        )
        self.activation_indices = tuple(self.parameters.index(n) for n in self.activations)
        self._fake: Callable[..., Any] | None = None
        self._scopes = Scopes(name, self.install)
        self._plans: dict[tuple[tuple[str, ...], bool], tuple[Plan, Filtered]] = {}
        self._said: set[object] = set()
        self._invariant = False
        self.default_names: tuple[str, ...] | None = None
        self.default = self.head = self._scopes.make_plan(NATIVE, (), native, native)
        self.torch_ops = TorchOps.acquire(name, self.schema, allow_inplace=allow_inplace)
        self.torch_op = self.torch_ops.default
        self._providers = Providers(name, self._replan)
        self.impls: Mapping[str, IrOpImpl] = self._providers.view
        try:
            self.fn = self._public_functions()
            self._providers.put(IrOpImpl(self, NATIVE, native, batch_invariant=batch_invariant))
            self.torch_ops.bind(self._run, self._run_fake)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"IrOp('{self.name}')"

    def __str__(self) -> str:
        first = (self.native.__doc__ or "").strip().splitlines()
        return repr(self) + (f" - {first[0]}" if first else "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the op; ``fn`` does the same for less."""
        return self.fn(*args, **kwargs)

    # -- the public functions

    def _public_functions(self) -> Callable[..., Any]:
        public: Any = self._public_function("call", self.name, self.torch_op)
        if self.torch_ops.maybe_inplace is not None:
            qualname = f"{self.name}.maybe_inplace"
            public.maybe_inplace = self._public_function("inplace", qualname, self.torch_ops.maybe_inplace)
            self.native.maybe_inplace = self.native  # type: ignore[attr-defined] # code can run on either namespace
        for attribute in _PUBLIC:
            setattr(public, attribute, getattr(self, attribute))
        public.op = self
        return public  # type: ignore[no-any-return]

    def _public_function(self, kind: str, qualname: str, overload: Any) -> Callable[..., Any]:
        indices = [self.parameters.index(n) for n in self.tensors]

        def slow(*args: Any) -> Any:
            if eager.is_plain([args[i] for i in indices]):
                return made.__globals__["_plan"](*args)
            return overload(*args)

        made = plan.public_function(self.layout, self.tensors, overload, self.head, slow)
        made.__globals__["_scoped"] = plan.scoped_function(self.layout, kind, self._scopes.variable.get, self.default)
        made.__globals__["_counted"] = counter.counted_function(self, kind)
        made.__module__, made.__qualname__, made.__doc__ = self.native.__module__, qualname, self.native.__doc__
        made.__annotations__ = dict(self.native.__annotations__)
        made.torch_op = made.overload = overload  # type: ignore[attr-defined]
        return made

    def _run(self, *args: Any) -> Any:
        return self.fn.__globals__["_plan"](*args)  # under the dispatcher a call is functional

    def _run_fake(self, *args: Any, **kwargs: Any) -> Any:
        return (self._fake or self.native)(*args, **kwargs)

    def install(self) -> None:
        """Put the code of the priority in force behind the public functions; each store is atomic for callers."""
        for public, kind in ((self.fn, "call"), (getattr(self.fn, "maybe_inplace", None), "inplace")):
            if public is not None:
                names = public.__globals__
                names["_scoped"].__globals__["_default"] = self.default
                if counter.active():
                    names["_plan"] = names["_counted"]
                else:
                    names["_plan"] = names["_scoped"] if self._scopes.count else getattr(self.default, kind)

    def watch(self, other: IrOp) -> None:
        """Let code that was compiled with this op follow the priority of ``other`` too, which it may become there."""
        for public in (self.fn, getattr(self.fn, "maybe_inplace", None)):
            if public is not None and other.head not in public.__globals__["_heads"]:
                public.__globals__["_heads"] += (other.head,)

    def close(self) -> None:
        """Take the op out of torch, and its providers out of the journal."""
        self._providers.close()
        self.torch_ops.release()

    # -- registration

    def register_impl(
        self,
        provider: str,
        *,
        supported: Supported = True,
        supports_args: Callable[..., object] | None = None,
        inplace: bool = False,
        functional: Callable[..., Any] | None = None,
        batch_invariant: bool = False,
    ) -> Callable[[Callable[..., Any]], IrOpImpl]:
        """Return a decorator that registers an implementation and returns it as an ``IrOpImpl``.

        The same function again is a no-op, and the function of a reloaded module replaces its former self.

        Args:
            provider: its name: lower-case letters, digits, underscores; not ``native`` or ``unfused``.
            supported: whether it can run in this process: a bool, the reason why not, or a callable that says
                either and is asked once, when the provider is first considered.
            supports_args: takes the native parameters; False, or a string with the reason, means no. It must work
                on fake tensors and read no data.
            inplace: it writes its results into the activations and returns them.
            functional: of one in place, if there is such a kernel: the same, bit for bit, into new tensors. Eager
                calls that keep their inputs run it; without one they clone the activations.
            batch_invariant: a row's bits do not depend on the other rows; ``VLLM_BATCH_INVARIANT=1`` uses no
                provider that does not say so.

        Raises: RegistrationError for a name or promise that cannot hold, SchemaMismatchError for other parameters
            than the native definition's, DuplicateError for a name in use; nothing is registered then.
        """
        schema.check_provider_name(provider)

        def decorate(fn: Callable[..., Any]) -> IrOpImpl:
            fn = getattr(fn, "impl_fn", fn)  # an IrOpImpl: the function was registered elsewhere too
            with lock:
                present = self._providers.already(provider, fn)
                if present is not None:
                    return present
                refuse_before_kernels(self.name, provider)
                schema.check_same_schema(self.name, self.native, self.schema, provider, fn, inplace=inplace)
                if functional is not None:
                    schema.check_same_schema(self.name, self.native, self.schema, provider, functional, inplace=False)
                if supports_args is not None:
                    schema.check_predicate(self.name, provider, supports_args, self.signature)
                if inplace and not self.allow_inplace:
                    raise RegistrationError(
                        f"Inplace implementation cannot be registered for op {self.name} that does not allow inplace.",
                        who=f"provider {provider!r}  {site_of(fn)}",
                        remedy="return new tensors, or register the op with allow_inplace=True.",
                    )
                impl = IrOpImpl(
                    self,
                    provider,
                    fn,
                    supported=supported,
                    supports_args=supports_args,
                    inplace=inplace,
                    functional=functional,
                    batch_invariant=batch_invariant,
                    generation=self._providers.next_generation(provider),
                )
                if env.strict():
                    strict.probe(impl)
                if self.default_names is not None or self._scopes.count:
                    logger.warning(
                        "Warning: registering new impl %s for op %s while priority is set.", provider, self.name
                    )
                self._providers.put(impl)
            return impl

        return decorate

    def replace_native(self, native: Callable[..., Any], *, batch_invariant: bool) -> None:
        """Take the definition of a reloaded module: same schema, perhaps another body."""
        with lock:
            self.native, self.site = native, site_of(native)
            if self.allow_inplace:
                native.maybe_inplace = native  # type: ignore[attr-defined]
            generation = self._providers.next_generation(NATIVE)
            self._providers.put(IrOpImpl(self, NATIVE, native, batch_invariant=batch_invariant, generation=generation))

    def register_fake(self, fn: F) -> F:
        """Use ``fn`` on fake tensors; without one the native definition is used. Returns ``fn``."""
        previous, self._fake = self._fake, fn
        journal.record("IR fake", self.name, lambda: setattr(self, "_fake", previous))
        return fn

    # -- priorities

    def _plan_for(self, names: tuple[str, ...]) -> Plan:
        invariant = env.batch_invariant()
        if (names, invariant) not in self._plans:
            filtered = filter_priority(self.impls, names, invariant=invariant)
            last = filtered.impls[-1]
            tells = (invariant and not last.batch_invariant) or (last.is_native and filtered.impls[1:])
            say = self._say_last if tells else None
            code = [plan.chain(self.layout, filtered.impls, clone=clone, on_last=say) for clone in (True, False)]
            key = ",".join(impl.key for impl in filtered.impls)
            self._plans[names, invariant] = self._scopes.make_plan(key, filtered.impls, *code), filtered
        made, filtered = self._plans[names, invariant]
        if filtered.native_added and self._first_time("appended", names):
            logger.warning(
                "Op %s: No implementation in priority list supports all args, execution fallback to native is "
                "possible. To silence this warning, explicitly add 'native' to the end of the priority list",
                self.name,
            )
        return made

    def _unset_plan(self) -> Plan:
        native = self.native

        def first(*args: Any) -> Any:
            self._say_unset()
            made.call = made.inplace = native
            with lock:
                self.install()
            return native(*args)

        made = self._scopes.make_plan(self.impls[NATIVE].key, (), first, first)
        return made

    def _put_default(self, names: tuple[str, ...] | None) -> None:
        made = self._unset_plan() if names is None else self._plan_for(names)
        self._invariant = env.batch_invariant()
        # The head is what compiled code is guarded on: it stays, and takes over what the default is.
        self.default, self.default_names, self.head.key = made, names, made.key
        self.install()

    def _replan(self) -> None:
        self._plans.clear()
        names = self.default_names
        self._put_default(None if names is None else tuple(n for n in names if n in self.impls) or (NATIVE,))

    def _follow_environment(self) -> None:
        if self.default_names is not None and self._invariant != env.batch_invariant():
            with lock:
                self._put_default(self.default_names)

    def set_default(self, priority: Sequence[str]) -> None:
        """Make ``priority`` the process's order of providers; ``-name`` means the present default without ``name``.

        Compiled code follows. ``VLLM_BATCH_INVARIANT`` is read here, and by ``set_priority``, ``get_priority``,
        ``dispatch`` and ``explain``; a call reads no environment.

        Raises: UnknownNameError for a provider that is not registered; the default is unchanged then.
        """
        with lock:
            self._put_default(expand(self.name, priority, self.default_names or (), self.impls))

    def set_priority(self, priority: Sequence[str]) -> contextlib.AbstractContextManager[None]:
        """Return a context manager inside which ``priority`` holds, for this thread or asyncio task alone.

        It nests; ``-name`` means the process's default without ``name``. Threads that are started inside see the
        default. Compiled code follows.

        Raises: UnknownNameError for a provider that is not registered.
        """
        with lock:
            made = self._plan_for(expand(self.name, priority, self.default_names or (), self.impls))
        return self._scopes.enter(made)

    def current(self) -> Plan:
        """Return the plan that is in force here; its ``key`` changes whenever another provider may be chosen."""
        self._follow_environment()
        return self._scopes.current(self.default)

    def get_priority(self) -> list[str]:
        """Return the providers that are tried here, in order; empty while no priority is set."""
        return [impl.provider for impl in self.current().impls]

    def supported_providers(self) -> list[str]:
        """Return the providers that can run in this process, native included, in order of registration."""
        return [impl.provider for impl in self.impls.values() if impl.supported]

    # -- choosing

    def apply_arg_defaults(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the positional arguments with the defaults of the missing ones."""
        bound = self.signature.bind(*args)
        bound.apply_defaults()
        return bound.args

    def dispatch(self, *args: Any, **kwargs: Any) -> IrOpImpl:
        """Return the implementation that runs for these arguments, real or fake."""
        impls = self.current().impls
        if not impls:
            self._say_unset()
            return self.impls[NATIVE]
        impl = next((i for i in impls[:-1] if i.supports_args(*args, **kwargs)), impls[-1])
        self.say_variant(impl)
        return impl

    def explain(self, *args: Any, **kwargs: Any) -> Choice:
        """Return what runs for these arguments, real or fake, with a verdict for every registered provider."""
        impls = self.current().impls
        left_out = next((f.left_out for p, f in self._plans.values() if p.impls is impls), {})
        return choice.explain(self.impls, impls, left_out, args, kwargs)

    # -- what is said once

    def _first_time(self, *what: object) -> bool:
        if what in self._said:
            return False
        self._said.add(what)
        return True

    def _say_unset(self) -> None:
        if self._first_time("unset"):
            logger.warning("Priority not set for op %s, using native implementation.", self.name)

    def say_variant(self, impl: IrOpImpl) -> None:
        """Warn once of an implementation that runs, and breaks what ``VLLM_BATCH_INVARIANT=1`` asks for."""
        if not impl.batch_invariant and env.batch_invariant() and self._first_time("variant"):
            logger.warning(
                "Op %s: VLLM_BATCH_INVARIANT=1, but %s, which is last in the priority, does not declare "
                "batch_invariant: results may depend on the batch.",
                self.name,
                impl.provider,
            )

    def _say_last(self, args: tuple[Any, ...]) -> None:
        if self.dispatch(*args).is_native and self.current().impls[1:] and self._first_time("fall"):
            tried = [impl.provider for impl in self.current().impls]
            reasons = [f"{v.provider}: {v.reason}" for v in self.explain(*args).verdicts[:-1] if v.provider in tried]
            logger.info("Op %s falls to native for some arguments. %s", self.name, "; ".join(reasons))


_PUBLIC = (  # noqa: SIM905 - one name a line would be twenty lines
    "name activations activation_indices allow_inplace impls torch_op register_impl register_fake "
    "register_input_generator generate_inputs override_tolerance get_tolerance set_default set_priority get_priority "
    "supported_providers apply_arg_defaults dispatch explain"
).split()
__all__ = ["NAMESPACE", "IrOp"]
