"""A small decoder end to end: prompts, cached steps and compiled code, against native layers on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opdock import ir
from opdock.config import OpdockConfig
from opdock.ir.tolerance import DEFAULT_TOLERANCES
from opdock.platforms import configure
from opdock.testing.check import FACTS, MODEL, Fault, check
from opdock.testing.checks.layers import in_tree_config, require_none_failed
from opdock.testing.oracle import same_bits
from opdock.testing.samples import model_config

if TYPE_CHECKING:
    from opdock.testing.kit import Kit
    from opdock.testing.session import Session

_PROMPT, _STEPS = 9, 5


def _model(name: str, config: OpdockConfig, dtype: torch.dtype, device: str) -> Any:
    from opdock.nn.models.decoder import CausalDecoder

    with configure.set_current_config(config):
        model = CausalDecoder(model_config(name)).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            around = 1.0 if parameter.dim() == 1 else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + around)
            parameter.data = parameter.data.to(dtype)
    return model.to(device)


def _logits(model: Any, tokens: torch.Tensor, device: str, *, forward: Any = None) -> torch.Tensor:
    """Return the logits of a prompt and of the tokens after it, fed one by one through the cache."""
    forward = model if forward is None else forward
    tokens = tokens.to(device)
    positions = torch.arange(len(tokens)).to(device)
    cache, rows = model.new_cache(len(tokens)), []
    with torch.inference_mode():
        for start, end in ((0, _PROMPT), *((i, i + 1) for i in range(_PROMPT, len(tokens)))):
            hidden = forward(tokens[start:end], positions[start:end], cache)
            rows.append(model.compute_logits(hidden).cpu())
    return torch.cat(rows)


def _built(model: Any) -> list[str]:
    """Return the names of the op classes in the model."""
    return sorted({type(module).__name__ for module in model.modules() if hasattr(module, "ir")})


def _tokens() -> torch.Tensor:
    return torch.randint(0, 97, (_PROMPT + _STEPS,), generator=torch.Generator().manual_seed(1))


@check("model.parts", where=FACTS)
def parts(session: Session) -> None:
    """No other check has failed: only then does a whole decoder tell something that they do not."""
    require_none_failed(session)


@check("model.logits", kind=MODEL, needs=("model.parts", "platform.activates", "platform.dtypes_compute"))
def logits(kit: Kit, subject: str) -> str:
    """Logits of a prompt and of cached steps agree with float64, up to twice what native layers are off by."""
    device, told = kit.require_device(), []
    exact = _logits(_model(subject, in_tree_config(), torch.float64, "cpu"), _tokens(), "cpu")
    for dtype in kit.require_platform().supported_dtypes:
        kit.trying(f"{subject} in {dtype}")
        native = _logits(_model(subject, in_tree_config(), dtype, "cpu"), _tokens(), "cpu")
        model = _model(subject, OpdockConfig(), dtype, device)
        with ir.counting() as counter:
            got = _logits(model, _tokens(), device)
        atol, rtol = DEFAULT_TOLERANCES[dtype]
        allowed = 2 * float((native.double() - exact).abs().max()) + atol + rtol * float(exact.abs().max())
        error = float((got.double() - exact).abs().nan_to_num(float("inf")).max())
        if error > allowed:
            raise Fault(
                f"The logits of {subject} are wrong in {dtype}.",
                why=[
                    f"largest error {error:.3g} against float64, {allowed:.3g} is allowed",
                    f"IR ops served by: {', '.join(sorted(f'{op}: {p}' for op, p in dict(counter)))}",
                    f"layers built: {', '.join(_built(model))}",
                ],
                remedy="every op and layer passes alone: look at what holds between them, the cache and strides.",
            )
        told.append(f"{str(dtype).removeprefix('torch.')} {error / allowed:.2f}")
    return f"largest error, as a share of what is allowed: {', '.join(told)}"


@check("model.compiled", kind=MODEL, needs=("model.logits",))
def compiled(kit: Kit, subject: str) -> str:
    """The compiled decoder gives the eager one's logits, in one graph for a prompt and one for a step."""
    device, dtype = kit.require_device(), kit.require_platform().supported_dtypes[0]
    model = _model(subject, OpdockConfig(), dtype, device)
    want = _logits(model, _tokens(), device)
    torch._dynamo.reset()
    try:
        got = _logits(model, _tokens(), device, forward=torch.compile(model, backend="opdock_eager", fullgraph=True))
    except Exception as err:
        raise Fault(
            f"The decoder cannot be compiled: {type(err).__name__}.",
            why=[line for line in str(err).splitlines() if line.strip()][:8],
            remedy="call kernels as torch ops with fake implementations; read no data in layers.",
        ) from err
    if not same_bits(got, want):
        error = float((got.double() - want.double()).abs().max())
        raise Fault(f"The compiled decoder's logits differ from the eager one's by up to {error:.3g}.")
    return "bit for bit"
