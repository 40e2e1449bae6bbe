"""The measurement of the interpreter lock: what is read of py-spy's looks, and what it is refused without."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest
import shadowsync

ROOT = Path(shadowsync.__file__).resolve().parent
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("an installed package has no benchmarks beside it", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip("reads /proc", allow_module_level=True)

from shadowsync.benchmarks import interpreter_lock  # noqa: E402
from shadowsync.benchmarks.lock_holders import LOOKS_PER_SECOND, holders, shares  # noqa: E402

STACKS = """\
thread (31): worker-0;run (threading.py:982);step (nodes/step.py:5) 30
thread (31): worker-0;run (threading.py:982);send (nodes/worker.py:7) 10
thread (30): MainThread;<module> (cli.py:1) 2
"""


def _spy(folder: Path, errors: int, status: int = 0) -> Path:
    """A program that writes what py-spy does."""
    path = folder / "py-spy"
    lines = [
        f"#!{sys.executable}",
        "import sys",
        "out = sys.argv[sys.argv.index('--output') + 1]",
        f"open(out, 'w').write({STACKS!r})",
        f"print('Samples: 42 Errors: {errors}', file=sys.stderr)",
        f"sys.exit({status})",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def any_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)


def test_shares_are_of_all_looks_and_add_up_over_stacks() -> None:
    found = shares(STACKS, 400)
    assert {thread: name for thread, (name, _) in found.items()} == {31: "worker-0", 30: "MainThread"}
    assert [found[31][1], found[30][1]] == pytest.approx([0.1, 0.005])


def test_a_torn_line_is_left_out() -> None:
    torn = STACKS.splitlines()[0].rpartition(" ")[0] + ";send (\tpython"
    assert shares(f"{torn}\n{STACKS}", 400) == shares(STACKS, 400)


@pytest.mark.usefixtures("any_priority")
def test_looks_that_failed_are_no_measurement(tmp_path: Path) -> None:
    looks = 2 * LOOKS_PER_SECOND
    name, share = holders(_spy(tmp_path, errors=int(0.02 * looks)), 1, 2.0)[31]
    assert name == "worker-0"
    assert share == pytest.approx(40 / looks)
    with pytest.raises(SystemExit, match=f"17 of {looks} looks"):
        holders(_spy(tmp_path, errors=17), 1, 2.0)
    with pytest.raises(SystemExit, match="may it look at other processes"):
        holders(_spy(tmp_path, errors=0, status=1), 1, 2.0)


def test_without_the_priority_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pytest.raises(SystemExit, match="as root"):
        holders(_spy(tmp_path, errors=0), 1, 2.0)


def test_cpu_seconds_are_those_of_each_thread() -> None:
    stop, known = threading.Event(), threading.Event()

    def spin() -> None:
        known.set()
        while not stop.is_set():
            time.thread_time()

    thread = threading.Thread(target=spin)
    thread.start()
    known.wait()
    try:
        first = interpreter_lock.cpu_seconds(os.getpid())
        limit = time.monotonic() + 30
        grown = 0.0
        while grown < 0.05 and time.monotonic() < limit:
            last = interpreter_lock.cpu_seconds(os.getpid())
            grown = last[thread.native_id or 0][1] - first[thread.native_id or 0][1]
    finally:
        stop.set()
        thread.join()
    assert 0.05 <= grown < 30


def test_another_source_must_have_the_package(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no package `shadowsync` there"):
        interpreter_lock.check_source(tmp_path)
    package = tmp_path / "shadowsync"
    package.mkdir()
    (package / "__init__.py").touch()
    interpreter_lock.check_source(tmp_path)


def test_a_missing_py_spy_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["interpreter_lock.py", "--py-spy", "/nowhere/py-spy"])
    with pytest.raises(SystemExit) as ended:
        interpreter_lock.parse()
    assert ended.value.code == 2
    assert "--py-spy /nowhere/py-spy: no such program" in capsys.readouterr().err
