"""A provider behind the op: the functional and the in-place call, fake tensors, compiled code, torch's own checks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from opdock.testing import oracle
from opdock.testing.cases import DENSE, LAYOUTS, Case
from opdock.testing.check import PROVIDER, CannotRun, Fault, check
from opdock.testing.trying import Input, dtypes_of, over

if TYPE_CHECKING:
    from opdock.ir import IrOpImpl
    from opdock.testing.kit import Kit


def _copies(made: Input) -> list[Any]:
    """Return the arguments in memory of their own: a call may write them."""
    return [a.clone() if isinstance(a, torch.Tensor) else a for a in made.args.values]


def _few(kit: Kit) -> list[Case]:
    return [Case(tokens, hidden, dtype) for dtype in dtypes_of(kit) for tokens, hidden in ((1, 64), (7, 128))]


@contextlib.contextmanager
def _alone(impl: IrOpImpl) -> Iterator[None]:
    """Try this provider before native, whatever the platform's priority is."""
    with impl.op.fn.set_priority([impl.provider, "native"]), warnings.catch_warnings():  # type: ignore[attr-defined]
        warnings.simplefilter("ignore")
        yield


def _require_equal(got: Any, want: Any, what: str, made: Input, remedy: str) -> None:
    for number, (a, b) in enumerate(zip(oracle.several(got), oracle.several(want), strict=True)):
        if not oracle.same_bits(a, b):
            raise Fault(
                f"Result {number} of {what} differs from the provider's own.", who=f"input: {made.case}", remedy=remedy
            )


@check("provider.overloads", kind=PROVIDER, needs=("provider.values", "provider.mutation", "provider.aliasing"))
def overloads(kit: Kit, subject: str) -> str:
    """The functional call leaves its inputs alone, and every way of calling the op gives the same results."""
    impl = kit.provider(subject)
    public: Any = impl.op.fn

    def test(made: Input) -> None:
        want = impl.func_impl_fn(*_copies(made))
        with _alone(impl):
            for what, fn in (("the call", public), ("the call through torch.ops", public.torch_op)):
                given = _copies(made)
                _require_equal(fn(*given), want, what, made, "keep no state between calls.")
                for name, a, b in zip(impl.op.parameters, given, made.args.values, strict=True):
                    if isinstance(a, torch.Tensor) and not oracle.same_bits(a, b):
                        raise Fault(f"After {what} the input {name} is another.", who=f"input: {made.case}")
            if impl.op.allow_inplace:
                given = _copies(made)
                _require_equal(public.maybe_inplace(*given), want, "maybe_inplace", made, "write every activation.")

    return over(kit, impl, _few(kit), test)


@check("provider.fake", kind=PROVIDER, needs=("provider.values",))
def fake(kit: Kit, subject: str) -> str:
    """On fake tensors it gives what it gives on real ones: shapes, dtypes, strides, device."""
    impl = kit.provider(subject)

    def test(made: Input) -> None:
        mode = FakeTensorMode()
        given = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in made.args.values]
        try:
            with mode:
                promised = oracle.several(impl.func_impl_fn(*given))
        except Exception as err:
            raise Fault(
                f"It cannot run on fake tensors: {type(err).__name__}.",
                who=f"input: {made.case}",
                why=str(err).splitlines()[:3],
                remedy="give the torch op that it calls a fake implementation: torch.library.register_fake.",
            ) from err
        try:
            computed = oracle.several(impl.func_impl_fn(*made.args.values))
        except Exception:
            if made.case.layout == DENSE:
                raise
            return  # provider.layouts tells of it
        for number, (a, b) in enumerate(zip(promised, computed, strict=True)):
            told, real = ((t.dtype, t.device.type, tuple(t.shape), t.stride()) for t in (a, b))
            if told != real:
                raise Fault(
                    f"Result {number} on fake tensors is another than on real ones.",
                    who=f"input: {made.case}",
                    why=[f"fake: {told}", f"real: {real}"],
                    remedy="correct the fake implementation of the torch op that it calls: compiled code believes it.",
                )

    odd = [Case(3, 7, dtype) for dtype in dtypes_of(kit)]
    apart = [Case(6, 64, dtype, layout) for dtype in dtypes_of(kit) for layout in LAYOUTS]
    return over(kit, impl, [*_few(kit), *odd, *apart], test)


@check("provider.compiled", kind=PROVIDER, needs=("provider.fake", "provider.overloads"))
def compiled(kit: Kit, subject: str) -> str:
    """Compiled code runs the provider that eager code runs, with the same bits, in place and not."""
    from opdock.compile.backend import observing

    impl = kit.provider(subject)
    public: Any = impl.op.fn

    def test(made: Input) -> None:
        for name, fn in _programs(impl).items():
            torch._dynamo.reset()
            with _alone(impl), observing() as reports:
                want = fn(*_copies(made))
                try:
                    got = torch.compile(fn, backend="opdock_eager", fullgraph=True)(*_copies(made))
                except Exception as err:
                    raise Fault(
                        f"It cannot be compiled ({name}): {type(err).__name__}.",
                        who=f"input: {made.case}",
                        why=[line for line in str(err).splitlines() if line.strip()][:8],
                        remedy="make the kernel a torch op with a fake implementation; read no data in the provider.",
                    ) from err
                eager = public.dispatch(*made.args.values).provider
            lowered = {choice.provider for report in reports for choice in report.choices}
            if lowered != {eager}:
                raise Fault(
                    f"Compiled code runs {', '.join(lowered) or 'nothing'}, eager code {eager}.",
                    who=f"input: {made.case}",
                    remedy="decide in supports_args by what fake tensors have too.",
                )
            _require_equal(got, want, f"compiled code ({name})", made, "declare every write, and keep no state.")

    told = over(kit, impl, _few(kit)[:: 1 if kit.settings.grid == "full" else 2], test)
    _require_dynamic(kit, impl)
    return told


