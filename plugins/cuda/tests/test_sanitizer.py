"""The calls that compute-sanitizer is run over reach every kernel that the library has."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from opdock_cuda import library


@pytest.fixture(scope="module")
def sanitize() -> ModuleType:
    path = Path(__file__).with_name("sanitize.py")
    spec = importlib.util.spec_from_file_location("sanitize", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [str(path), "--ran"])  # this process keeps its allocator
        patch.setitem(sys.modules, "sanitize", module)  # for its dataclass
        spec.loader.exec_module(module)
    return module


def test_a_kernel_has_one_name_mangled_or_not(sanitize: ModuleType) -> None:
    mangled = "_ZN6opdockL14any_row_kernelIffLNS_2InE2ELb0ELNS_3OutE0EEEvNS_5GivenIXT1_EXT2_EXT3_ELb1EEE"
    plain = "void opdock::any_row_kernel<float, float, (opdock::In)2, false, (opdock::Out)0>(opdock::Given<...>)"
    assert sanitize.instance(mangled) == sanitize.instance(plain) == "any_row_kernel<float,float,(In)2,false,(Out)0>"
    hidden = "void opdock::(anonymous namespace)::rotary_kernel<__half, float, true, 2>(void const*, bool)"
    assert sanitize.instance(hidden) == "rotary_kernel<__half,float,true,2>"
    assert sanitize.instance("void at::native::vectorized_elementwise_kernel<4>(int)") is None
    assert sanitize.instance("_ZN6opdockbroken") is None


def test_calls_have_names_of_their_own(sanitize: ModuleType) -> None:
    names = [case.name for case in sanitize.cases()]
    assert len(names) == len(set(names)) > 1000


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
def test_every_kernel_of_the_library_is_reached(sanitize: ModuleType) -> None:
    there = sanitize.compiled(Path(library.__file__).with_name(library.FILE))
    assert there and not there - set(sanitize.coverage(""))
