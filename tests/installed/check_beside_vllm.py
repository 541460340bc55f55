"""Check that the real vLLM resolves its platform as it does without opdock's packages beside it.

Run it with the Python of an environment that has vLLM, opdock and opdock-cuda:
``python tests/installed/check_beside_vllm.py``. The state before is had by hiding opdock's metadata from
``importlib.metadata`` in the child, so one environment serves for both. Exit code 0: the same; 1: it differs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distributions, entry_points

HIDE = """
import importlib.metadata as metadata
discover = metadata.Distribution.discover
def without(**kwargs):
    return (d for d in discover(**kwargs) if not (d.metadata["Name"] or "").lower().startswith("opdock"))
metadata.Distribution.discover = staticmethod(without)
"""
ASK = """
import json, sys
from vllm.platforms import current_platform
import vllm.platforms
from importlib.metadata import entry_points
print("RESULT" + json.dumps({
    "platform": type(current_platform).__module__ + "." + type(current_platform).__qualname__,
    "device": [current_platform.device_type, current_platform.device_name, current_platform.dispatch_key],
    "plugins seen": sorted(e.name for e in entry_points(group="vllm.platform_plugins")),
    "opdock modules": sorted(m for m in sys.modules if m.partition(".")[0].startswith("opdock"))[:20],
    "torch": "torch" in sys.modules,
}))
"""


def ask(program: str, **environ: str) -> tuple[dict[str, object], str]:
    """Return what vLLM resolves in a child, and its log."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "OPDOCK_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env | environ, capture_output=True, text=True, timeout=300
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"vLLM failed:\n{done.stdout}{done.stderr}")
    return json.loads(lines[0].removeprefix("RESULT")), done.stdout + done.stderr


def main() -> int:
    """Ask with and without, print both, return 0 if they agree."""
    print(
        "installed:",
        ", ".join(sorted(f"{d.name} {d.version}" for d in distributions() if "opdock" in d.name or "vllm" in d.name)),
    )
    ours = [e for e in entry_points(group="vllm.platform_plugins") if e.name.startswith("opdock_")]
    if not ours:
        raise SystemExit("no platform package of opdock is installed here")
    without, _ = ask(HIDE + ASK)
    states = {"beside": ask(ASK), "beside, OPDOCK_PLATFORM=cpu": ask(ASK, OPDOCK_PLATFORM="cpu")}
    print("without:", json.dumps(without))
    same = without["plugins seen"] == []
    for name, (told, log) in states.items():
        print(f"{name}:", json.dumps(told))
        same &= all(told[key] == without[key] for key in ("platform", "device"))
        bad = [
            line
            for line in log.splitlines()
            if "opdock" in line and ("fail" in line.lower() or "error" in line.lower())
        ]
        same &= not bad
        print(*bad, sep="\n", end="\n" if bad else "")
    print("the same" if same else "NOT the same")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
