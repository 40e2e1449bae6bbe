"""The process that forked the nodes dies."""

from __future__ import annotations

import psutil
import pytest
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import is_alive, wait_until
from shadowsync.tests.support.jobs.supervised import Supervise


@pytest.mark.parametrize("roles", [("trainer", "embedding"), ("coordinator", "reader")])
def test_a_dead_fork_server_stops_the_job(supervise: Supervise, roles: tuple[str, ...]) -> None:
    """Nobody could tell how its nodes end, so they are ended; the job says that they died."""
    job = supervise({"data": {"epochs": 10_000}, "checkpoint": {"every_examples": 500}})
    job.wait_for_batches(5)
    wait_until((job.run.folder / "checkpoint").exists, "there is a checkpoint")
    server = present(job.node(roles[0]).parent())
    nodes = [psutil.Process(job.node(role).pid) for role in roles]
    server.kill()
    wait_until(lambda: job.process.poll() is not None, "the job stops")
    assert job.process.code == 6, job.process.text()
    assert " died" in job.last_line()
    assert "`shadowsync resume " in job.last_line()
    # They are killed as the job ends, and the kernel takes its time.
    wait_until(lambda: not any(is_alive(node) for node in nodes), "its nodes are gone")
