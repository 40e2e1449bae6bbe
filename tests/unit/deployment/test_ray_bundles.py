"""What a job asks of a Ray cluster, and what is said if that is too much; no Ray is needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from shadowsync.deployment.ray.bundles import (
    Bundle,
    another_bundle,
    bundles_of,
    on_machines,
    shortage,
)
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError

GIB = 1 << 30


def a_job(**more: dict[str, object]) -> Job:
    data = {"format": "criteo_tsv", "path": ["part.tsv"], "retain_bytes": GIB}
    model = {"embedding_dim": 8, "table_rows": 1000}
    return Job.model_validate({"data": data, "model": model, **more})


def test_a_bundle_for_each_node_but_the_coordinator() -> None:
    trainer = {"count": 2, "workers": 3, "device": "cuda"}
    job = a_job(trainer=trainer, embedding={"nodes": 2, "threads": 4}, sync={"nodes": 1})
    bundles = {one.name: one.resources for one in bundles_of(job)}
    names = ["reader-0", "trainer-0", "trainer-1", "embedding-0", "embedding-1", "sync-0"]
    assert sorted(bundles) == sorted(names)
    assert {name: own["CPU"] for name, own in bundles.items()} == {
        "reader-0": 1,
        "trainer-0": 4,
        "trainer-1": 4,
        "embedding-0": 5,
        "embedding-1": 5,
        "sync-0": 1,
    }
    assert [name for name, own in bundles.items() if own.get("GPU")] == ["trainer-0", "trainer-1"]
    assert bundles["reader-0"]["memory"] == GIB + GIB / 2
    assert another_bundle(job, "trainer", 7) == Bundle("trainer", 7, bundles["trainer-0"])


def test_memory_follows_the_rows() -> None:
    """The control: more rows need more, and more nodes need less each."""

    def memory(rows: int, nodes: int) -> float:
        job = a_job(model={"embedding_dim": 8, "table_rows": rows}, embedding={"nodes": nodes})
        return another_bundle(job, "embedding", 0).resources["memory"]

    assert memory(1_000_000, 1) > memory(1_000_000, 2) > memory(1000, 2)


def test_a_job_without_a_gpu_asks_for_none() -> None:
    assert all("GPU" not in one.resources for one in bundles_of(a_job()))


NODES = [
    Bundle("reader", 0, {"CPU": 1.0, "memory": 1e9}),
    Bundle("trainer", 0, {"CPU": 3.0, "memory": 2e9, "GPU": 1.0}),
]


def test_what_is_missing_is_named() -> None:
    total = {"CPU": 4.0, "memory": 8e9, "object_store_memory": 1e9, "node:10.0.0.1": 1.0}
    assert shortage(NODES, 1, total, {"CPU": 2.0, "memory": 2.5e9}) == (
        "the cluster has 4 CPUs, 8.00 GB of memory on 1 machine, and free of it 2 CPUs, 2.50 GB of memory;"
        " the 2 nodes of the job need 4 CPUs, 1 GPU, 3.00 GB of memory: it lacks 2 CPUs, 1 GPU,"
        " 500 MB of memory"
    )
    assert "free of it nothing;" in shortage(NODES, 1, total, {})
    assert "; trainer-0 needs 3 CPUs, 1 GPU, 2.00 GB of memory: it lacks " in shortage(
        NODES[1:], 1, total, {"CPU": 1.0}
    )


def test_enough_in_sum_but_not_on_one_machine() -> None:
    free = {"CPU": 4.0, "memory": 8e9, "GPU": 2.0}
    assert shortage(NODES, 4, free, free).endswith(
        "it lacks room on one machine, such as 3 CPUs, 1 GPU, 2.00 GB of memory for trainer-0"
    )


@pytest.mark.parametrize(
    ("section", "settings", "said"),
    [
        ("network", {"delay": "5ms"}, "emulate a network on one machine; remove them, or remove --on ray"),
        ("network", {"transport": "ipc"}, 'network.transport: "ipc" given; it connects processes of one'),
        ("trainer", {"device": "cuda:1"}, 'trainer.device: "cuda:1" given; Ray gives each trainer a GPU'),
    ],
)
def test_what_means_nothing_on_a_cluster(section: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(JobFileError, match=said):
        on_machines(a_job(**{section: settings}))


def test_run_folders_have_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = on_machines(a_job(trainer={"device": "cuda:0"}, run={"directory": "some/runs"}))
    assert job.run.directory == os.path.join(tmp_path, "some", "runs")
    assert on_machines(job) == job
