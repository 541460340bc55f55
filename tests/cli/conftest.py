"""A small random model, plugins in a folder on the path, and a process without a platform around each test."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from opdock import cli
from opdock.platforms import current

Install = Callable[..., str]
CORE = str(Path(cli.__file__).parents[2])

PLATFORM = """
from opdock.platforms.interface import Platform
from opdock.platforms.enums import PlatformEnum
class P(Platform):
    _enum = PlatformEnum.OOT
    device_name = "testing"
    device_type = "cpu"
{more}
def register():
    return __name__ + ":P"
"""
_serial = itertools.count()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Decide the platform anew, without what this machine's environment says; one thread."""
    for name in ("VLLM_TARGET_DEVICE", "OPDOCK_PLATFORM", "OPDOCK_STRICT", "OPDOCK_PROBE_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("PYTHONPATH", CORE)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    current.reset()
    yield
    current.reset()
    torch.set_num_threads(before)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that puts a distribution on the path of this process and of its children."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{CORE}")
    monkeypatch.delenv("VLLM_PLUGINS")
    before = set(sys.modules)

    def write(
        name: str,
        source: str | None = None,
        *,
        more: str = "    pass",
        group: str = "vllm.platform_plugins",
        requires: str | None = "opdock",
        distribution: str | None = None,
    ) -> str:
        module = f"cli_plug_{next(_serial)}"
        (site / f"{module}.py").write_text(source if source is not None else PLATFORM.format(more=more))
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        head = f"Metadata-Version: 2.1\nName: {distribution or 'dist-' + name}\nVersion: 1.0\n"
        (info / "METADATA").write_text(head + (f"Requires-Dist: {requires}\n" if requires else ""), encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:register\n", encoding="utf-8")
        (info / "RECORD").write_text(f"{module}.py,,\n")
        return module

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("cli_plug_"):
            del sys.modules[name]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A Llama of two layers with random weights, in the layout of Hugging Face."""
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    folder = tmp_path / "model"
    folder.mkdir()
    vocab, hidden, middle = 260, 32, 48
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for n in range(2):
        at = f"model.layers.{n}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (hidden, hidden),
            f"{at}.self_attn.k_proj.weight": (hidden // 2, hidden),
            f"{at}.self_attn.v_proj.weight": (hidden // 2, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, hidden),
            f"{at}.mlp.gate_proj.weight": (middle, hidden),
            f"{at}.mlp.up_proj.weight": (middle, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, middle),
        }
    made = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=made) for name, shape in shapes.items()}
    safetensors.save_file(tensors, str(folder / "model.safetensors"))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", "<pad>", *letters])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def json_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return a function that runs a command with ``--json`` and returns the object that it prints."""

    def run(*words: str, code: int = 0) -> dict[str, Any]:
        assert cli.main([*words, "--json"]) == code
        out = capsys.readouterr().out
        found: dict[str, Any] = json.loads(out)
        return found

    return run
