"""The real vLLM, with opdock and its plugins installed beside it, does what it did without them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM installed in this environment"),
]

_PROGRAM = """
import json
from vllm.platforms import current_platform
from vllm.plugins import PLATFORM_PLUGINS_GROUP, load_plugins_by_group
loaded = load_plugins_by_group(PLATFORM_PLUGINS_GROUP)
print("RESULT" + json.dumps({
    "platform": type(current_platform).__module__ + "." + type(current_platform).__name__,
    "answers": {name: register() for name, register in loaded.items()},
}))
"""


def _ask_vllm(**environ: str) -> tuple[dict[str, object], str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "OPDOCK_"))}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env={**env, **environ}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    return json.loads(line.removeprefix("RESULT")), done.stdout + done.stderr


def test_vllm_resolves_the_platform_that_it_resolves_without_our_plugins() -> None:
    """An empty VLLM_PLUGINS makes vLLM load no plugin at all: the state before they were installed."""
    ours = {ep.name for ep in entry_points(group="vllm.platform_plugins") if ep.name.startswith("opdock_")}
    assert ours, "no plugin of this project is installed in this environment"
    without, _ = _ask_vllm(VLLM_PLUGINS="")
    beside, log = _ask_vllm()
    assert beside["platform"] == without["platform"]
    answers = beside["answers"]
    assert isinstance(answers, dict)
    assert ours <= set(answers), "vLLM loaded them and asked them"
    assert {answers[name] for name in ours} == {None}
    assert "failed" not in log.lower()
