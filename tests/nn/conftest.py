"""Small random checkpoints saved by transformers, and SmolLM2 from its package."""

from __future__ import annotations

import copy
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock.errors import CheckpointError
from opdock.nn.generation import LoadedModel, load_model
from opdock.nn.models.resolve import resolve_model

os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCAB = 320
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 640,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": False}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True, "head_dim": 24}),
    "llama_biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3_rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "linear_rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": False}),
    "one_head_group": ("Llama", {"num_key_value_heads": 4}),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config() -> Iterator[Any]:
    """A configuration in force, so that layers can be built."""
    with opdock.set_current_config() as current:
        yield current


def _make(kind: str, folder: Path) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
    family, changes = KINDS[kind]
    settings = getattr(transformers, f"{family}Config")(**{**_COMMON, **changes})
    torch.manual_seed(len(kind))
    model = getattr(transformers, f"{family}ForCausalLM")(settings).eval()
    for name, parameter in model.named_parameters():  # norms and biases start as ones and zeros
        if name.endswith(("norm.weight", ".bias")):
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer of VOCAB tokens."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<unk>", "<s>", "</s>", *alphabet]
    tokens += [f"<{i}>" for i in range(VOCAB - len(tokens))]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Return a function: name of a kind -> (folder, the model that transformers saved there)."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = (folder, _make(kind, folder))
        return made[kind]

    return get


@pytest.fixture
def folder(checkpoints: Callable[[str], tuple[Path, Any]], tmp_path: Path) -> Path:
    """A fresh copy of a small Llama checkpoint, to be broken."""
    source, _ = checkpoints("llama")
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2, from the package that carries it."""
    pytest.importorskip("gguf", reason="needs gguf")
    try:
        return resolve_model("smollm2")
    except CheckpointError as err:
        pytest.skip(str(err).splitlines()[0])


@pytest.fixture(scope="session")
def loaded_smollm2(smollm2: Path) -> LoadedModel:
    """SmolLM2 in float32."""
    with opdock.set_current_config():
        return load_model(smollm2, dtype=torch.float32)


@pytest.fixture(scope="session")
def transformers_smollm2(smollm2: Path) -> Any:
    """SmolLM2 as transformers loads it, in float32."""
    transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
    return transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="session")
def exact() -> Callable[[Any], Any]:
    """Return a function: a model of transformers -> the same in float64, norms included."""

    def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def convert(model: Any) -> Any:
        double = copy.deepcopy(model).double()
        for module in double.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = types.MethodType(norm, module)
        return double

    return convert
