"""The cores that are nearest to a GPU, on a host with several sockets.

A page of memory is placed at the socket whose core first writes to it, and a copy to a GPU of another socket
takes the way between the two. So a trainer with a GPU keeps its threads, and with them its pinned memory, at
the GPU's socket.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import torch

PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
THREADS: Final = Path("/proc/self/task")


def nearest_cores(device: torch.device, devices: Path = PCI_DEVICES) -> frozenset[int]:
    """Return the cores of this process that are nearest to the device, where they are not all.

    Empty for a CPU, on a host with one socket, where the system or torch does not say (a container without
    /sys, not Linux, an old torch), and where this process may use none of them.
    """
    if device.type != "cuda" or not hasattr(os, "sched_getaffinity"):
        return frozenset()
    # The fields came to torch after 2.4, and its types lack them still.
    gpu: Any = torch.cuda.get_device_properties(device)
    if not hasattr(gpu, "pci_bus_id"):
        return frozenset()
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    try:
        nearest = _cores_of((devices / address / "local_cpulist").read_text(encoding="ascii"))
    except OSError:
        return frozenset()
    usable = os.sched_getaffinity(0)
    return frozenset(usable & nearest) if usable - nearest else frozenset()


def stay_on(cores: frozenset[int], threads: Path = THREADS) -> None:
    """Keep all threads of this process on these cores, and those that they will start."""
    for thread in threads.iterdir():
        try:
            os.sched_setaffinity(int(thread.name), cores)
        except ProcessLookupError:
            continue  # it has ended


def _cores_of(text: str) -> set[int]:
    """Return the cores of a list as Linux writes it, such as "0-3,8"."""
    cores: set[int] = set()
    for run in filter(None, text.strip().split(",")):
        first, _, last = run.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores
