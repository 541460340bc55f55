"""Compiling the kernels of a benchmark in several processes before anything is timed: Triton keeps them on the disk."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def compile_first(work: Callable[[T], str], jobs: Sequence[T], *, most: int = 12) -> None:
    """Run each job in a process of its own pool, and print how long that took and what failed.

    Args:
        work: a function of a module, which launches kernels; returns "" or what went wrong.
        jobs: its arguments.
        most: processes at a time.
    """
    began = time.perf_counter()
    count = max(1, min(most, len(jobs), (os.cpu_count() or 2) - 1))
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        failed = [words for words in pool.imap_unordered(work, jobs) if words]
    took = time.perf_counter() - began
    print(f"compiled for {len(jobs)} cases in {took:.0f} s, {count} processes", *failed, sep="\n", flush=True)
