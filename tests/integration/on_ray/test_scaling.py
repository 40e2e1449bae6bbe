"""Trainers that join and leave a job on a Ray cluster, and the room that they take and give back.

`make ray` runs them, beside those of `test_ray.py`.
"""

from __future__ import annotations

import sys

from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.processes import Spawned, wait_until
from shadowsync.tests.support.jobs.supervised import Supervise, Supervised
from shadowsync.tests.support.on_ray.ray_cluster import CPUS, RayCluster, nodes_on
from shadowsync.tests.support.on_ray.ray_jobs import ENDLESS, RAY_TESTS, SECONDS, key_of

pytestmark = RAY_TESTS

# Of a trainer with one worker, and of the job of NODES with two of them.
OF_A_TRAINER, OF_THE_JOB = 2, 10
# With so many workers two trainers leave no room for another one.
WORKERS_THAT_FILL_IT = 4


def scale(ray: RayCluster, job: Supervised, trainers: int) -> tuple[int, str]:
    """`shadowsync scale`: its exit code and what it said."""
    command = [sys.executable, "-m", "shadowsync.cli", "scale", str(job.run.folder), f"trainer={trainers}"]
    text = job.runs / f"scale-to-{trainers}.txt"
    process = Spawned([*command, "--key", key_of(job)], ray.environment, job.runs, text)
    try:
        return process.wait(SECONDS), process.text()
    finally:
        process.end()


def require_free(ray: RayCluster, cpus: float) -> None:
    wait_until(lambda: ray.free() == cpus, f"{cpus} CPUs are free")


def end(ray: RayCluster, job: Supervised) -> None:
    """Ctrl-C: the ledger adds up, and nothing is left on the cluster."""
    job.interrupted()
    wait_until(lambda: not nodes_on(ray.head), "no node is left on the cluster")
    require_free(ray, CPUS)


def test_a_trainer_that_joins_takes_room_and_gives_it_back(ray: RayCluster, start_job: Supervise) -> None:
    job = start_job(ENDLESS, "--on", "ray")
    job.wait_for_batches(20, SECONDS)
    require_free(ray, CPUS - OF_THE_JOB)
    code, said = scale(ray, job, 3)
    assert code == 0, said
    of_it = "SELECT count(*) FROM batches WHERE trainer = 'trainer-2'"
    trains = lambda: job.run.query(of_it)[0][0] > 0 or job.process.poll() is not None  # noqa: E731
    wait_until(trains, "trainer-2 trains", SECONDS)
    require_free(ray, CPUS - OF_THE_JOB - OF_A_TRAINER)
    # One that joined leaves, and one that was there from the beginning, whose group stays.
    code, said = scale(ray, job, 1)
    assert code == 0, said
    require_free(ray, CPUS - OF_THE_JOB)
    end(ray, job)
    events = [event.what for event in job.run.report.events]
    assert events.count("left the job as requested") == 2


def test_a_trainer_without_room_is_refused_and_that_of_one_that_left_is_used_again(
    ray: RayCluster, start_job: Supervise
) -> None:
    job = start_job({**ENDLESS, "trainer": {"count": 2, "workers": WORKERS_THAT_FILL_IT}}, "--on", "ray")
    job.wait_for_batches(20, SECONDS)
    require_free(ray, 0)
    code, said = scale(ray, job, 3)
    assert code == ExitCode.CLUSTER, said
    assert f"no process could be started: the cluster has {CPUS} CPUs" in said
    assert "; trainer-2 needs 5 CPUs, " in said
    assert "it lacks 5 CPUs, " in said
    assert "add machines to the cluster" in said
    # The job goes on. The bundles of the beginning are one group, which Ray takes back as a whole only.
    code, said = scale(ray, job, 1)
    assert code == 0, said
    require_free(ray, 0)
    code, said = scale(ray, job, 2)
    assert code == 0, said
    require_free(ray, 0)
    job.wait_for_batches(job.run.batches() + 20, SECONDS)
    end(ray, job)
