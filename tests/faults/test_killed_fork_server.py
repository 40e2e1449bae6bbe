"""The process that forked the nodes dies."""

from __future__ import annotations

from collections.abc import Callable

import psutil
from shadowsync.tests.support.processes import is_alive, wait_until
from shadowsync.tests.support.supervised import Supervised


def test_a_dead_fork_server_stops_the_job(supervise: Callable[..., Supervised]) -> None:
    """Nobody could tell how its nodes end, so they are ended; the job says that they died."""
    job = supervise({"data": {"epochs": 10_000}})
    job.wait_for_batches(5)
    server = job.node("trainer").parent()
    assert server is not None
    nodes = [psutil.Process(job.node(role).pid) for role in ("trainer", "embedding")]
    server.kill()
    wait_until(lambda: job.process.poll() is not None, "the job stops")
    assert job.process.code == 6, job.process.text()
    assert " died" in job.last_line()
    # They are killed as the job ends, and the kernel takes its time.
    wait_until(lambda: not any(is_alive(node) for node in nodes), "its nodes are gone")
