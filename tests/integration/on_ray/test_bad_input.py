"""Clusters on which a job cannot run: what is said, and that nothing is left on them.

`make ray` runs them, beside those of `test_ray.py`.
"""

from __future__ import annotations

from pathlib import Path

from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.on_ray.ray_cluster import CPUS, nodes_on, ray_cluster
from shadowsync.tests.support.on_ray.ray_jobs import RAY_TESTS, SECONDS, ray_jobs

pytestmark = RAY_TESTS


def test_machines_without_shadowsync(ray_log: Path, tmp_path: Path) -> None:
    with ray_cluster(tmp_path, without_shadowsync=True) as ray, ray_jobs(ray, ray_log, tmp_path) as start:
        job = start(None, "--on", "ray")
        assert job.process.wait(SECONDS) == ExitCode.CLUSTER, job.process.text()
        said = job.last_line()
        assert said.startswith("shadowsync run: --on ray: "), said
        assert "cannot be started (ModuleNotFoundError: No module named 'shadowsync'" in said
        assert "install shadowsync " in said
        assert "Traceback" not in job.process.text()
        assert not list(job.runs.iterdir()), "no run was begun"
        wait_until(lambda: ray.free() == CPUS, "all is given back")
        assert not nodes_on(ray.head)
