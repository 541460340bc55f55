"""GGUF files: header, storage types, permutation, broken files."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import opdock
from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.generation import load_model
from opdock.nn.models.gguf_file import GGUFHeader
from opdock.nn.models.loader_gguf import GGUFCheckpoint, hf_name, undo_permutation

gguf = pytest.importorskip("gguf", reason="needs gguf")
HEADS, KV_HEADS, HIDDEN, INNER, VOCAB = 4, 2, 64, 128, 288
ARCHITECTURES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def _permute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """As llama.cpp's converter does."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}.{kind}"


def write_gguf(path: Path, arch: str, model: Any, kind: str = "F32", **extra: float) -> None:
    """Write a model of transformers as llama.cpp's converter would."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim if arch == "qwen3" else HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "Ġt", "he", *(f"<{i}>" for i in range(VOCAB - 258))]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 258 + [3] * (VOCAB - 258))
    writer.add_token_merges(["Ġ t", "h e"])
    for key, value in extra.items():
        writer.add_float32(key, value)
    which = gguf.GGMLQuantizationType[kind]
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        permuted = arch == "llama" and ("q_proj" in name or "k_proj" in name)
        data = (_permute(tensor, heads) if permuted else tensor).numpy()
        if tensor.dim() == 2 and kind != "F32":
            data = gguf.quants.quantize(data, which)
            writer.add_tensor(_gguf_name(name), data, raw_dtype=which)
        else:
            writer.add_tensor(_gguf_name(name), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def models() -> Callable[[str], Any]:
    """Return a function: GGUF architecture -> a small random model of transformers."""
    transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")

    def make(arch: str) -> Any:
        torch.manual_seed(3)
        config = getattr(transformers, f"{ARCHITECTURES[arch]}Config")(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=32 if arch == "qwen3" else HIDDEN // HEADS,
            max_position_embeddings=64,
            initializer_range=0.2,
            tie_word_embeddings=arch != "qwen3",
        )
        return getattr(transformers, f"{ARCHITECTURES[arch]}ForCausalLM")(config).eval()

    return make


def _logits(path: Path, tokens: torch.Tensor) -> torch.Tensor:
    with opdock.set_current_config(), torch.inference_mode():
        model = load_model(path, dtype=torch.float32).model
        return model.compute_logits(model(tokens, torch.arange(len(tokens))))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_file_gives_the_logits_of_the_model_that_was_written(
    arch: str, models: Callable[[str], Any], tmp_path: Path
) -> None:
    """Names, biases, head norms, tied and untied heads, and the permutation of the kind llama alone."""
    model = models(arch)
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", ".bias")):
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    write_gguf(tmp_path / "m.gguf", arch, model)
    tokens = torch.arange(3, 20)
    with torch.inference_mode():
        expected = model(tokens[None]).logits[0]
    torch.testing.assert_close(_logits(tmp_path / "m.gguf", tokens), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_stored_types_are_decoded(kind: str, models: Callable[[str], Any], tmp_path: Path) -> None:
    """To what the package's own decoder says, row by row."""
    model = models("llama")
    write_gguf(tmp_path / "m.gguf", "llama", model, kind)
    which = gguf.GGMLQuantizationType[kind]
    found = dict(GGUFCheckpoint(tmp_path / "m.gguf").read())
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        rows = model.state_dict()[name]
        permuted = "k_proj" in name
        stored = _permute(rows, KV_HEADS) if permuted else rows
        decoded = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(stored.numpy(), which), which))
        expected = undo_permutation(decoded, KV_HEADS) if permuted else decoded
        assert torch.equal(found[name], expected)
        assert found[name].dtype is torch.float32


def test_the_permutation_is_undone() -> None:
    """Whatever the number of heads."""
    rows = torch.randn(24, 5)
    for heads in (1, 2, 3):
        assert torch.equal(undo_permutation(_permute(rows, heads), heads), rows)
    assert undo_permutation(torch.arange(4), 1).tolist() == [0, 2, 1, 3]


def test_names_are_those_of_hugging_face() -> None:
    """Unknown ones stay, so that the check can name them."""
    assert hf_name("blk.12.attn_q.bias") == "model.layers.12.self_attn.q_proj.bias"
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"
    assert hf_name("blk.0.ffn_gate_exps.weight") == "blk.0.ffn_gate_exps.weight"


def test_the_header_is_the_one_that_the_package_reads(smollm2: Path) -> None:
    """Every field and tensor."""
    ours, theirs = GGUFHeader(smollm2), gguf.GGUFReader(smollm2)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents()
    assert len(ours.tensors) == len(theirs.tensors)
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert (info.offset, info.nbytes, info.kind_name) == (
            tensor.data_offset,
            tensor.n_bytes,
            tensor.tensor_type.name,
        )


@pytest.fixture
def small(models: Callable[[str], Any], tmp_path: Path) -> Path:
    """A whole small file."""
    write_gguf(tmp_path / "m.gguf", "llama", models("llama"))
    return tmp_path / "m.gguf"


def test_a_file_cut_anywhere_is_one_clear_error(small: Path) -> None:
    """In the header, in the lists, in the tensors."""
    data = small.read_bytes()
    for keep in (0, 3, 4, 12, 23, 24, 40, 200, 2000, 9000, len(data) // 2, len(data) - 40):
        small.write_bytes(data[:keep])
        with pytest.raises(CheckpointError, match="truncated or broken[\\s\\S]*Remedy:"):
            GGUFHeader(small)


def test_any_flipped_byte_of_the_header_is_an_error_or_harmless(small: Path) -> None:
    """Never another exception, a hang or a huge allocation."""
    data = bytearray(small.read_bytes())
    for at in [*range(4, 700, 5)]:
        changed = bytearray(data)
        changed[at] ^= 0xFF
        small.write_bytes(changed)
        with contextlib.suppress(CheckpointError, UnsupportedError):
            GGUFCheckpoint(small)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"GGML" + struct.pack("<IQQ", 3, 0, 0), "starts with b'GGML'"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "Version 99"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "do not fit"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + b"x" * 64, "do not fit"),
        (
            b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 0, 2**50) + b"x" * 64,
            "do not fit",
        ),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77) + b"x" * 64, "unknown type 77"),
    ],
)
def test_impossible_headers_are_refused_at_once(header: bytes, message: str, tmp_path: Path) -> None:
    """Counts are compared with the size of the file before anything is read."""
    (tmp_path / "m.gguf").write_bytes(header)
    with pytest.raises(CheckpointError, match=message):
        GGUFHeader(tmp_path / "m.gguf")


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    """And one that is missing is said to be missing."""
    for arch, message in (("llamma", "Did you mean 'llama'"), (None, "names no architecture")):
        pair = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, len(arch or ""))
        key = pair + (arch or "").encode() if arch else struct.pack("<Q1sIB", 1, b"k", 0, 1)
        (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key)
        with pytest.raises(CheckpointError, match=message):
            GGUFCheckpoint(tmp_path / "m.gguf")