def _require_dynamic(kit: Kit, impl: IrOpImpl) -> None:
    """Raise Fault if every number of tokens gets a graph of its own, where it is said to be dynamic."""
    from opdock.compile.backend import observing

    public: Any = impl.op.fn
    torch._dynamo.reset()
    program = torch.compile(_programs(impl)["functional"], backend="opdock_eager", fullgraph=True)
    ran = []

    def test(made: Input) -> None:
        given = _copies(made)
        for value in given:
            if isinstance(value, torch.Tensor) and value.dim() and len(value) == made.case.tokens:
                torch._dynamo.maybe_mark_dynamic(value, 0)
        with _alone(impl):
            want = public(*_copies(made))
            _require_equal(program(*given), want, "compiled code for any number of tokens", made, "keep no state.")
        ran.append(made.case)

    dtype = dtypes_of(kit)[0]
    with observing() as reports:
        over(kit, impl, [Case(tokens, 128, dtype) for tokens in (40, 41, 43, 47)], test)
    if len(reports) == len(ran) > 2:  # a predicate may tell sizes apart: small ones from large ones
        raise Fault(
            f"Compiled code is compiled anew for each of {len(ran)} numbers of tokens.",
            why="the fake implementation or supports_args turns a size into a constant: int(x.shape[0]) does",
            remedy="pass sizes on as they are; compare them, and do not convert them.",
        )


def _programs(impl: IrOpImpl) -> dict[str, Callable[..., Any]]:
    public: Any = impl.op.fn
    number = impl.op.activation_indices[0]

    def functional(*args: Any) -> Any:
        return public(*args)

    def in_place(*args: Any) -> Any:
        given = list(args)
        given[number] = given[number] * 1  # an inner value, which the program may give away
        return public.maybe_inplace(*given)

    return {"functional": functional, **({"maybe_inplace": in_place} if impl.op.allow_inplace else {})}


@check("provider.inductor", kind=PROVIDER, needs=("provider.compiled",))
def inductor(kit: Kit, subject: str) -> str:
    """Through Inductor the values stay within the op's tolerance; on the full grid, where the platform uses it."""
    impl = kit.provider(subject)
    if kit.require_platform().get_compile_backend() not in ("inductor", "opdock"):
        raise CannotRun(f"the platform compiles with {kit.require_platform().get_compile_backend()}")
    if kit.settings.grid != "full":
        raise CannotRun("on the full grid only: it takes half a minute")

    def test(made: Input) -> None:
        torch._dynamo.reset()
        with _alone(impl):
            fn = _programs(impl)["functional"]
            got = torch.compile(fn, backend="opdock", fullgraph=True)(*_copies(made))
        results = oracle.several(got)
        oracle.compare(impl.op, impl.provider, results, made.native, made.args.reference, str(made.case))

    return over(kit, impl, [Case(7, 128, dtype) for dtype in dtypes_of(kit)[:1]], test)


@check("provider.opcheck", kind=PROVIDER, needs=("provider.compiled",))
def opcheck(kit: Kit, subject: str) -> str:
    """torch.library.opcheck passes with the provider behind the op: its schema and its fake tensors are true."""
    impl = kit.provider(subject)
    public: Any = impl.op.fn
    utilities = ["test_schema", "test_faketensor"] + ["test_aot_dispatch_dynamic"] * (kit.settings.grid == "full")

    def test(made: Input) -> None:
        with _alone(impl):
            try:
                torch.library.opcheck(public.torch_op, tuple(_copies(made)), test_utils=utilities)
            except Exception as err:
                raise Fault(
                    "torch.library.opcheck fails.",
                    who=f"input: {made.case}",
                    why=[line for line in str(err).splitlines() if line.strip()][-6:],
                    remedy="make the schema and the fake implementation of the torch op that it calls true.",
                ) from err
        with _Seen() as seen:
            impl.func_impl_fn(*_copies(made))
        for op, values in seen.calls:
            _require_own_memory(op, values, str(made.case))

    return over(kit, impl, _few(kit)[1:2], test)


class _Seen(TorchDispatchMode):
    """Notes the torch ops that are called, but for torch's own and the host's, with their arguments.

    Higher-order operators, as launches of Triton kernels are while a mode is on, have no schema: they run unnoted.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, OpOverload) and func.namespace not in ("aten", "prim", "prims", "opdock_ir"):
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def _require_own_memory(op: Any, values: tuple[Any, ...], case: str) -> None:
    """Raise Fault where a schema says that two arguments are one memory, and they are not."""
    held: dict[str, tuple[str, int]] = {}
    for argument, value in zip(op._schema.arguments, values, strict=False):
        if argument.alias_info is None or not isinstance(value, torch.Tensor):
            continue
        for label in argument.alias_info.before_set:
            name, pointer = held.setdefault(label, (argument.name, value.untyped_storage().data_ptr()))
            if pointer != value.untyped_storage().data_ptr():
                raise Fault(
                    f"The schema of {op} gives {name} and {argument.name} one alias, and they are two tensors.",
                    who=f"input: {case}",
                    why=str(op._schema),
                    remedy="a letter for each argument: Tensor(a!) x, Tensor(b!) residual.",
                )
