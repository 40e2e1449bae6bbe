"""A trainer with a GPU stays on the socket that the GPU is attached to."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from shadowsync.nodes.replica.nearest_cores import THREADS, nearest_cores, stay_on

GPU = torch.device("cuda", 1)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a host with two sockets of 8 cores, two threads a core; all may be used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1A + device.index, pci_device_id=2),
    )
    for address, cores in {"0000:1a:02.0": "0-7,16-23\n", "0000:1b:02.0": "8-15,24-30,31\n"}.items():
        (tmp_path / address).mkdir()
        (tmp_path / address / "local_cpulist").write_text(cores)
    return tmp_path


def test_they_are_those_of_the_gpu_s_own_socket(devices: Path) -> None:
    assert nearest_cores(GPU, devices) == {*range(8, 16), *range(24, 32)}
    assert nearest_cores(torch.device("cuda", 0), devices) == {*range(8), *range(16, 24)}


@pytest.mark.parametrize(
    ("usable", "nearest"),
    [
        pytest.param({0, 1, 8, 9}, {8, 9}, id="only those that this process may use"),
        pytest.param({8, 9}, set(), id="all are near already"),
        pytest.param({0, 1}, set(), id="none may be used"),
    ],
)
def test_limits_of_the_process_hold(
    devices: Path, monkeypatch: pytest.MonkeyPatch, usable: set[int], nearest: set[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable)
    assert nearest_cores(GPU, devices) == nearest


def test_nothing_is_known_of_a_cpu_and_of_a_system_that_does_not_say(devices: Path) -> None:
    assert nearest_cores(torch.device("cpu"), devices) == set()
    assert nearest_cores(torch.device("cuda", 3), devices) == set()


def test_all_threads_stay_on_them_and_those_that_begin_later() -> None:
    before = {int(thread.name): os.sched_getaffinity(int(thread.name)) for thread in THREADS.iterdir()}
    core = max(before[os.getpid()])
    ends = threading.Event()
    earlier = threading.Thread(target=ends.wait)
    earlier.start()
    try:
        stay_on(frozenset({core}))
        later = threading.Thread(target=ends.wait)
        later.start()
        for thread in (threading.current_thread(), earlier, later):
            assert thread.native_id is not None
            assert os.sched_getaffinity(thread.native_id) == {core}
    finally:
        ends.set()
        for number, cores in before.items():
            os.sched_setaffinity(number, cores)
    earlier.join()
    later.join()
