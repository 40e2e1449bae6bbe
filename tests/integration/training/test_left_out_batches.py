"""Batches whose loss or gradients are not finite: nothing of them is trained, and the ledger says so."""

from __future__ import annotations

import pytest
from shadowsync.pipeline.checkpoint.manifest import has_checkpoint, open_checkpoint
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.deterministic import STEPS, deterministic, digests, was_trained
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import Slowed, fake_device
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import going_on, interrupted
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder, Settings
from shadowsync.tests.support.jobs.unruly_model import NAME

Ids = set[tuple[int, int, int]]
ENOUGH = 10_000
BECAUSE = "of a batch left out because "


def unruly(kind: str, *, one_in: int = 20, limit: int = ENOUGH, **trainer: object) -> Settings:
    """A job with a model that is not finite for some batches."""
    model = {"name": NAME, "options": {"kind": kind, "one_in": one_in}, "bottom": None, "top": None}
    return {"model": model, "trainer": {"max_bad_batches": limit, **trainer}}


def ids(run: RunFolder, table: str) -> Ids:
    """Batches of a table of the ledger's file."""
    return {(e, s, n) for e, s, n in run.query(f"SELECT epoch, span, number FROM {table}")}


def check_ledger(run: RunFolder) -> None:
    """They add up, and no shard has applied more or less than what was trained."""
    report = run.report
    assert report.ledger.adds_up, report.ledger.identities
    assert not ids(run, "left_out") & ids(run, "batches")
    assert set(report.ledger.shard_applied.values()) == {run.batches()}


@pytest.mark.matrix
def test_to_the_bit_nothing_of_a_bad_batch_is_left(cluster: ClusterMaker) -> None:
    """Whatever of a batch is not finite, all that it would have changed is as if it had not been there."""
    runs = {}
    for kind, one_in in (("loss", 20), ("dense", 20), ("rows", 20), ("none", 0)):
        settings = unruly(kind, one_in=one_in, precision="float32")
        fixed = deterministic({"sync": {"mode": "fixed", "every": 7}}, 1, kind)
        job = {**settings, **fixed, "trainer": {**settings["trainer"], **fixed["trainer"]}}
        own = cluster(job).start()
        own.ended()
        runs[kind] = run = RunFolder(own.run.folder.resolve())
        check_ledger(run)
        assert was_trained(run)
        assert run.batches() + len(ids(run, "left_out")) == STEPS
    bad = ids(runs["loss"], "left_out")
    assert 2 <= len(bad) < STEPS / 4
    assert ids(runs["dense"], "left_out") == ids(runs["rows"], "left_out") == bad
    first = {name: own for name, own in digests(runs["loss"]).items() if "ledger" not in name}
    for kind in ("dense", "rows"):
        assert first.items() <= digests(runs[kind]).items()
    assert not ids(runs["none"], "left_out")
    control = digests(runs["none"])
    assert all(control[name] != digest for name, digest in first.items()), "the control"
    reasons = {kind: list(run.report.examples.reasons) for kind, run in runs.items()}
    assert reasons == {
        "loss": [f"{BECAUSE}its loss is not finite"],
        "dense": [f"{BECAUSE}a gradient of its dense parameters is not finite"],
        "rows": [f"{BECAUSE}a gradient of its embeddings is not finite"],
        "none": [],
    }


@pytest.mark.parametrize(
    "sync",
    [
        {"algorithm": "easgd"},
        pytest.param({"algorithm": "ma", "mode": "fixed", "every": 5, "nodes": 0}, marks=pytest.mark.matrix),
    ],
)
def test_the_ledger_of_several_workers_says_what_was_left_out(
    cluster: ClusterMaker, sync: dict[str, object]
) -> None:
    run = finished(cluster, {**unruly("rows", workers=2), "sync": sync})
    report = run.report
    check_ledger(run)
    bad = present(report.bad_batches)
    rows = run.query("SELECT count(*), sum(examples), count(DISTINCT number) FROM left_out")
    assert rows == [(bad.count, bad.examples, bad.count)]
    assert report.examples.dropped == bad.examples == EXAMPLES - report.examples.distinct > 0
    assert report.sync.rounds > 0
    # Said once, and not once a batch.
    said = [event.what for event in report.events if "left out batch" in event.what]
    assert len(said) == 1 < bad.count
    assert str(bad.first[0]) in said[0]
    assert "train-00" in bad.first[0].path
    assert report.eval is not None


