"""Health: a node answers itself, so what is stopped, gone, or no node at all is told apart."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.nodes.runtime.health import (
    Health,
    coordinator_health,
    health_path,
    node_health,
    request_health,
    serve_health,
)
from shadowsync.pipeline.errors import ClusterError
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.jobs.processes import ENOUGH_SECONDS, wait_until
from shadowsync.tests.support.real_time import run_in_real_time

SERVER = """
import asyncio, sys
from pathlib import Path
from shadowsync.nodes.runtime import health
well = health.Health(True, "trainer: well", {"trained": 3})
health.MARK_SECONDS = float(sys.argv[2])
asyncio.run(health.serve_health(Path(sys.argv[1]), lambda: well))
"""
MARK_SECONDS = 0.2
Node = tuple[subprocess.Popen[bytes], Path]
WELL = Health(True, "trainer: well", {"trained": 3})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A process that answers at a path."""
    path = tmp_path / "h.sock"
    with subprocess.Popen([sys.executable, "-c", SERVER, str(path), str(MARK_SECONDS)]) as process:
        try:
            # The path is there before anybody listens at it.
            wait_until(lambda: request_health(path, ENOUGH_SECONDS).healthy, "the node answers")
            yield process, path
        finally:
            process.kill()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop it; who has no core at that moment ends its system call first."""
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it is stopped")


def test_a_node_answers_for_itself(node: Node) -> None:
    process, path = node
    assert request_health(path, ENOUGH_SECONDS) == WELL
    stop(process)
    stopped = request_health(path, 0.2)
    assert not stopped.healthy
    assert "hangs or is stopped" in stopped.text
    process.send_signal(signal.SIGCONT)
    assert request_health(path, ENOUGH_SECONDS) == WELL
    process.kill()
    process.wait()
    assert path.exists()
    gone = request_health(path, ENOUGH_SECONDS)
    assert not gone.healthy
    assert "no node answers" in gone.text


def test_the_command_says_it_with_its_exit_code(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, path = node
    monkeypatch.setenv("SHADOWSYNC_HEALTH", str(path))
    patient = ["health", "--timeout", f"{ENOUGH_SECONDS:g}"]
    found = CliRunner().invoke(main, patient)
    assert (found.exit_code, found.output) == (0, "trainer: well\n")
    assert '"trained": 3' in CliRunner().invoke(main, [*patient, "--json"]).output
    assert CliRunner().invoke(main, ["health", str(tmp_path / "other")]).exit_code == 1
    monkeypatch.delenv("SHADOWSYNC_HEALTH")
    assert CliRunner().invoke(main, ["health"]).exit_code == 2


def test_a_second_node_does_not_take_the_first_ones_place(node: Node) -> None:
    _, path = node
    with pytest.raises(ClusterError, match="another node answers there"):
        asyncio.run(serve_health(path, lambda: Health(False, "")))
    assert request_health(path, ENOUGH_SECONDS) == WELL


@asynccontextmanager
async def serving(path: Path, health: Health) -> AsyncIterator[None]:
    task = asyncio.create_task(serve_health(path, lambda: health))
    yield
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@run_by(run_in_real_time)
async def test_what_a_killed_node_left_is_replaced_and_at_the_end_removed(tmp_path: Path) -> None:
    path, found = tmp_path / "h.sock", Health(False, "")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with serving(path, WELL):
        while not found.healthy:
            found = await asyncio.to_thread(request_health, path, ENOUGH_SECONDS)
    assert found == WELL
    assert os.listdir(tmp_path) == []


def test_files_say_it_to_probes_and_age_where_the_node_does_not_run(node: Node) -> None:
    process, path = node
    alive, healthy = path.with_name("h.sock.alive"), path.with_name("h.sock.healthy")
    wait_until(healthy.exists, "the node says that it is healthy")
    first = alive.stat().st_mtime_ns
    wait_until(lambda: alive.stat().st_mtime_ns > first, "the file is touched again")
    stop(process)
    stopped_at = time.time_ns()
    wait_until(lambda: time.time_ns() > stopped_at + 3e9 * MARK_SECONDS, "it would have been touched")
    assert alive.stat().st_mtime_ns <= stopped_at


@run_by(run_in_real_time)
async def test_files_of_a_node_that_is_not_well_say_that_it_lives(tmp_path: Path) -> None:
    path, names = tmp_path / "h.sock", list[str]()
    async with serving(path, Health(False, "trainer: waiting")):
        while "h.sock.alive" not in names:
            await asyncio.sleep(0)
            names = os.listdir(tmp_path)
    assert "h.sock.healthy" not in names
    assert os.listdir(tmp_path) == []


def test_a_path_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no socket can be created there"):
        asyncio.run(serve_health(tmp_path / "absent" / "h.sock", lambda: WELL))


@pytest.mark.parametrize("reply", [b"", b"what?\n", b'{"healthy": true}\n', b"[]\n"])
def test_what_is_no_node_is_not_healthy(tmp_path: Path, reply: bytes) -> None:
    path = tmp_path / "h.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        found = request_health(path, ENOUGH_SECONDS)
        thread.join()
    assert not found.healthy
    assert "is not a node" in found.text


def test_only_one_of_a_supervisors_processes_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHADOWSYNC_HEALTH", "/tmp/h.sock")
    assert health_path(supervised=True) is None
    assert health_path(supervised=False) == Path("/tmp/h.sock")
    monkeypatch.setenv("SHADOWSYNC_HEALTH", "")
    assert health_path(supervised=False) is None


@pytest.mark.parametrize(
    ("joined", "ready", "silence", "healthy"),
    [
        (False, False, 0.1, False),
        (True, False, 99.0, True),
        (True, True, 0.1, True),
        (True, True, 15.1, False),
    ],
)
def test_a_node_is_well_while_it_hears_its_coordinator(
    joined: bool, ready: bool, silence: float, healthy: bool
) -> None:
    found = node_health("sync", joined=joined, ready=ready, silence_seconds=silence, limit_seconds=15.0)
    assert found.healthy is healthy
    assert found.text.startswith("sync: ")


def test_a_coordinator_tells_who_is_there() -> None:
    found = coordinator_health("training", 1234, {"trainer": 3, "sync": 0}, {"trainer": 2, "sync": 0})
    assert found.text == "coordinator: training, 1,234 examples trained, 2 of 3 trainer"
    assert found.figures["trained"] == 1234
