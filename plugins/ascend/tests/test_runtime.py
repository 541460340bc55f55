"""opdock_ascend.runtime: whatever CANN's runtime does, there is an answer, in bounded time."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from opdock_ascend.runtime import Answer, ask, where_set_env


def test_a_library_that_is_not_there_is_missing_in_the_loaders_words() -> None:
    found = ask(libraries=("libopdock-no-such-library.so",))
    assert "libopdock-no-such-library.so" in found.missing
    assert found == Answer(missing=found.missing)


def test_a_library_without_the_runtimes_functions_is_missing_too(tmp_path: Path) -> None:
    """The C library under the name of CANN's."""
    link = tmp_path / "libascendcl.so"
    link.symlink_to(_libc())
    done = ask(libraries=(str(link),))
    assert done.missing


def test_a_loader_that_hangs_is_ended_in_bounded_time(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to waits for ever, as some drivers do."""
    pipe = tmp_path / "libascendcl.so"
    os.mkfifo(pipe)
    start = time.monotonic()
    found = ask(timeout=0.5, libraries=(str(pipe),))
    assert found == Answer(broken="no answer within 0.5 s")
    assert time.monotonic() - start < 10


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("*(volatile int *)0 = 0; return 0;", Answer(broken="the process ended with signal 11")),
        ("_exit(3);", Answer(broken="the process ended with exit code 3")),
        ('fputs("driver 25 is too old\\n", stderr); _exit(1);',
         Answer(broken="the process ended with exit code 1: driver 25 is too old")),
        ('puts("{}"); fflush(stdout); *count = 8; return 0;', Answer(devices=8, soc="Ascend910B3")),
        ("return 507008;", Answer(code=507008)),
    ],
)  # fmt: skip
def test_whatever_a_runtime_does_is_an_answer(code: str, expected: Answer, tmp_path: Path) -> None:
    """One that crashes, ends the process, complains, prints, or returns an error."""
    source = (
        "#include <stdio.h>\n#include <unistd.h>\n"
        f"int aclrtGetDeviceCount(unsigned *count) {{ {code} }}\n"
        'const char *aclrtGetSocName(void) { return "Ascend910B3"; }\n'
    )
    (tmp_path / "runtime.c").write_text(source, encoding="utf-8")
    library = tmp_path / "libascendcl.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "runtime.c")], check=True)
    assert ask(libraries=(str(library),)) == expected


def test_the_script_of_an_installed_cann_is_found_by_its_variable(tmp_path: Path) -> None:
    script = tmp_path / "set_env.sh"
    script.touch()
    assert where_set_env({"ASCEND_HOME_PATH": str(tmp_path)}) == str(script)
    assert str(tmp_path) not in where_set_env({})


def _libc() -> str:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-" in line)


@pytest.mark.usefixtures("torch_npu")
def test_the_stand_in_runtime_is_counted_and_named() -> None:
    assert ask() == Answer(devices=int(os.environ["STANDIN_NPU_COUNT"]), soc="Ascend910B3")


@pytest.mark.usefixtures("torch_npu")
def test_asking_leaves_this_process_without_the_runtime() -> None:
    program = (
        "from opdock_ascend.runtime import ask; assert ask().devices; "
        "assert 'libascendcl' not in open('/proc/self/maps').read()"
    )
    import sys

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
