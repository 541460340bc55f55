"""opdock_tpu.torch_build: versions that fit one another."""

from __future__ import annotations

from opdock_tpu.torch_build import Builds, read, wanted_libtpu, why_unfit

FITTING = Builds("2.13.0+cpu", "0.0.13", "0.10.2", "0.10.2", "0.0.42.1", None, "==0.0.42.*")


def test_the_libtpu_that_jax_wants_is_read_from_its_requirements() -> None:
    requires = ["numpy>=2.0", "not a requirement !!", 'libtpu==0.0.42.*; extra == "tpu"']
    assert wanted_libtpu(requires) == "==0.0.42.*"
    assert wanted_libtpu(["numpy>=2.0"]) == ""


def test_what_fits_has_no_fault_with_and_without_libtpu() -> None:
    assert why_unfit(FITTING, libtpu=True) == ""
    assert why_unfit(Builds("2.11.0", "0.0.13", "0.10.1", "0.10.1"), libtpu=False) == ""


def test_a_version_that_cannot_be_read_does_not_fit() -> None:
    odd = Builds("of unknown version", "0.0.13", "0.10.2", "0.10.2")
    assert why_unfit(odd, libtpu=False).startswith("torch of unknown version is installed")


def test_the_torch_that_runs_is_the_one_that_is_found() -> None:
    import torch

    assert read().torch is not None
    assert torch.__version__.partition("+")[0] == str(read().torch).partition("+")[0]
