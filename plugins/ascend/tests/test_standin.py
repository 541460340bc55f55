"""The stand-in device behaves as a device where tests rely on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("torch_npu")


def test_tensors_go_to_the_device_and_back_with_their_strides() -> None:
    x = torch.arange(6.0).view(2, 3)
    y = x.to("npu").t()
    assert (y.device, y.stride()) == (torch.device("npu", 0), (1, 3))
    assert y.cpu().device.type == "cpu"
    assert torch.equal(y.cpu(), x.t())
    assert torch.equal(y.contiguous().cpu(), x.t())


def test_a_write_through_a_view_is_seen() -> None:
    x = torch.zeros(3, 4, device="npu")
    x[1:].fill_(7)
    x[0, 1:3] = torch.tensor([5.0, 6.0]).npu()
    assert x.cpu().tolist() == [[0, 5, 6, 0], [7] * 4, [7] * 4]


def test_devices_are_not_mixed_without_a_copy() -> None:
    x = torch.ones(2, device="npu")
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(2)
    with pytest.raises(RuntimeError, match="same device"):
        x @ torch.ones(2, 2)
    assert (x + torch.tensor(1.0)).tolist() == [2, 2]  # a number
    assert x.copy_(torch.tensor([3.0, 4.0])).tolist() == [3, 4]


def test_there_are_two_devices_and_no_third() -> None:
    x = torch.ones(2, device="npu:1")
    assert x.device.index == (x * 2).device.index == 1
    with pytest.raises(RuntimeError):
        torch.ones(2, device="npu:2")


def test_events_and_waiting_work() -> None:
    event = torch.npu.Event()
    event.record()
    event.synchronize()
    torch.npu.synchronize()
    assert event.query()


def test_arithmetic_is_the_cpus(calls: Any) -> None:
    x, weight = torch.randn(4, 8), torch.randn(3, 8)
    for function in (
        torch.nn.functional.linear,
        lambda x, w: torch.softmax(x, -1).argmax(-1),
        lambda x, w: torch.cat((x, w)).half().float(),
        lambda x, w: x.index_select(0, torch.tensor([2, 0], device=x.device)),
        lambda x, w: torch.topk(x, 2).values,
    ):
        assert torch.equal(function(x.npu(), weight.npu()).cpu(), function(x, weight))
    assert calls() == []  # the record is of torch_npu's operators alone
