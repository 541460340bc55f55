"""Whole layers: what is built on the platform, against the in-tree class on the CPU in float64."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from opdock.config import CompilationConfig, OpdockConfig
from opdock.ir.tolerance import DEFAULT_TOLERANCES
from opdock.journal import Site
from opdock.platforms import configure
from opdock.registry import op_registry, tables
from opdock.testing import oracle
from opdock.testing.check import FACTS, LAYER, REPLACED, CannotRun, Fault, check
from opdock.testing.checks.registration import replacement_signature
from opdock.testing.results import FAILED
from opdock.testing.samples import LAYERS

if TYPE_CHECKING:
    from opdock.testing.kit import Kit
    from opdock.testing.session import Session


def in_tree_config() -> OpdockConfig:
    """Return a configuration under which every layer is the in-tree one, and every IR op native."""
    return OpdockConfig(compilation_config=CompilationConfig(custom_ops=["none", *(f"-{n}" for n in op_registry)]))


def _class(name: str) -> Any:
    if name not in LAYERS:
        raise CannotRun(f"the kit has no sample of op class {name}: test it in the package")
    sample = LAYERS[name]
    return pkgutil.resolve_name(f"{sample.home}:{sample.cls}")


def build(name: str, config: OpdockConfig, seed: int = 7, **others: Any) -> Any:
    """Return the layer that ``config`` builds, with random weights; ``others`` are more of its arguments."""
    with configure.set_current_config(config):
        given = [_value(each) for each in LAYERS[name].build]
        layer = _class(name)(*given, **{key: _value(each) for key, each in others.items()})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            made = torch.randn(parameter.shape, generator=generator, dtype=torch.float32, device="cpu")
            parameter.copy_(made * 0.25)
    return layer.eval()


def _value(argument: Any) -> Any:
    return argument() if inspect.isfunction(argument) else argument


def placed(name: str, config: OpdockConfig, dtype: torch.dtype, device: str, seed: int = 7, **others: Any) -> Any:
    """Return the layer that ``config`` builds, its parameters in ``dtype`` on ``device``; tables keep their dtype."""
    if not LAYERS[name].placed:
        return _to(build(name, config, seed, **others), dtype, device)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return build(name, config, seed, **others)
    finally:
        torch.set_default_dtype(before)


@check("layer.state_dict", kind=REPLACED, needs=("platform.configures",))
def state_dict(kit: Kit, subject: str) -> str:
    """A replaced layer has the in-tree layer's parameters: names, shapes, dtypes, gradients; checkpoints load."""
    _require_fit(kit, subject)
    builds: list[dict[str, Any]] = [{}]
    if "params_dtype" in inspect.signature(_class(subject).__init__).parameters:
        builds.append({"params_dtype": torch.bfloat16})
    for others in builds:
        names = _require_state(subject, others)
    return names


def _require_state(subject: str, others: dict[str, Any]) -> str:
    mine, theirs = (
        {
            name: (tuple(t.shape), t.dtype, t.requires_grad)
            for name, t in build(subject, config, **others).state_dict(keep_vars=True).items()
        }
        for config in (OpdockConfig(), in_tree_config())
    )
    if mine != theirs:
        odd = sorted(n for n in {*mine, *theirs} if mine.get(n) != theirs.get(n))
        raise Fault(
            f"The replacement of {subject} has another state_dict: {', '.join(odd)}.",
            why=[_difference(n, mine.get(n), theirs.get(n)) for n in odd],
            remedy="keep names, shapes and dtypes; make a layout of its own from them once the weights are loaded, "
            "in a buffer with persistent=False.",
        )
    return ", ".join(mine) or "no parameters"


@check("layer.parts", where=FACTS)
def parts(session: Session) -> None:
    """No check of a provider has failed: layers call IR ops, and would be wrong with them."""
    require_none_failed(session, "provider.")


def require_none_failed(session: Session, prefix: str = "") -> None:
    """Raise CannotRun if a check whose name starts with ``prefix`` has failed so far."""
    failed = next((r.id for r in session.report().of(FAILED) if r.check.startswith(prefix)), "")
    if failed:
        raise CannotRun(f"{failed} failed")


def _require_fit(kit: Kit, name: str) -> None:
    """Raise CannotRun where the replacement of an op class cannot be built or called like the in-tree class."""
    for target, _, _ in tables.replacements():
        if getattr(target, "name", None) == name:
            try:
                replacement_signature(kit, target.__name__)
            except Fault as err:
                raise CannotRun(f"registration.replacement_signature[{target.__name__}] failed") from err


_Parameter = tuple[tuple[int, ...], torch.dtype, bool]


