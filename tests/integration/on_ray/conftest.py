"""Jobs on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shadowsync.tests.support.jobs.supervised import Supervise
from shadowsync.tests.support.on_ray.ray_cluster import RayCluster, ray_cluster
from shadowsync.tests.support.on_ray.ray_jobs import ray_jobs, write_ray_log


@pytest.fixture(scope="session")
def ray_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of jobs on a Ray cluster; not to be changed."""
    return write_ray_log(tmp_path_factory.mktemp("ray-log"))


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A Ray cluster of one raylet."""
    with ray_cluster(tmp_path_factory.mktemp("ray")) as own:
        yield own


@pytest.fixture
def start_job(ray: RayCluster, ray_log: Path, tmp_path: Path) -> Iterator[Supervise]:
    """See `ray_jobs`."""
    with ray_jobs(ray, ray_log, tmp_path) as starts:
        yield starts
