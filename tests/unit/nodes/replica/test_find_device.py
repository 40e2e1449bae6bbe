"""Which device a trainer gets."""

from __future__ import annotations

import pytest
import torch
from shadowsync.nodes.replica.replica import find_device
from shadowsync.pipeline.errors import JobFileError


def _gpus(patch: pytest.MonkeyPatch, count: int) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: count > 0)
    patch.setattr(torch.cuda, "device_count", lambda: count)
    patch.setattr(torch.cuda, "get_device_name", lambda number: f"GPU {number}")


@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_trainers_of_a_machine_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _gpus(monkeypatch, 3)
    devices = [str(find_device(name, index).torch_device) for index in range(5)]
    assert devices == ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1"]


def test_a_number_is_that_gpu_for_every_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 3)
    assert {str(find_device("cuda:1", index).torch_device) for index in range(5)} == {"cuda:1"}
    with pytest.raises(JobFileError, match=r"'cuda:3' given; this machine has: cpu, cuda:0 .GPU 0.*GPU 2"):
        find_device("cuda:3", 1)


def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 0)
    assert {str(find_device("auto", index).torch_device) for index in range(3)} == {"cpu"}
    for index in range(2):
        with pytest.raises(JobFileError, match="this machine has: cpu"):
            find_device("cuda", index)
