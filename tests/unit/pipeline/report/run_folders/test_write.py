"""The files of a report, the machine it describes, and the folder it lies in."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from shadowsync.pipeline.errors import JobFileError, ResourceError
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.rendering import curves
from shadowsync.pipeline.report.run_folders.run_folder import create_run_folder, point_latest
from shadowsync.pipeline.report.run_folders.write import (
    describe_hardware,
    read_report,
    versions,
    write_report,
)

from ..conftest import altered

FILES = ["ne.png", "report.json", "report.md", "sync_gap.png", "throughput.png"]


def test_all_files_are_there_and_the_links_lead_to_them(full_report: Report, tmp_path: Path) -> None:
    write_report(tmp_path, full_report)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert read_report(tmp_path / "report.json") == full_report
    links = re.findall(r"\]\((.+?)\)", (tmp_path / "report.md").read_text())
    assert len(links) == 3
    assert all((tmp_path / link).is_file() for link in links)


def test_whoever_ends_the_drawing_has_both_reports(
    full_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(curves, "draw_curves", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path, full_report)
    assert read_report(tmp_path / "report.json") == full_report
    assert full_report.run in (tmp_path / "report.md").read_text("utf-8")


def test_without_pictures_there_are_none_and_no_link_to_one(full_report: Report, tmp_path: Path) -> None:
    write_report(tmp_path, altered(full_report, pictures=False))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "report.md"]
    assert "](" not in (tmp_path / "report.md").read_text()
    assert read_report(tmp_path / "report.json").curves == full_report.curves


def test_writing_again_replaces(full_report: Report, red_report: Report, tmp_path: Path) -> None:
    write_report(tmp_path, full_report)
    write_report(tmp_path, red_report)
    assert read_report(tmp_path / "report.json") == red_report
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_full_disk_keeps_the_report_that_was_there(
    full_report: Report, red_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path, full_report)

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(descriptor))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ResourceError, match=r"report\.json: cannot be written \(No space left"):
        write_report(tmp_path, red_report)
    assert read_report(tmp_path / "report.json") == full_report
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ValueError, match="Field required"):
        read_report(tmp_path / "report.json")


def test_the_machine_is_described() -> None:
    hardware = describe_hardware()
    assert hardware.cores is not None
    assert 1 <= hardware.cores <= (os.cpu_count() or 1)
    assert hardware.memory_bytes is not None
    assert hardware.memory_bytes > 64 << 20


def test_the_processor_is_named_by_its_model(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU: fast\n")
    assert describe_hardware(file).cpu_model == "Some CPU: fast"
    file.write_text("processor\t: 0\n")
    assert describe_hardware(file).cpu_model != ""


def test_versions_come_from_the_metadata() -> None:
    found = versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "numpy", "shadowsync", "system"} <= set(found)
    assert "not installed" not in found.values()


def test_the_coordinator_gets_all_of_this_without_torch() -> None:
    """And without matplotlib, until it writes a report."""
    code = (
        "import sys\n"
        "import shadowsync.pipeline.report.run_folders.write, shadowsync.pipeline.report.rendering.terminal\n"
        "import shadowsync.pipeline.checkpoint.manifest, shadowsync.pipeline.checkpoint.reader\n"
        "import shadowsync.pipeline.metrics.quality\n"
        "from shadowsync.pipeline.report.run_folders.write import versions\n"
        "versions()\n"
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    runs = tmp_path / "deep" / "runs"
    assert [create_run_folder(runs, "demo").name for _ in range(3)] == ["demo", "demo-2", "demo-3"]
    assert create_run_folder(runs, "other") == runs / "other"


def test_many_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: create_run_folder(tmp_path, "demo"), range(40)))
    assert len(set(folders)) == 40
    assert all(folder.is_dir() for folder in folders)


def test_folders_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"run\.name"):
        create_run_folder(tmp_path, "latest")
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="file: cannot be written"):
        create_run_folder(tmp_path / "file", "demo")


def test_latest_follows_the_newest_run_and_survives_a_move(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name in ("one", "two"):
        folder = create_run_folder(runs, name)
        point_latest(runs, folder)
        assert (runs / "latest").readlink() == Path(name)
    runs.rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "latest").resolve() == tmp_path / "moved" / "two"
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == ["latest", "one", "two"]


def test_latest_is_pointed_by_two_whose_process_ids_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in each of two containers, at once."""
    one, two = (create_run_folder(tmp_path, name) for name in ("one", "two"))
    replace, meanwhile = Path.replace, [two]

    def replaced(source: Path, target: Path) -> Path:
        while meanwhile:
            point_latest(tmp_path, meanwhile.pop())
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", replaced)
    point_latest(tmp_path, one)
    assert (tmp_path / "latest").readlink() == Path("one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "one", "two"]


def test_latest_does_not_replace_a_real_folder(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    folder = create_run_folder(tmp_path, "demo")
    with pytest.raises(ResourceError, match="latest: cannot be written"):
        point_latest(tmp_path, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "latest"]


def test_without_matplotlib_there_are_none_either(
    monkeypatch: pytest.MonkeyPatch, full_report: Report, tmp_path: Path
) -> None:
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_report(tmp_path, full_report)
    assert ".png" not in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "report.md"}
