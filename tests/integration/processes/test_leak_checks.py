"""The checks around every test of a cluster do find what is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import MARKER, Starting, end_marked, marked_processes, wait_until
from shadowsync.tests.support.leaks import no_leaks

# Its own: others may run the same tests on this machine.
VALUE = uuid4().hex


def test_a_process_is_found_and_ended(tmp_path: Path) -> None:
    environment = os.environ | {MARKER: VALUE}
    watch = no_leaks(VALUE, tmp_path, set())
    watch.__enter__()
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE, start_new_session=True
    )
    wait_until(lambda: marked_processes(VALUE), "the child runs")
    with pytest.raises(AssertionError, match="processes are left"):
        watch.__exit__(None, None, None)
    assert child.poll() is None
    end_marked(VALUE, set())
    # It may have been reaped already, and its exit code with it.
    child.wait(60.0)
    present(child.stdin).close()
    assert not marked_processes(VALUE)


def test_a_descriptor_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="descriptors are left"), no_leaks(VALUE, tmp_path, set()):
        kept = os.open(os.devnull, os.O_RDONLY)
    os.close(kept)


def test_a_temporary_folder_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="temporary files are left"), no_leaks(VALUE, tmp_path, set()):
        (tmp_path / "shadowsync-left").mkdir()


def test_shared_memory_is_found(tmp_path: Path) -> None:
    temporary, memory = tmp_path / "temporary", tmp_path / "memory"
    temporary.mkdir()
    memory.mkdir()
    left = memory / "shadowsync-left"
    with (
        pytest.raises(AssertionError, match="shared memory is left"),
        no_leaks(VALUE, temporary, set(), memory),
    ):
        left.touch()


def test_shared_memory_that_a_living_process_has_is_not_left(tmp_path: Path) -> None:
    temporary, memory = tmp_path / "temporary", tmp_path / "memory"
    temporary.mkdir()
    memory.mkdir()
    used = memory / "shadowsync-used"
    ends, end = os.pipe()
    with no_leaks(VALUE, temporary, set(), memory):
        program = "import sys; kept = open(sys.argv[1], 'w'); input()"
        child = subprocess.Popen([sys.executable, "-c", program, str(used)], stdin=ends)
        wait_until(used.exists, "the child has it")
    os.close(end)
    os.close(ends)
    child.wait(60.0)


def test_nothing_left_is_no_failure(starting: Starting, tmp_path: Path) -> None:
    with starting(tmp_path) as starter:
        process = starter.fork("algos")
        assert process.wait(60.0) == 0
        assert "easgd" in process.text()
