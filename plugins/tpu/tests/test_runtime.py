"""opdock_tpu.runtime: whatever a bus or a library does, there is an answer, in bounded time."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from opdock_tpu.runtime import Answer, ask, library_path


def _bus(folder: Path, *devices: tuple[str, str]) -> str:
    for number, (vendor, device) in enumerate(devices):
        place = folder / f"0000:00:{number:02x}.0"
        place.mkdir(parents=True)
        (place / "vendor").write_text(f"{vendor}\n", encoding="utf-8")
        (place / "device").write_text(f"{device}\n", encoding="utf-8")
    return str(folder)


def test_chips_are_counted_by_their_number_on_the_bus(tmp_path: Path) -> None:
    nic = ("0x1ae0", "0x0042")  # of the same vendor, and no TPU
    bus = _bus(tmp_path, ("0x10de", "0x2330"), nic, ("0x1ae0", "0x0063"), ("0x1ae0", "0x0063"))
    assert ask(bus=bus) == Answer(2, "v5e")


def test_a_bus_without_tpus_has_none(tmp_path: Path) -> None:
    assert ask(bus=_bus(tmp_path, ("0x8086", "0x0063"))) == Answer()
    assert ask(bus=str(tmp_path / "none")) == Answer()


def test_a_library_that_is_not_there_is_missing_in_the_loaders_words(tmp_path: Path) -> None:
    found = ask(str(tmp_path / "libtpu.so"), bus=str(tmp_path))
    assert "libtpu.so: cannot open shared object file" in found.missing


def test_a_library_that_is_no_libtpu_is_missing_its_function(tmp_path: Path) -> None:
    name = ctypes.util.find_library("c") or "libc.so.6"
    assert "GetPjrtApi" in ask(name, bus=str(tmp_path)).missing


def test_a_library_that_hangs_is_ended_in_bounded_time(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to waits for ever, as some drivers do."""
    pipe = tmp_path / "libtpu.so"
    os.mkfifo(pipe)
    start = time.monotonic()
    assert ask(str(pipe), bus=str(tmp_path), timeout=0.5) == Answer(broken="no answer within 0.5 s")
    assert time.monotonic() - start < 10


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("*(volatile int *)0 = 0;", Answer(broken="the process ended with signal 11")),
        ("_exit(3);", Answer(broken="the process ended with exit code 3")),
        (
            'fputs("no firmware\\n", stderr); _exit(1);',
            Answer(broken="the process ended with exit code 1: no firmware"),
        ),
        ('puts("{}"); fflush(stdout);', Answer(1, "v6e")),
    ],
)
def test_whatever_a_library_does_when_it_is_opened_is_an_answer(code: str, expected: Answer, tmp_path: Path) -> None:
    """One that crashes, ends the process, complains, or prints."""
    source = (
        "#include <stdio.h>\n#include <unistd.h>\n"
        f"__attribute__((constructor)) static void opened(void) {{ {code} }}\n"
        "void *GetPjrtApi(void) { return 0; }\n"
    )
    (tmp_path / "libtpu.c").write_text(source, encoding="utf-8")
    library = tmp_path / "libtpu.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "libtpu.c")], check=True)
    assert ask(str(library), bus=_bus(tmp_path / "bus", ("0x1ae0", "0x006f"))) == expected


def test_the_library_that_a_variable_names_comes_before_the_installed_one() -> None:
    assert library_path({"TPU_LIBRARY_PATH": "/x/libtpu.so"}) == "/x/libtpu.so"


def test_the_real_libtpu_opens_without_a_tpu_and_without_a_client(libtpu: Any, tmp_path: Path) -> None:
    assert ask(library_path({}), bus=str(tmp_path)) == Answer()
