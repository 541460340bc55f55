"""From a path to a model that is ready to run. Everything that can be refused is refused before long work."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from opdock import context
from opdock.compile import compile_model
from opdock.errors import OpdockError, UnsupportedError, suggest
from opdock.nn.models import architectures
from opdock.nn.models.checkpoint import Progress, check_header, checkpoint_plan, load_weights
from opdock.nn.models.config import ModelConfig
from opdock.nn.models.loader_gguf import GGUFCheckpoint
from opdock.nn.models.loader_hf import HFCheckpoint
from opdock.nn.models.quant_config import check_act_dtype, let_platform_register, made_by, ready
from opdock.nn.models.quantised import quantised_plan, relevant_shapes
from opdock.nn.models.resolve import resolve_model
from opdock.nn.models.tokenizer import Tokenizer, tokenizer_from_folder
from opdock.nn.models.tokenizer_gguf import tokenizer_from_gguf
from opdock.nn.quantization.config import QuantizationConfig
from opdock.nn.quantization.parameters import without_data
from opdock.nn.quantization.registry import get_quantization_config
from opdock.nn.quantization.reloading import finish_loading, start_loading

if TYPE_CHECKING:
    from opdock.nn.models.decoder import CausalDecoder

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, its tokenizer, its configuration and where they came from."""

    model: CausalDecoder
    tokenizer: Tokenizer
    config: ModelConfig
    path: Path


def load_model(
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    quantization: str | QuantizationConfig | None = None,
    progress: Progress | None = None,
    check: Callable[[Tokenizer, ModelConfig], object] | None = None,
) -> LoadedModel:
    """Load a model for the current platform; call it inside ``opdock.set_current_config()``.

    Under a configuration that compiles, the model is compiled at its first calls.

    Args:
        path: what ``resolve_model`` takes.
        dtype: of the weights and all computation, or its name; None takes the checkpoint's, and float32 for a
            checkpoint that does not say (a GGUF file).
        device: where the model runs; None takes the platform's.
        quantization: a method, by name or as a configuration, that quantises a checkpoint of floats after loading;
            None loads the checkpoint as it is, quantised or not.
        progress: called with (numbers copied, numbers in all) after each tensor.
        check: called once before the weights are read; what it raises ends the loading, so that a prompt that
            does not fit is refused before long work.

    Raises: CheckpointError for missing, broken or unfitting files; UnsupportedError for a dtype that the
        platform lacks, or a kind of model or tokenizer that is not known; OrderError outside
        ``set_current_config()``.
    """
    context.get_current_config()  # an OrderError comes first, not after the files are read
    found = resolve_model(path)
    checkpoint = HFCheckpoint(found) if found.is_dir() else GGUFCheckpoint(found)
    config = _quantised(checkpoint.config, quantization)
    chosen = choose_dtype(dtype, config.dtype)
    if config.quant_config is not None:
        check_act_dtype(config.quant_config, chosen)
    plan = quantised_plan(checkpoint_plan(config), config.quant_config, chosen)
    check_header(plan, relevant_shapes(checkpoint.shapes(), plan), config, checkpoint.source)
    if isinstance(checkpoint, GGUFCheckpoint):
        tokenizer = tokenizer_from_gguf(checkpoint.metadata, checkpoint.source)
    else:
        tokenizer = tokenizer_from_folder(found)
    if check is not None:
        check(tokenizer, config)
    # an unspecified platform names no device
    where = torch.device(device if device is not None else context.platform().device_type or "cpu")
    with _tensors_on(where):
        model = build_model(config, chosen, where)
        start_loading(model)
        load_weights(model, plan, checkpoint, progress)
        finish_loading(model)
    compile_model(model)
    return LoadedModel(model, tokenizer, config, found)


@contextlib.contextmanager
def _tensors_on(device: torch.device) -> Iterator[None]:
    """Make and fill tensors of ``device`` inside; none of them is one of torch's inference tensors.

    Some devices have tensors inside the platform's inference context alone. Weights that torch made in its own
    inference mode could never be reloaded outside of it, so that one is left again.
    """
    if device.type == "cpu":
        yield
        return
    with context.platform().inference_mode(), torch.inference_mode(mode=False), torch.no_grad():
        yield


def load_without_weights(
    path: str | os.PathLike[str], *, dtype: torch.dtype | str | None = None, device: torch.device | str | None = None
) -> CausalDecoder:
    """Return the model of a checkpoint with uninitialised weights, under the dtype and device of ``load_model``.

    Under a ``FakeTensorMode`` it takes no memory.

    Raises: as ``load_model``, as far as nothing but the configuration is read.
    """
    context.get_current_config()
    found = resolve_model(path)
    checkpoint = HFCheckpoint(found) if found.is_dir() else GGUFCheckpoint(found)
    where = torch.device(device if device is not None else context.platform().device_type or "cpu")
    model = build_model(checkpoint.config, choose_dtype(dtype, checkpoint.config.dtype), where)
    with without_data():
        finish_loading(model)
    return model


def _quantised(config: ModelConfig, wanted: str | QuantizationConfig | None) -> ModelConfig:
    if wanted is None:
        return config
    if config.quant_config is not None:
        raise UnsupportedError(
            f"The checkpoint is quantised already, with {config.quant_config.get_name()}.",
            who=config.source,
            why=f"quantization={wanted!r} would quantise it while it is loaded.",
            remedy="leave quantization out, or use the unquantised checkpoint.",
        )
    let_platform_register()
    try:
        made = made_by(get_quantization_config(wanted), {}) if isinstance(wanted, str) else wanted
        return dataclasses.replace(config, quant_config=ready(made))
    except OpdockError as err:
        why = err.why or [f"quantization={wanted!r}"]
        raise type(err)(err.what, who=[*err.who, config.source], why=why, remedy=err.remedy) from err


def build_model(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> CausalDecoder:
    """Return the model of a configuration, weights uninitialised, in ``dtype`` on ``device``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = architectures.get(config.architecture).build(config)
    finally:
        torch.set_default_dtype(before)
    return cast("CausalDecoder", model.eval())


def choose_dtype(wanted: torch.dtype | str | None, stored: str | None) -> torch.dtype:
    """Return the dtype to run in.

    Args:
        wanted: by the caller, or None.
        stored: the checkpoint's, by name, or None.

    Raises: UnsupportedError for an unknown dtype or one that the platform lacks.
    """
    asked = wanted if wanted is not None else stored or "float32"
    if isinstance(asked, str) and asked not in DTYPES:
        raise UnsupportedError(f"No model runs in dtype {asked!r}.", remedy=suggest(asked, DTYPES))
    dtype = DTYPES[asked] if isinstance(asked, str) else asked
    platform = context.platform()
    supported = platform.supported_dtypes
    if dtype not in supported and dtype != torch.float64:
        names = [str(d).removeprefix("torch.") for d in supported]
        raise UnsupportedError(
            f"The platform {platform.device_name!r} does not run {str(dtype).removeprefix('torch.')}.",
            why=f"It runs {', '.join(names)}." + ("" if wanted is not None else " The checkpoint is stored so."),
            remedy=f"opdock generate MODEL --dtype {names[0]}",
        )
    return dtype
