"""The wall clock is read in one place, where a fault can shift that of one process."""

from __future__ import annotations

import ast
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import shadowsync
from shadowsync.pipeline.text import wall_clock
from shadowsync.tests.support.imports import package_files

ROOT = Path(shadowsync.__file__).resolve().parent
READS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
READS |= {"time.localtime", "time.gmtime", "time.ctime"}


def reads(text: str) -> set[str]:
    """What a module's text names of READS; one without their last words has none, and is not parsed."""
    if not any(f".{name.rpartition('.')[2]}" in text for name in READS):
        return set()
    found = (ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
    return READS & {".".join(name.split(".")[-2:]) for name in found}


def test_nothing_else_reads_it() -> None:
    modules = package_files(ROOT).items()
    found = {name: reads(file.read_text(encoding="utf-8")) for name, file in modules}
    assert {name: names for name, names in found.items() if names} == {
        "shadowsync.pipeline.text.wall_clock": {"time.time"}
    }


def test_a_reading_is_found() -> None:
    assert reads("import datetime\nnow = datetime.datetime.now(tz)") == {"datetime.now"}
    assert reads("import time\nlate = time.monotonic() > 1") == set()


def test_a_fault_shifts_the_clock_of_its_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = wall_clock.clock_fault_file(tmp_path, os.getpid())
    file.write_text("600.0", encoding="ascii")
    assert wall_clock.offset_seconds() == 0.0, "nobody names the folder"
    monkeypatch.setenv(wall_clock.CLOCK_FAULTS_VARIABLE, str(tmp_path))
    assert wall_clock.offset_seconds() == 600.0
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert wall_clock.unix_seconds() == 1600.0
    assert wall_clock.now() == datetime(1970, 1, 1, 0, 26, 40, tzinfo=UTC)
    assert wall_clock.timestamp() == "1970-01-01T00:26:40+00:00"
    file.rename(wall_clock.clock_fault_file(tmp_path, os.getpid() + 1))
    assert wall_clock.offset_seconds() == 0.0, "it is of another process"
