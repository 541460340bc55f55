"""What holds for a process and its children, with packages that pip installed."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GENERAL = """
import os
def run():
    import opdock
    # after the platform: it can be read, and it is the one that the process gets
    with open(os.environ["RUNS"], "a") as file:
        file.write(f"{os.getpid()} {opdock.current_platform.device_name}\\n")
def broken():
    import opdock
    from opdock import CustomOp
    class Left(CustomOp):
        def forward_native(self, x):
            return x
    CustomOp.register("left_over")(Left)
    raise SystemExit("not today")
def foreign():
    raise AssertionError("must not run")
"""

CHILDREN = """
import json, multiprocessing, os, sys, threading

def who():
    import opdock
    with opdock.set_current_config():
        from opdock.nn.layers import RMSNorm
        norm = type(RMSNorm(8)).__name__
        return [opdock.current_platform.device_name, norm, opdock.ir.ops.silu_and_mul.get_priority()]

def put(queue):
    queue.put([os.getpid(), who()])

def forked(early):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps([os.getpid(), who()]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return json.loads(os.read(read, 65536))

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    early = forked("before the parent decided")
    parent = who()
    late = forked("after the parent decided")
    queue = multiprocessing.Queue()
    child = multiprocessing.Process(target=put, args=(queue,))
    child.start()
    spawned = queue.get(timeout=100)
    child.join()
    who()
    print(json.dumps({"parent": [os.getpid(), parent], "early": early, "late": late, "spawned": spawned}))
"""


@pytest.fixture
def general(install: Callable[..., None], wheel: Callable[..., Path], acme_wheel: Path) -> None:
    """The acme platform, one healthy and one broken general plugin, and one written for another host."""
    entry = {"vllm.general_plugins": {"a_broken": "opdock_general:broken", "healthy": "opdock_general:run"}}
    other = {"vllm.general_plugins": {"elsewhere": "vllm_elsewhere:foreign"}}
    install(
        acme_wheel,
        wheel("opdock-general", {"opdock_general.py": GENERAL}, entry),
        wheel("vllm-elsewhere", {"vllm_elsewhere.py": GENERAL}, other, requires=("vllm",)),
    )


@pytest.mark.usefixtures("general")
def test_b22_forked_and_spawned_children_agree_and_general_plugins_run_once_in_each(env: Any, tmp_path: Path) -> None:
    """Forked before or after the parent decided, or spawned: one platform, one class, one priority."""
    script, runs = tmp_path / "children.py", tmp_path / "runs"
    script.write_text(CHILDREN)
    done = env.child(env.python, str(script), RUNS=str(runs))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert {json.dumps(said) for _, said in told.values()} == {json.dumps(["acme", "AcmeRMSNorm", ["acme"]])}
    lines = [line.split() for line in runs.read_text().splitlines()]
    assert sorted(int(pid) for pid, _ in lines) == sorted(pid for pid, _ in told.values())
    assert {platform for _, platform in lines} == {"acme"}
    # the broken one is told once in each process, and the healthy one after it ran all the same
    assert done.stderr.count("a_broken  opdock-general 1.0  opdock_general:broken failed") == len(told)


@pytest.mark.usefixtures("general")
def test_b16_a_general_plugin_that_raises_leaves_nothing_and_the_order_is_told(env: Any, tmp_path: Path) -> None:
    """What it registered is undone; general plugins come after every kernel phase; a foreign one does not run."""
    told = env.told(
        """
import opdock
opdock.current_platform; opdock.current_platform
from opdock.platforms import order
from opdock.registry import op_registry
tell(["left_over" in op_registry, [[s.name, s.detail] for s in order.steps()]])
""",
        RUNS=str(tmp_path / "runs"),
    )
    left, steps = told
    names = [name for name, _ in steps]
    assert not left
    assert names[-2:] == ["general plugin", "general plugin"]
    assert names.index("register_oot") < names.index("general plugin")
    assert "a_broken" in steps[-2][1] and "raised SystemExit" in steps[-2][1] and "healthy" in steps[-1][1]
    assert len((tmp_path / "runs").read_text().splitlines()) == 1
    quiet = env.told("import opdock; tell(opdock.current_platform.device_name)", VLLM_PLUGINS="acme")
    assert quiet == "acme"  # RUNS is not set: had one of them run, it would have failed


def test_importing_opdock_imports_nothing_that_it_requires(env: Any) -> None:
    """As Python itself times imports; scanning, deciding and the command line stay without torch too."""
    done = env.child(env.python, "-X", "importtime", "-c", "import opdock")
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "opdock" in imported
    assert not imported & {"torch", "pluggy", "packaging", "numpy", "rich", "importlib_metadata"}
    program = "import sys, opdock; opdock.current_platform; tell('torch' in sys.modules)"
    assert env.told(program) is False
    done = env.child(env.python, "-X", "importtime", "-m", "opdock", "plugins", "--json")
    assert done.returncode == 0
    assert "torch" not in {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_metadata_in_the_current_folder_is_reported_and_not_loaded(
    env: Any, wheel: Callable[..., Path], tmp_path: Path
) -> None:
    """``python -c`` puts the current folder on the path; what lies there was installed by nobody."""
    here = tmp_path / "here"
    entry = {"vllm.platform_plugins": {"lurker": "opdock_lurker:register"}}
    with zipfile.ZipFile(wheel("opdock-lurker", {"opdock_lurker.py": "raise SystemExit('ran')\n"}, entry)) as archive:
        archive.extractall(here)
    program = (
        "import opdock; from opdock.platforms import current; "
        "print(opdock.current_platform.device_name, current.chosen_selection().verdicts[0].reason)"
    )
    done = subprocess.run([env.python, "-c", program], cwd=here, capture_output=True, text=True)
    assert done.stdout.strip() == "cpu its metadata is found only through the current folder", done.stderr
