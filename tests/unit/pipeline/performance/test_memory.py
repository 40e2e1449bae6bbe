"""Memory within the limits of control groups, read from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from shadowsync.pipeline.performance.memory import available_memory_bytes, group_limits, total_memory_bytes

MACHINE_FREE, MACHINE = 8_000_000, 10_000_000
NO_LIMIT_V1 = 9_223_372_036_854_771_712


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of a known size."""
    memory = SimpleNamespace(available=MACHINE_FREE, total=MACHINE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def write(folder: Path, **files: object) -> None:
    """Files of a group; `memory_max` is `memory.max`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.", 1)).write_text(f"{text}\n", encoding="ascii")


def own(folder: Path, text: str) -> tuple[Path, Path]:
    """The two places that the kernel tells it at: `/proc/self/cgroup` with `text`, and the mount."""
    path = folder / "self"
    path.write_text(text, encoding="ascii")
    return path, folder / "mount"


def test_version_2_in_a_container_that_sees_its_own_group_at_the_root(tmp_path: Path) -> None:
    places = own(tmp_path, "0::/\n")
    write(places[1], memory_max=1_000_000, memory_current=300_000, memory_stat="anon 9\ninactive_file 100000")
    assert available_memory_bytes(*places) == 800_000
    assert total_memory_bytes(*places) == 1_000_000


def test_version_2_takes_the_tightest_of_the_groups_above(tmp_path: Path) -> None:
    places = own(tmp_path, "0::/slice/unit\n")
    write(places[1] / "slice" / "unit", memory_max="max", memory_current=5, memory_stat="inactive_file 0")
    write(places[1] / "slice", memory_max=2_000_000, memory_current=500_000, memory_stat="inactive_file 0")
    assert available_memory_bytes(*places) == 1_500_000
    assert total_memory_bytes(*places) == 2_000_000


def test_version_1_whose_path_only_the_host_has(tmp_path: Path) -> None:
    places = own(tmp_path, "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n0::/\n")
    write(
        places[1] / "memory",
        memory_limit_in_bytes=3_000_000,
        memory_usage_in_bytes=1_000_000,
        memory_stat="inactive_file 7\ntotal_inactive_file 250000",
    )
    assert available_memory_bytes(*places) == 2_250_000


def test_without_a_limit_it_is_the_machine_that_counts(tmp_path: Path) -> None:
    places = own(tmp_path, "4:memory:/\n0::/\n")
    write(
        places[1] / "memory",
        memory_limit_in_bytes=NO_LIMIT_V1,
        memory_usage_in_bytes=1_000_000,
        memory_stat="total_inactive_file 0",
    )
    write(places[1], memory_max="max", memory_current=5, memory_stat="inactive_file 0")
    assert available_memory_bytes(*places) == MACHINE_FREE
    assert total_memory_bytes(*places) == MACHINE
    absent = tmp_path / "absent"
    assert group_limits(absent, absent) == []
    assert available_memory_bytes(absent, absent) == MACHINE_FREE


def test_a_group_that_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    places = own(tmp_path, "0::/\n")
    write(places[1], memory_max=1_000, memory_current=1_200, memory_stat="inactive_file 0")
    assert available_memory_bytes(*places) == 0


def test_a_path_that_leads_out_of_the_mount_is_not_followed(tmp_path: Path) -> None:
    places = own(tmp_path, "0::/../outside\n")
    write(tmp_path / "outside", memory_max=1, memory_current=0, memory_stat="inactive_file 0")
    places[1].mkdir()
    assert available_memory_bytes(*places) == MACHINE_FREE