def _difference(name: str, mine: _Parameter | None, theirs: _Parameter | None) -> str:
    if mine is not None and theirs is not None and mine[:2] == theirs[:2]:
        return f"{name}: requires_grad is {mine[2]}, in-tree {theirs[2]}"
    told = [f"{found[0]} {found[1]}" if found else "missing" for found in (mine, theirs)]
    return f"{name}: {told[0]}, in-tree {told[1]}"


@check(
    "layer.values",
    kind=LAYER,
    needs=("layer.parts", "layer.state_dict", "platform.activates", "platform.configures", "platform.dtypes_compute"),
)
def layer_values(kit: Kit, subject: str) -> str:
    """The layer agrees with the in-tree one in float64, up to what the in-tree one in its own dtype is off by."""
    device, worst = kit.require_device(), 0.0
    for dtype, others in itertools.product(kit.require_platform().supported_dtypes, ({}, *LAYERS[subject].others)):
        layer = placed(subject, OpdockConfig(), dtype, device, **others)
        own = placed(subject, in_tree_config(), dtype, "cpu", **others)
        truth = placed(subject, in_tree_config(), torch.float64, "cpu", **others).double()
        for number, make in enumerate(LAYERS[subject].calls):
            case = f"{_built(layer)}, call {number}, {dtype}" + "".join(f", {k}={v!r}" for k, v in others.items())
            kit.trying(case)
            written: list[set[int]] = [set(), set(), set()]
            forms: list[list[str]] = [[], [], []]
            got, rounded, exact = (
                _call(one, make, _mover(*where), wrote, form)
                for one, where, wrote, form in zip(
                    (layer, own, truth),
                    ((dtype, device), (dtype, "cpu"), (torch.float64, "cpu")),
                    written,
                    forms,
                    strict=True,
                )
            )
            if written[0] - written[1] and not LAYERS[subject].donates:
                raise Fault(f"It writes argument {min(written[0] - written[1])}, the in-tree layer does not.", who=case)
            worst = max(worst, _require_close(got, rounded, exact, dtype, case))
            if forms[0] != forms[1]:
                raise Fault(f"It returns {forms[0][0]}, the in-tree layer {forms[1][0]}.", who=case)
    return f"largest error {worst:.3g} of what is allowed"


def _built(layer: Any) -> str:
    """Return which class was built, and where it is defined."""
    cls = type(layer)
    method = getattr(cls, str(getattr(layer, "_method", "forward")), cls)
    return f"{cls.__module__}.{cls.__qualname__} ({Site.of(method)})"


def _to(layer: Any, dtype: torch.dtype, device: str) -> Any:
    """Return the layer with parameters in ``dtype``; tables keep theirs."""
    for parameter in layer.parameters():
        parameter.data = parameter.data.to(dtype)
    return layer.to(device)


