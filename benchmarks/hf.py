"""transformers, imported where no script of this folder can pass for an optional package that it looks for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
_before = sys.path[:]
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
try:
    from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging
finally:
    sys.path[:] = _before

__all__ = ["CompileConfig", "LlamaConfig", "LlamaForCausalLM", "logging"]
