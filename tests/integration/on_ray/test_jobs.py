"""Jobs on a Ray cluster of two raylets: the accounts of a job on one machine, whatever dies.

`make ray-kills` runs them, and with the other tests on Ray `make ray`. They say when the extra is not
installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from shadowsync.nodes.runtime.process import CLI
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Spawned, is_alive, wait_until
from shadowsync.tests.support.jobs.supervised import Supervise, Supervised
from shadowsync.tests.support.on_ray.ray_cluster import RayCluster, nodes_on
from shadowsync.tests.support.on_ray.ray_jobs import (
    ENDLESS,
    EPOCHS,
    EXAMPLES,
    NODES,
    RAY_TESTS,
    SECONDS,
    accounts,
    key_of,
    slowed,
)

pytestmark = RAY_TESTS


@pytest.fixture(scope="module")
def second(ray: RayCluster) -> list[psutil.Process]:
    """The other raylet; a test that kills it puts another one there."""
    return [ray.add_raylet()]


def everywhere(ray: RayCluster, second: list[psutil.Process], role: str = "") -> list[psutil.Process]:
    return [*nodes_on(ray.head, role), *nodes_on(second[0], role)]


def roles(raylet: psutil.Process) -> list[str]:
    return sorted(node.cmdline()[node.cmdline().index(CLI) + 1] for node in nodes_on(raylet))


def test_the_accounts_are_those_of_one_machine(
    ray: RayCluster, second: list[psutil.Process], start_job: Supervise
) -> None:
    job = start_job(None, "--on", "ray")
    seen: dict[str, list[str]] = {}

    def all_there() -> bool:
        seen.update(head=roles(ray.head), second=roles(second[0]))
        return (
            len(seen["head"]) + len(seen["second"]) == sum(NODES.values()) or job.process.poll() is not None
        )

    wait_until(all_there, f"all nodes run: {job.process.text()}", SECONDS)
    assert seen["head"], job.process.text()
    assert seen["second"]
    assert sorted(seen["head"] + seen["second"]) == sorted(
        role for role, count in NODES.items() for _ in range(count)
    )
    assert job.process.wait(SECONDS) == 0, job.process.text()
    assert "report: " in job.process.text()
    own = accounts(job.run)
    assert own["trained"] == EXAMPLES
    assert {file.stem for file in (job.run.folder / "logs").glob("*.jsonl")} >= {"trainer-1", "embedding-0"}
    wait_until(lambda: not everywhere(ray, second), "no node is left on the cluster")
    wait_until(lambda: not ray.left_files(), "no file is left")
    first = job.run.folder.resolve()
    local = start_job()
    assert local.process.wait(SECONDS) == 0, local.process.text()
    assert accounts(local.run) == own
    assert local.run.folder.resolve() != first, "it is another run"


def deaths_of_actors(job: Supervised) -> int:
    return sum("died (its actor died)" in line["text"] for line in job.run.log("coordinator"))


def wait_for_text(job: Supervised, text: str) -> None:
    wait_until(lambda: job.run.logged(text) or job.process.poll() is not None, text, SECONDS)
    assert job.process.poll() is None, job.process.text()


def test_a_node_and_an_actor_are_killed(
    ray: RayCluster, second: list[psutil.Process], start_job: Supervise, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    job = start_job(slowed(slow), "--on", "ray")
    job.wait_for_batches(20, SECONDS)
    everywhere(ray, second, "trainer")[0].kill()
    embedding = everywhere(ray, second, "embedding")[0]
    actor = present(embedding.parent())
    assert "NodeHost" in " ".join(actor.cmdline())
    actor.kill()
    wait_for_text(job, "died (killed by SIGKILL)")
    wait_for_text(job, "died (its actor died)")
    slow.unlink()
    assert job.process.wait(SECONDS) == 5, job.process.text()
    assert accounts(job.run)["read"] >= EPOCHS * EXAMPLES
    assert not is_alive(embedding), "its process ends when its actor does"
    wait_until(lambda: not ray.left_files(), "no file is left")


def test_a_raylet_is_killed(
    ray: RayCluster, second: list[psutil.Process], start_job: Supervise, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    job = start_job(slowed(slow), "--on", "ray")
    job.wait_for_batches(20, SECONDS)
    lost = nodes_on(second[0])
    assert lost
    second[0].kill()
    wait_until(
        lambda: deaths_of_actors(job) >= len(lost) or job.process.poll() is not None,
        "the job knows what it has lost",
        SECONDS,
    )
    assert job.process.poll() is None, job.process.text()
    slow.unlink()
    code = job.process.wait(SECONDS)
    second[:] = [ray.add_raylet()]
    assert code == 5, job.process.text()
    assert accounts(job.run)["read"] >= EPOCHS * EXAMPLES
    wait_until(lambda: not any(map(is_alive, lost)), "the nodes of the lost machine end")
    wait_until(lambda: not ray.left_files(), "no file is left")


def test_the_driver_is_killed(ray: RayCluster, second: list[psutil.Process], start_job: Supervise) -> None:
    job = start_job(ENDLESS, "--on", "ray")
    job.wait_for_batches(20, SECONDS)
    top = [sys.executable, "-m", "shadowsync.cli", "top", str(job.run.folder), "--once", "--key", key_of(job)]
    watched = Spawned(top, ray.environment, job.runs, job.runs / "top.txt")
    assert watched.wait(SECONDS) == 0, watched.text()
    assert "trainer-1" in watched.text()
    nodes = [*everywhere(ray, second), job.node("coordinator")]
    actors = [parent for node in everywhere(ray, second) if (parent := node.parent()) is not None]
    assert len(nodes) == len(actors) + 1 == sum(NODES.values()) + 1
    job.process.kill()
    wait_until(lambda: not any(map(is_alive, [*nodes, *actors])), "no process is left")
    wait_until(lambda: not ray.left_files(), "no file is left")


@pytest.mark.usefixtures("second")
def test_a_cluster_that_is_too_small(start_job: Supervise) -> None:
    changes = {"trainer": {"count": 2, "workers": 40}, "run": {"start_timeout_seconds": 2.0}}
    job = start_job(changes, "--on", "ray")
    assert job.process.wait(SECONDS) == 4, job.process.text()
    assert "--on ray: the cluster has 32 CPUs" in job.last_line()
    assert "it lacks " in job.last_line()
    assert not job.runs.exists(), "nothing was started"


def test_no_cluster_answers(start_job: Supervise, ray: RayCluster) -> None:
    ray.environment, good = ray.environment | {"RAY_ADDRESS": "127.0.0.1:1"}, ray.environment
    try:
        job = start_job(None, "--on", "ray")
    finally:
        ray.environment = good
    assert job.process.wait(SECONDS) == 4, job.process.text()
    assert "127.0.0.1:1 (RAY_ADDRESS): there is no Ray cluster to connect to" in job.last_line()
    assert "ray job submit" in job.last_line()