def test_one_more_than_the_limit_stops_the_job(cluster: ClusterMaker) -> None:
    own = cluster(unruly("loss", limit=3)).start()
    report = own.ended(2)
    line = own.coordinator.text().strip().splitlines()[-1]
    assert "the limit trainer.max_bad_batches is 3" in line
    assert "train-00" in line
    assert "lower trainer.lr" in line
    assert "Traceback" not in own.coordinator.text()
    assert present(report.bad_batches).count > 3
    assert 0 < report.examples.distinct < EXAMPLES
    assert (own.run.folder / "checkpoint").exists(), "what was trained is finite, and kept"


@pytest.mark.matrix
def test_what_may_have_diverged_replaces_no_checkpoint(cluster: ClusterMaker) -> None:
    settings = {**unruly("loss", limit=30), "data": {"epochs": 16}, "checkpoint": {"every_examples": 2000}}
    # The limit is passed later: a disk may be slow.
    slowed = Slowed(at=20)
    own = cluster(settings, faults=(slowed,)).start()
    wait_until(lambda: has_checkpoint(own.run.folder), "a checkpoint is written")
    slowed.release()
    report = own.ended(2)
    assert present(report.checkpoints).written > 0
    assert any("written during training is kept" in event.what for event in report.events)
    _, manifest = open_checkpoint(own.run.folder, verify=True)
    assert manifest.examples_trained < report.examples.distinct


def test_what_a_device_finds_out_late_is_left_out_too(cluster: ClusterMaker) -> None:
    """On a GPU the next step is launched before the host knows; two workers, and the schedule's count."""
    run = finished(cluster, unruly("dense", count=1, workers=2), faults=(fake_device,))
    check_ledger(run)
    assert any("a step was launched ahead" in line["text"] for line in run.log("trainer-0"))
    assert present(run.report.bad_batches).count == len(ids(run, "left_out")) > 1
    assert list(run.report.examples.reasons) == [f"{BECAUSE}its loss or a gradient is not finite"]
    # The model asks for a value of the device, which no captured step can hold; each worker says so.
    said = [event for event in run.report.events if "without a captured graph" in event.what]
    assert [event.node for event in said] == ["trainer-0"] * 2
    assert run.evaluation.ne is not None


@pytest.mark.parametrize("limit", [0, pytest.param(ENOUGH, marks=pytest.mark.matrix)])
def test_a_job_whose_batches_are_all_bad_is_no_success(cluster: ClusterMaker, limit: int) -> None:
    own = cluster(unruly("dense", one_in=1, limit=limit)).start()
    report = own.ended(2)
    assert report.examples.trained == 0
    assert report.model_saved is None
    line = own.coordinator.text().strip().splitlines()[-1]
    assert ("nothing was trained: each of the" in line) is bool(limit)
    assert ("the limit trainer.max_bad_batches is 0" in line) is not bool(limit)
    assert report.examples.dropped == (EXAMPLES if limit else report.examples.dropped)


@pytest.mark.matrix
def test_a_run_that_goes_on_trains_no_bad_batch_again(cluster: ClusterMaker) -> None:
    settings = {**unruly("loss"), "data": {"epochs": 2}}
    first = interrupted(cluster, settings, 100)
    second = finished(cluster, going_on(settings, first))
    for run in (first, second):
        assert run.report.ledger.adds_up, run.report.ledger.identities
    bad, later = ids(first, "left_out"), ids(second, "left_out")
    assert bad
    assert later
    assert not (bad | ids(first, "batches")) & (later | ids(second, "batches"))
    settled = sum(run.report.examples.distinct + run.report.examples.dropped for run in (first, second))
    assert settled == 2 * EXAMPLES
    everything = ids(first, "batches") | ids(second, "batches")
    assert set(second.report.ledger.shard_applied.values()) == {len(everything)}
