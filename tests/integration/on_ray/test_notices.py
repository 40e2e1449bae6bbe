"""Jobs that are submitted to a Ray cluster, and notices that a machine is to go.

`make ray` runs them, beside those of `test_ray.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from shadowsync.nodes.runtime.process import CLI
from shadowsync.tests.support.jobs.processes import Spawned, is_alive, wait_until
from shadowsync.tests.support.jobs.runs import RunFolder
from shadowsync.tests.support.jobs.supervised import Supervise
from shadowsync.tests.support.on_ray.ray_cluster import RayCluster, nodes_on, ray_cluster
from shadowsync.tests.support.on_ray.ray_jobs import (
    ENDLESS,
    EXAMPLES,
    RAY_TESTS,
    SECONDS,
    accounts,
    actor_of,
    write_ray_job,
)

pytestmark = RAY_TESTS


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("ray"), job_server=True) as own:
        yield own


def submit(ray: RayCluster, folder: Path, *command: str) -> Spawned:
    """`ray job submit`, which waits for the job's end."""
    program = str(Path(sys.executable).with_name("ray"))
    own = ["job", "submit", "--address", ray.job_server, "--working-dir", str(folder), "--", *command]
    return Spawned([program, *own], ray.environment, folder, folder.with_name("submitted.txt"))


def test_a_submitted_job_runs_to_its_end(ray: RayCluster, ray_log: Path, tmp_path: Path) -> None:
    # What is uploaded is the job file alone: the run folder is beside it.
    sent = tmp_path / "sent"
    sent.mkdir()
    write_ray_job(tmp_path, ray_log).rename(sent / "job.toml")
    run = [sys.executable, "-m", "shadowsync.cli", "run", "job.toml", "--on", "ray", "--exit-zero-on", "5"]
    submitted = submit(ray, sent, *run)
    try:
        assert submitted.wait(SECONDS) == 0, submitted.text()
    finally:
        submitted.end()
    text = submitted.text()
    assert "succeeded" in text
    assert "report: " in text, "the job's own output"
    assert accounts(RunFolder(tmp_path / "runs" / "latest"))["trained"] == EXAMPLES
    wait_until(lambda: not nodes_on(ray.head), "no node is left on the cluster")
    # The control: a job that fails is told as such.
    refused = submit(ray, sent, *run, "--set", "trainer.count=0")
    try:
        assert refused.wait(SECONDS) != 0, refused.text()
    finally:
        refused.end()
    assert "failed" in refused.text()


def test_another_raylet_removes_the_folder_of_the_driver(
    ray: RayCluster, ray_log: Path, tmp_path: Path
) -> None:
    """It unpacks what was sent, too, to the same place if both are of one host."""
    sent = tmp_path / "sent"
    sent.mkdir()
    write_ray_job(tmp_path, ray_log).rename(sent / "job.toml")
    second = ray.add_raylet()
    submitted = submit(ray, sent, sys.executable, "-m", CLI, "run", "job.toml", "--on", "ray")
    try:
        wait_until(
            lambda: any(map(is_in_removed_folder, ray.head.children(recursive=True))),
            f"the folder is removed: {submitted.text()}",
            SECONDS,
        )
        assert submitted.wait(SECONDS) == 0, submitted.text()
    finally:
        submitted.end()
        second.kill()
    assert accounts(RunFolder(tmp_path / "runs" / "latest"))["trained"] == EXAMPLES


def is_in_removed_folder(process: psutil.Process) -> bool:
    """Whether it is the driver of a job that was sent, and its folder is gone."""
    try:
        words = process.cmdline()
        folder = os.readlink(f"/proc/{process.pid}/cwd")
    except (psutil.Error, OSError):
        return False
    return words[-2:] == ["--on", "ray"] and "working_dir_files" in folder and folder.endswith(" (deleted)")


def test_sigterm_of_an_actor_has_its_node_leave(ray: RayCluster, start_job: Supervise) -> None:
    job = start_job(ENDLESS, "--on", "ray")
    job.wait_for_batches(20, SECONDS)
    actor = actor_of(ray.head, "trainer")
    (node,) = [node for node in nodes_on(ray.head, "trainer") if node.ppid() == actor.pid]
    actor.terminate()
    # A second one is no interrupt of the job.
    actor.terminate()
    left = "left the job as requested"
    wait_until(lambda: job.run.logged(left) or job.process.poll() is not None, left, SECONDS)
    wait_until(lambda: not is_alive(node) and not is_alive(actor), "node and actor end", SECONDS)
    # The job goes on without it.
    job.wait_for_batches(job.run.batches() + 20, SECONDS)
    report = job.interrupted()
    assert report.examples.replayed == 0, "nothing was trained twice"
    assert not job.run.logged("died")
    (gone,) = [event.node for event in report.events if event.what == left]
    assert {record.name: record.exit for record in report.nodes}[gone] == "left the job"


def test_a_node_that_cannot_leave_dies_with_its_actor(ray: RayCluster, start_job: Supervise) -> None:
    """The control: the same signal, another role."""
    job = start_job(ENDLESS, "--on", "ray")
    job.wait_for_batches(20, SECONDS)
    actor_of(ray.head, "embedding").terminate()
    again = "embedding-2: joined the running job"
    wait_until(lambda: job.run.logged(again) or job.process.poll() is not None, again, SECONDS)
    assert job.run.logged("died (its actor died)"), job.process.text()
