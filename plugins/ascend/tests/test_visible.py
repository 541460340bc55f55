"""opdock_ascend.visible: the rules of ASCEND_RT_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest

from opdock_ascend.visible import hides_all


@pytest.mark.parametrize("value", ["", " ", "-1", "-1,0", "npu0"])
def test_a_first_entry_that_is_no_number_hides_all(value: str) -> None:
    assert hides_all(value) == f"ASCEND_RT_VISIBLE_DEVICES={value!r} hides all of them"


@pytest.mark.parametrize("value", [None, "0", "3,-1", " 2 , 0 "])
def test_a_first_entry_that_is_a_number_hides_no_more_than_the_rest(value: str | None) -> None:
    assert hides_all(value) == ""