def _mover(dtype: torch.dtype, device: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.to(dtype).to(device)


def _call(
    layer: Any,
    make: Callable[..., tuple[Any, ...]],
    to: Callable[[torch.Tensor], torch.Tensor],
    written: set[int] | None = None,
    form: list[str] | None = None,
) -> list[Any]:
    """Return the tensors that a call gives.

    The numbers of arguments that it writes are added to ``written``, what it returns in words to ``form``.
    """
    args = make(layer, to)
    before = [a.clone() if isinstance(a, torch.Tensor) else None for a in args]
    with torch.no_grad():
        out = layer(*args)
    if written is not None:
        written |= {n for n, b in enumerate(before) if b is not None and not oracle.same_bits(args[n], b)}
    if form is not None:
        form.append(", ".join(_kind(each) for each in out) + " as a tuple" if isinstance(out, tuple) else _kind(out))
    results: tuple[Any, ...] = oracle.several(out)  # a linear layer also returns its bias, or None
    return [t.cpu() for t in (*results, *_cached(args)) if isinstance(t, torch.Tensor)]


def _cached(args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return what a contiguous cache among the arguments holds after a call, which fills it."""
    from opdock.nn.attention import LayerCache

    caches = [a for a in args if isinstance(a, LayerCache)]
    return [t[:, :, : c._cache.max_len] for c in caches for t in (c._keys, c._values)]


def _kind(value: object) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else type(value).__name__


def _require_close(got: list[Any], own: list[Any], exact: list[Any], dtype: torch.dtype, case: str) -> float:
    """Return the largest error as a share of what is allowed; Fault above one."""
    atol, rtol = DEFAULT_TOLERANCES[dtype]
    if len(got) != len(exact):
        raise Fault(f"It gives {len(got)} tensors, the in-tree layer {len(exact)}.", who=case)
    worst = 0.0
    for number, (mine, theirs, truth) in enumerate(zip(got, own, exact, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise Fault(
                f"It gives {mine.dtype} {tuple(mine.shape)}, the in-tree layer {theirs.dtype} {tuple(theirs.shape)}.",
                who=case,
            )
        if not truth.numel():
            continue
        scale = truth.abs().max()
        allowed = 2 * (theirs.double() - truth).abs().max() + atol + rtol * scale
        error = (mine.double() - truth).abs().nan_to_num(float("inf")).max()
        worst = max(worst, float(error / allowed))
        if error > allowed:
            raise Fault(
                f"Result {number} of the layer is wrong.",
                who=case,
                why=_where(mine, truth, float(allowed)),
                remedy="compare its forward method with the in-tree class's forward_native.",
            )
    return worst


def _where(got: torch.Tensor, truth: torch.Tensor, allowed: float) -> str:
    errors = (got.double() - truth).abs().nan_to_num(float("inf"))
    at = errors.reshape(-1).argmax()
    place = [int(i) for i in torch.unravel_index(at, got.shape)] if got.dim() else []
    values = (float(t.reshape(-1)[at]) for t in (got, truth))
    return "largest error at {}: got {:.6g}, float64 {:.6g}; {:.3g} is allowed".format(place, *values, allowed)


@check("layer.copies", kind=REPLACED, needs=("layer.values",))
def copies(kit: Kit, subject: str) -> None:
    """Copies of a replaced layer, by deepcopy and by pickle, compute what the layer computes."""
    device, dtype = kit.require_device(), kit.require_platform().supported_dtypes[0]
    layer = placed(subject, OpdockConfig(), dtype, device)
    for how, twin in (("copy.deepcopy", copy.deepcopy), ("pickle", _pickled)):
        try:
            other = twin(layer)
        except Exception as err:
            raise Fault(f"The layer cannot be copied with {how}: {type(err).__name__}: {err}") from err
        for make in LAYERS[subject].calls:
            outputs = [_call(each, make, _mover(dtype, device)) for each in (layer, other)]
            if not all(oracle.same_bits(a, b) for a, b in zip(*outputs, strict=True)):
                raise Fault(
                    f"A copy made with {how} computes something else.",
                    remedy="keep nothing outside parameters, buffers and plain attributes.",
                )


@check("layer.weights_anew", kind=REPLACED, needs=("layer.values",))
def weights_anew(kit: Kit, subject: str) -> None:
    """Weights that are copied in after a call count from then on; weight_loader takes what the in-tree one takes."""
    device, dtype = kit.require_device(), kit.require_platform().supported_dtypes[0]
    layer = placed(subject, OpdockConfig(), dtype, device)
    other = placed(subject, OpdockConfig(), dtype, device, seed=8)
    plain = build(subject, in_tree_config())
    calls, to = LAYERS[subject].calls, _mover(dtype, device)
    _call(layer, calls[0], to)
    with torch.no_grad():
        for mine, theirs in zip(layer.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)
    if not all(
        oracle.same_bits(a, b) for a, b in zip(_call(layer, calls[0], to), _call(other, calls[0], to), strict=True)
    ):
        raise Fault(
            "Weights that are loaded after the first call do not count.",
            remedy="derive nothing from a weight in forward that is kept; or derive it anew when the weight changes.",
        )
    if not hasattr(plain, "weight_loader"):
        return
    for name, parameter in layer.named_parameters():
        loaded = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
        layer.weight_loader(parameter, loaded.to(device))
        if not oracle.same_bits(parameter.data, loaded):
            raise Fault(f"weight_loader does not copy a checkpoint's tensor into {name}.")


def _pickled(layer: Any) -> Any:
    stream = io.BytesIO()
    torch.save(layer, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@check("layer.compiled", kind=REPLACED, needs=("layer.values",))
def layer_compiled(kit: Kit, subject: str) -> None:
    """The layer gives the same in compiled code, as one graph."""
    device, dtype = kit.require_device(), kit.require_platform().supported_dtypes[0]
    layer = placed(subject, OpdockConfig(), dtype, device)
    for make in LAYERS[subject].calls:
        torch._dynamo.reset()
        want = _call(layer, make, _mover(dtype, device))
        try:
            got = _call(torch.compile(layer, backend="opdock_eager", fullgraph=True), make, _mover(dtype, device))
        except Exception as err:
            raise Fault(
                f"The layer cannot be compiled: {type(err).__name__}.",
                why=[line for line in str(err).splitlines() if line.strip()][:8],
                remedy="call kernels as torch ops with fake implementations; read no data in forward.",
            ) from err
        if not all(oracle.same_bits(a, b) for a, b in zip(got, want, strict=True)):
            raise Fault("The layer computes something else in compiled code.", remedy="declare what its ops write.")
