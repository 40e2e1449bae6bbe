"""Jobs whose nodes write their parts of a checkpoint to a storage, and share no file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from shadowsync.nodes.supervisor.run import resumed_job
from shadowsync.pipeline.checkpoint.saved import open_saved
from shadowsync.pipeline.checkpoint.storage import CheckpointStorage
from shadowsync.pipeline.checkpoint.store.contract import StorageError
from shadowsync.pipeline.checkpoint.store.local import LocalStore
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.support.deterministic import deterministic, was_trained
from shadowsync.tests.support.in_process_cluster import InProcessCluster, finished_run
from shadowsync.tests.support.processes import wait_until
from shadowsync.tests.support.resumed import Changed, check_trained_once
from shadowsync.tests.support.runs import EXAMPLES, RunFolder, Settings
from shadowsync.tests.support.s3_server import s3_url

TWO: Settings = {"sync": {"mode": "fixed", "every": 7}, "embedding": {"nodes": 2}}


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/storage"
        return
    with s3_url(monkeypatch) as own:
        yield own


def stored_in(settings: Changed, url: str) -> Changed:
    return {**settings, "run": {**settings.get("run", {}), "storage": url}}


def sums(location: str) -> dict[str, str]:
    """SHA-256 of each tensor file of a checkpoint."""
    _, manifest = open_saved(location, verify=True)
    return {entry.name.rpartition("/")[2]: entry.sha256 for entry in manifest.files}


def rows(location: str) -> dict[str, np.ndarray]:
    place, manifest = open_saved(location)
    tables = SavedTables(place, manifest)
    return {name: tables.read(name, 0, tables.rows(name)) for name in tables.names}


def test_it_has_the_bytes_of_the_same_job_on_disk(cluster: Callable[..., InProcessCluster], url: str) -> None:
    def settings(seed: int) -> Changed:
        return {key: dict(value) for key, value in deterministic(TWO, seed, "own").items()}

    on_disk = finished_run(cluster, settings(1))
    other = finished_run(cluster, settings(2))
    stored = finished_run(cluster, stored_in(settings(1), url))
    assert was_trained(on_disk)
    assert sums(url) == sums(str(on_disk.folder))
    assert {name.rpartition("-")[0] for name in sums(url)} >= {
        "embedding-0",
        "embedding-1",
        "trainer-0",
        "dense-center",
    }
    assert not set(sums(url).values()) & set(sums(str(other.folder)).values()), "the control: another seed"
    # Nothing of it is in the run's folder, which the nodes do not see.
    assert not list(stored.folder.glob("**/*.safetensors"))
    assert not list(stored.folder.glob("**/manifest.json"))
    assert list(on_disk.folder.glob("checkpoint/embedding-1*.safetensors")), "the control"
    model, wanted = SavedModel.open(url), SavedModel.open(on_disk.folder)
    data = str(next(Path(wanted.job.data.eval_path[0]).parent.glob("eval-*")))
    assert np.array_equal(model.predict(data), wanted.predict(data))
    # The run's own folder leads there.
    assert sums(str(stored.folder)) == sums(url)


def test_it_is_resumed_on_another_number_of_nodes(cluster: Callable[..., InProcessCluster], url: str) -> None:
    settings: Changed = {
        "data": {"epochs": 2},
        "embedding": {"nodes": 2},
        "checkpoint": {"every_examples": 4_000},
    }
    own = cluster(stored_in(settings, url)).start()
    storage = CheckpointStorage.open(url)
    wait_until(lambda: storage.numbers(), "a checkpoint is there")
    own.coordinator.interrupt()
    assert own.wait(90.0) == ExitCode.INTERRUPTED, own.coordinator.text()
    first = RunFolder(own.run.folder.resolve())
    assert f"shadowsync resume {url}" in own.coordinator.text()
    number = storage.numbers()[-1]
    before = rows(url)
    job = resumed_job(url, ("embedding.nodes=3",), "last")
    assert (job.start.checkpoint, job.run.storage) == (storage.address(number), url)
    again = cluster(
        {**stored_in(settings, url), "embedding": {"nodes": 3}, "start": {"checkpoint": url, "resume": True}}
    ).start()
    assert again.wait(90.0) == 0, again.coordinator.text()
    second = RunFolder(again.run.folder.resolve())
    assert second.report.ledger.adds_up, second.report.ledger.identities
    check_trained_once([first, second], 2, EXAMPLES)
    assert storage.numbers()[-1] > number
    assert len(storage.numbers()) == 1, "what was resumed is swept at the end"
    place, manifest = open_saved(url)
    assert SavedTables(place, manifest).nodes == 3
    assert any(not np.array_equal(before[name], values) for name, values in rows(url).items())
    assert not list(Path(second.folder).glob("**/*.safetensors"))


def test_checkpoints_that_fail_are_counted_and_the_one_before_opens(
    cluster: Callable[..., InProcessCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the server were gone from some moment on: training goes on, and the end says so."""
    url = f"file://{tmp_path}/storage"
    settings: Changed = {
        "data": {"epochs": 40},
        "embedding": {"nodes": 2},
        "checkpoint": {"every_examples": 4_000},
    }
    own = cluster(stored_in(settings, url)).start()
    storage = CheckpointStorage.open(url)
    wait_until(lambda: storage.numbers(), "a checkpoint is there")

    def gone(*_: object) -> None:
        raise StorageError("the storage does not answer", where=url)

    with monkeypatch.context() as without:
        without.setattr(LocalStore, "put", gone)
        wait_until(lambda: own.run.logged("could not be written"), "a checkpoint failed")
        trained = own.run.batches()
        wait_until(lambda: own.run.batches() > trained, "training goes on")
        own.coordinator.interrupt()
        assert own.wait(90.0) != 0
    assert open_saved(url, verify=True)[1].examples_trained > 0
    run = RunFolder(own.run.folder.resolve())
    assert run.report.checkpoints is not None
    assert run.report.checkpoints.failed >= 1
    assert any("the storage does not answer" in event.what for event in run.report.events)


def test_a_replaced_shard_starts_from_the_storage(
    cluster: Callable[..., InProcessCluster], tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/storage"
    settings: Changed = {
        "run": {"node_timeout_seconds": 2.0},
        "data": {"epochs": 3},
        "embedding": {"nodes": 2},
        "checkpoint": {"every_examples": 4_000},
    }
    own = cluster(stored_in(settings, url)).start()
    storage = CheckpointStorage.open(url)
    wait_until(lambda: storage.numbers(), "a checkpoint is there")
    own.node("embedding-1").kill()
    wait_until(lambda: own.run.logged("embedding-1: was silent"), "the coordinator knows of it")
    own.join("embedding")
    assert own.wait(90.0) == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    assert own.report.ledger.adds_up, own.report.ledger.identities
    assert own.report.examples.distinct == 3 * EXAMPLES
    said = "with the rows of a checkpoint after"
    assert any(said in event.what for event in own.report.events), own.report.events
