"""README.md: its Python runs on a GPU and is called right everywhere, its opdock commands are opdock's."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from opdock import cli
from opdock_cuda import ops

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python[^\n]*\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
QUOTED = re.findall(r"`(opdock(?: [^`]*)?)`", TEXT.replace("\n", " ")) + re.findall(
    r"^\$ (opdock .*)$", TEXT, re.MULTILINE
)
COMMANDS = sorted({line for line in QUOTED if " " in line})


def _values(device: str) -> dict[str, Any]:
    """What the snippet speaks of."""
    key = torch.randn(4, 2, 64, dtype=torch.bfloat16, device=device)
    cache = torch.zeros(2, 4, 2, 64, dtype=torch.bfloat16, device=device)
    x = torch.randn(4, 64, dtype=torch.bfloat16, device=device)
    return {
        "x": x,
        "residual": torch.ones_like(x),
        "weight": torch.ones(64, dtype=torch.bfloat16, device=device),
        "key": key,
        "value": key + 1,
        "key_cache": cache,
        "value_cache": cache.clone(),
        "slot_mapping": torch.tensor([0, 7, -1, 2], device=device),
    }


def test_the_snippets_call_what_is_there() -> None:
    calls = [n for text in PYTHON for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    assert len(calls) >= 3
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        given = {k.arg: None for k in call.keywords if k.arg}
        inspect.signature(getattr(ops, call.func.attr)).bind(*call.args, **given)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
def test_the_snippets_run() -> None:
    names = _values("cuda")
    x = names["x"].double()
    for text in PYTHON:
        exec(text, names)
    want = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(names["y"].double(), want, rtol=2.0**-7, atol=1e-6)
    total = x + 1
    want = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(names["x"].double(), want, rtol=2.0**-7, atol=1e-6)
    assert torch.equal(names["key_cache"].view(8, 2, 64)[[0, 7, 2]], names["key"][[0, 1, 3]])
    assert torch.equal(names["value_cache"].view(8, 2, 64)[[0, 7, 2]], names["value"][[0, 1, 3]])


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_are_opdocks(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They run, or, where they need a model, their options are known."""
    words = shlex.split(line)[1:]
    try:
        status = cli.main(words if "trace" not in words[:1] else [words[0], "--help"])
    except SystemExit as end:
        status = end.code
    assert status in (0, None), capsys.readouterr().err
