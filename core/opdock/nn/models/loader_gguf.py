"""A GGUF file: one file with the configuration, the tokenizer and the tensors, quantised or not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from opdock.errors import CheckpointError, UnsupportedError
from opdock.nn.extras import need
from opdock.nn.models.architectures import find_gguf_architecture
from opdock.nn.models.config import ModelConfig
from opdock.nn.models.gguf_file import GGUFHeader, TensorInfo

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)\Z")
_FACTORS = "rope_freqs.weight"


def hf_name(name: str) -> str:
    """Return a Hugging Face checkpoint's name for a GGUF tensor; unknown names come back as they are."""
    if name in _WHOLE:
        return _WHOLE[name]
    match = _LAYER.match(name)
    if match is None or match[2] not in _IN_LAYER:
        return name
    return f"model.layers.{int(match[1])}.{_IN_LAYER[match[2]]}.{match[3]}"


def undo_permutation(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the rows of q or k in the order of Hugging Face checkpoints.

    llama.cpp stores the rows of each head as pairs (0, d/2), (1, d/2 + 1), ... for models of kind ``llama``,
    because it rotates neighbours.

    Args:
        rows: (heads * d, ...).
        heads: number of heads.
    """
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


class GGUFCheckpoint:
    """An open GGUF file.

    Args:
        path: of the file.

    Raises: CheckpointError for a truncated or broken file; UnsupportedError for a storage type that the
        ``gguf`` package does not decode.
    """

    def __init__(self, path: Path) -> None:
        """Read the header."""
        self.path, self.source = path, str(path)
        need("gguf.quants", "Reading a GGUF file")
        self.header = GGUFHeader(path)
        name = self.header.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise CheckpointError(
                "The GGUF file names no architecture.",
                who=self.source,
                remedy="use a file that holds a whole language model, not an adapter or a vocabulary.",
            )
        self._check_kinds()
        self.metadata: dict[str, Any] = dict(self.header.metadata)
        if _FACTORS in self.header.tensors:
            self.metadata[_FACTORS] = self._tensor(self.header.tensors[_FACTORS]).tolist()
        self.architecture = find_gguf_architecture(name, self.source)
        if self.architecture.from_gguf is None:
            raise UnsupportedError(f"{self.architecture.name} is not read from GGUF files.", who=self.source)
        names = frozenset(self.header.tensors)
        self.config: ModelConfig = self.architecture.from_gguf(self.metadata, names, self.source)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name to shape, under the names of Hugging Face checkpoints."""
        return {hf_name(info.name): info.shape for info in self.header.tensors.values()}

    def read(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, decoded to float32, under the names of Hugging Face checkpoints."""
        config = self.config
        for info in self.header.tensors.values():
            tensor = self._tensor(info)
            if self.architecture.permuted_qk and (".attn_q." in info.name or ".attn_k." in info.name):
                heads = config.num_heads if ".attn_q." in info.name else config.num_kv_heads
                tensor = undo_permutation(tensor, heads)
            yield hf_name(info.name), tensor

    def _tensor(self, info: TensorInfo) -> torch.Tensor:
        numpy = need("numpy", "Reading a GGUF file")
        quants, constants = (
            need("gguf.quants", "Reading a GGUF file"),
            need("gguf.constants", "Reading a GGUF file"),
        )
        # copy on write: torch wants memory that could be written, the file stays as it is
        raw = numpy.memmap(self.path, dtype="u1", mode="c", offset=info.offset, shape=(info.nbytes,))
        rows = raw.reshape(*info.shape[:-1], -1) if info.nbytes else raw
        values = quants.dequantize(rows, constants.GGMLQuantizationType(info.kind))
        return torch.from_numpy(values.reshape(info.shape))

    def _check_kinds(self) -> None:
        """Decode one block of zeros of each storage type: what fails here would fail after minutes."""
        numpy = need("numpy", "Reading a GGUF file")
        quants, constants = (
            need("gguf.quants", "Reading a GGUF file"),
            need("gguf.constants", "Reading a GGUF file"),
        )
        for kind, name in {info.kind: info.name for info in self.header.tensors.values()}.items():
            which = constants.GGMLQuantizationType(kind)
            block = numpy.zeros((1, constants.GGML_QUANT_SIZES[which][1]), dtype="u1")
            try:
                with numpy.errstate(all="ignore"):
                    quants.dequantize(block, which)
            except (NotImplementedError, ValueError) as err:
                raise UnsupportedError(
                    f"The tensor {name!r} is stored as {which.name}, which cannot be decoded.",
                    who=self.source,
                    why=str(err) or type(err).__name__,
                    remedy="use a file in another quantisation, or: pip install --upgrade gguf",
                ) from err
