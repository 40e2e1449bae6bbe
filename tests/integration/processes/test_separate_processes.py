"""The same job file as separate processes that join, and those that the coordinator refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.processes import Starter, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker

OTHER_PROTOCOL = Path(__file__).parents[2] / "support" / "outside" / "other_protocol.py"


def one_line(text: str) -> str:
    """The only line that a process wrote: no traceback, nothing else."""
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_nodes_join_and_strangers_are_refused(processes: Callable[..., Cluster], job_file: JobMaker) -> None:
    own = processes()
    own.start_coordinator()
    for role in ("trainer", "trainer", "embedding", "sync"):
        own.join(role)
    for process in own.everyone():
        assert process.poll() is None
    wait_until(lambda: all(own.run.logged(f"trainer-{n} joined") for n in range(2)), "both trainers joined")

    other_seed = job_file({"run": {"seed": 2}}, "other.toml")
    other_job = own.join("reader", job_file=other_seed)
    assert other_job.wait() == 4
    assert "job differs from the coordinator's" in one_line(other_job.text())
    assert "same job file" in other_job.text()

    other_version = own.starter.fork(
        "reader", str(own.job_file), "--join", own.endpoint, script=OTHER_PROTOCOL
    )
    assert other_version.wait() == 4
    assert "protocol version" in one_line(other_version.text())

    too_many = own.join("trainer")
    assert too_many.wait() == 4
    assert "the job already has its 2 trainer nodes" in one_line(too_many.text())

    # None of the refused took a place: the job runs as soon as its reader is there.
    for refused in (other_job, too_many):
        next(nodes for nodes in own.nodes.values() if refused in nodes).remove(refused)
    own.join("reader")
    own.ended()
    assert own.run.report.examples.trained == EXAMPLES
    assert "The ledger adds up." in own.coordinator.text()
    for process in own.everyone():
        assert process.code == 0, process.text()


def test_a_node_without_a_coordinator_says_so(starter: Starter, job_file: JobMaker) -> None:
    job = job_file({"run": {"start_timeout_seconds": 0.5}})
    for role in ("reader", "sync"):
        line = one_line(starter.ended(role, str(job), "--join", "tcp://127.0.0.1:9", code=4))
        assert "no coordinator answered within 500 ms" in line
        assert "tcp://127.0.0.1:9" in line


def test_an_address_that_is_none(starter: Starter, job_file: JobMaker) -> None:
    text = starter.ended("reader", str(job_file()), "--join", "nowhere", code=4)
    assert "tcp://HOST:PORT" in one_line(text)


def test_a_job_whose_nodes_do_not_come_says_which(in_process: ClusterMaker) -> None:
    own = in_process({"run": {"start_timeout_seconds": 4.0}})
    own.start_coordinator()
    reader = own.join("reader")
    assert own.wait() == 4
    line = own.coordinator.text()
    for name in ("trainer-0", "trainer-1", "embedding-0", "sync-0"):
        assert f"{name} (none joined)" in line
    assert "reader-0" not in line.partition("were not ready")[2]
    assert reader.code == 4
