"""A run that was stopped goes on from its checkpoint, and nothing is trained twice or left out."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.nodes.supervisor.run import resumed_job
from shadowsync.nodes.sync.saved_state import ROLE as CENTER_STATE
from shadowsync.pipeline.checkpoint.manifest import begin, commit, open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.checkpoint.saved_ledger import ROLE, SavedLedger
from shadowsync.pipeline.errors import JobFileError
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.resumed import (
    check_trained_once,
    going_on,
    interrupted,
    same,
    tensors,
    trained_batches,
)
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder, Settings
from shadowsync.tests.support.sync.example_algorithms import DILOCO, needs_examples

EPOCHS = 2
LONG: Settings = {"data": {"epochs": EPOCHS}}
# 79 batches in each epoch, where it says nothing how many there are.
FEWER: Settings = {"trainer": {"batch": 256}}


@pytest.mark.matrix
def test_an_increment_between_two_checkpoints(cluster: ClusterMaker, tmp_path: Path) -> None:
    """What `shadowsync export --since` writes and `shadowsync merge` makes of it."""
    settings: Settings = {**LONG, "model": {"table_rows": 20_000}}
    first = interrupted(cluster, settings, 20)
    exports = tmp_path / "exports"

    def export(run: RunFolder, name: str, *options: str) -> str:
        arguments = ["export", str(run.folder), *options, "--out", str(exports / name)]
        return said(*arguments)

    export(first, "base")
    second = finished(cluster, going_on(settings, first))
    told = export(second, "increment", "--since", str(exports / "base"))
    changed, rows = re.search(r"([0-9,]+) of ([0-9,]+) rows changed since", told).groups()  # type: ignore[union-attr]
    assert 0 < int(changed.replace(",", "")) < int(rows.replace(",", ""))
    export(second, "whole")
    parts = [str(exports / name) for name in ("base", "increment")]
    done = CliRunner().invoke(main, ["merge", *parts, "--out", str(exports / "merged")])
    assert done.exit_code == 0, done.output
    tables = sorted(path.name for path in (exports / "whole").glob("*.parquet"))
    for name in tables:
        whole = (exports / "whole" / name).read_bytes()
        assert (exports / "merged" / name).read_bytes() == whole
        assert (exports / "base" / name).read_bytes() != whole, "the control"
        assert (exports / "increment" / name).stat().st_size < len(whole)
    assert tables
    merged, whole = (
        json.loads((exports / name / "manifest.json").read_text()) for name in ("merged", "whole")
    )
    assert merged["version"] == whole["version"]
    assert merged["tables"] == whole["tables"]


@pytest.mark.parametrize(
    "algorithm",
    ["easgd", pytest.param("bmuf", marks=pytest.mark.matrix), pytest.param("none", marks=pytest.mark.matrix)],
)
def test_an_interrupted_run_goes_on(cluster: ClusterMaker, algorithm: str) -> None:
    settings = {**LONG, "sync": {"algorithm": algorithm, "nodes": 1 if algorithm == "easgd" else 0}}
    first = interrupted(cluster, settings, 60)
    before = trained_batches(first)
    second = finished(cluster, going_on(settings, first))
    check_trained_once([first, second], EPOCHS, EXAMPLES)
    report = second.report
    assert report.resumed_from == first.folder.name
    assert report.restored_examples == sum(before.values()) == first.report.examples.distinct
    assert report.restored_examples + report.examples.distinct == EPOCHS * EXAMPLES
    assert set(report.ledger.shard_applied.values()) == {len(before) + len(trained_batches(second))}
    # The first run is as it was.
    assert trained_batches(first) == before


@needs_examples
@pytest.mark.matrix
def test_a_run_whose_algorithm_is_an_example_now_goes_on_with_its_file(cluster: ClusterMaker) -> None:
    settings: Settings = {**LONG, "sync": {"algorithm": DILOCO, "nodes": 0}}
    first = interrupted(cluster, settings, 60)
    job_file = first.folder / "job.json"
    tree = json.loads(job_file.read_text("utf-8"))
    # As a version wrote it that had the algorithm built in.
    tree["sync"]["algorithm"] = "diloco"
    job_file.write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(JobFileError, match=r"^sync\.algorithm: 'diloco' is an example now; copy "):
        resumed_job(str(first.folder), [], "last")
    resumed = resumed_job(str(first.folder), [f"sync.algorithm={DILOCO}"], "last")
    assert resumed.sync.algorithm == DILOCO
    second = finished(cluster, going_on(settings, first))
    check_trained_once([first, second], EPOCHS, EXAMPLES)
    assert second.report.model_saved == f"the global model ({DILOCO})"


@pytest.mark.matrix
def test_it_goes_on_where_the_first_one_was_and_not_from_the_start(cluster: ClusterMaker) -> None:
    """Seen where nothing is learned any more: the rows stay, and the center stays among what was saved."""
    still: Settings = {"trainer": {"lr": 1e-9}, "embedding": {"lr": 1e-9}}
    settings: Settings = {**FEWER, "data": {"epochs": 2}, "sync": {"algorithm": "easgd", "nodes": 1}}
    first = interrupted(cluster, settings, 20)
    resumed = tensors(finished(cluster, going_on(settings, first, still)))
    saved, fresh = tensors(first), tensors(finished(cluster, still))
    rows = [name for name in saved if name.startswith("embedding") and name.endswith("weights")]
    assert rows
    assert all(np.allclose(resumed[name], saved[name], rtol=0, atol=1e-4) for name in rows)
    held = [saved[name] for name in ("sync-0/center", "trainer-0/replica", "trainer-1/replica")]
    low, high = np.minimum.reduce(held) - 1e-4, np.maximum.reduce(held) + 1e-4
    center = resumed["sync-0/center"]
    assert ((low <= center) & (center <= high)).all()
    # The control: a run from the start is elsewhere.
    assert not any(np.allclose(fresh[name], saved[name], rtol=0, atol=1e-4) for name in rows)
    assert not ((low <= fresh["sync-0/center"]) & (fresh["sync-0/center"] <= high)).all()


def test_a_center_that_merges_goes_on_with_its_momentum(cluster: ClusterMaker) -> None:
    """Cut into other slices; what it then does to the bit is in `test_saved_state`."""
    settings: Settings = {**LONG, "sync": {"algorithm": "decoupled", "nodes": 1}}
    first = interrupted(cluster, settings, 60)
    second = finished(cluster, going_on(settings, first, {"sync": {"nodes": 2}}))
    check_trained_once([first, second], EPOCHS, EXAMPLES)
    merges, before, after = second.report.sync.merges, _merges_of_center(first), _merges_of_center(second)
    assert merges is not None
    assert tensors(first)["center-state/momentum"].any()
    # Without it a run counts from its own first merge on.
    assert before > 0
    assert after >= before + merges.number > merges.number


def _merges_of_center(run: RunFolder) -> int:
    """The merges behind the state of a center, over all the runs that have gone on."""
    folder, manifest = open_checkpoint(run.folder)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == CENTER_STATE])
    assert reader.shape("momentum") == tensors(run)["trainer-0/replica"].shape
    return max(int(metadata["merges"]) for metadata in reader.metadata.values())


@pytest.mark.matrix
def test_it_goes_on_with_other_numbers_of_nodes(cluster: ClusterMaker) -> None:
    epochs = 2
    settings: Settings = {**FEWER, "data": {"epochs": epochs}, "embedding": {"nodes": 2}}
    first = interrupted(cluster, settings, 20)
    changes = {
        "trainer": {"count": 3},
        "embedding": {"nodes": 1},
        "sync": {"nodes": 2},
        "data": {"readers": 2},
    }
    second = finished(cluster, going_on(settings, first, changes))
    check_trained_once([first, second], epochs, EXAMPLES)
    third = finished(
        cluster, going_on(settings, second, {"trainer": {"count": 1}, "data": {"epochs": epochs + 1}})
    )
    check_trained_once([first, second, third], epochs + 1, EXAMPLES)
    assert third.report.restored_examples == epochs * EXAMPLES


def test_to_the_bit_with_one_trainer_in_order(cluster: ClusterMaker) -> None:
    """An interrupt between two batches, and the run that goes on, are the uninterrupted run."""
    settings: Settings = {
        "run": {"deterministic": True},
        "trainer": {"count": 1, "batch": 256},
        "data": {"epochs": 2},
        "sync": {"algorithm": "none"},
    }
    whole = finished(cluster, settings)
    first = interrupted(cluster, settings, 20)
    second = finished(cluster, going_on(settings, first))
    assert trained_batches(first)
    check_trained_once([first, second], 2, EXAMPLES)
    wanted, got = tensors(whole), tensors(second)
    assert same(wanted, got)
    # That says something only because the interrupted run had got elsewhere.
    assert not same(wanted, tensors(first))


@pytest.mark.matrix
def test_a_run_with_nothing_left_is_refused_before_any_node_starts(
    cluster: ClusterMaker, starter: Starter, tmp_path: Path
) -> None:
    run = finished(cluster, {})
    text = starter.ended("resume", str(run.folder), code=2)
    assert "has trained all of its input" in text
    assert "data.epochs=2" in text
    assert [path.name for path in sorted((tmp_path / "runs").iterdir())] == ["latest", "small"]
    starter.ended("resume", str(run.folder), "--set", "data.epochs=2", "--quiet")
    check_trained_once([run, RunFolder(tmp_path / "runs" / "small-2")], 2, EXAMPLES)


def test_another_job_or_input_is_told_with_what_differs(
    cluster: ClusterMaker, starter: Starter, click_log: Path, tmp_path: Path
) -> None:
    run = interrupted(cluster, {"data": {"epochs": 10_000}}, 20)

    def refused(*options: str) -> str:
        process = starter.fork("resume", str(run.folder), *options)
        assert process.wait() in (2, 3), process.text()
        return process.text()

    assert "trainer.batch is 64 instead of 128" in refused("--set", "trainer.batch=64")
    said = refused("--set", f"data.path={click_log}/train-000.parquet")
    assert "train-001.parquet is missing" in said
    path = next(run.folder.glob("checkpoint/embedding-0-*"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "the file was altered" in refused()
    path.write_bytes(whole[:-1])
    assert "its manifest states" in refused()
    assert [path.name for path in sorted((tmp_path / "runs").iterdir())] == ["latest", "small"]
    assert "no best checkpoint was kept" in refused("--from", "best")


@pytest.mark.matrix
def test_a_run_goes_on_of_which_only_the_ends_of_spans_were_not_known(cluster: ClusterMaker) -> None:
    settings: Settings = {**FEWER, "data": {"epochs": 1}, "sync": {"algorithm": "none", "nodes": 0}}
    first = finished(cluster, settings)
    # As if it had been interrupted when every batch was trained, and no reader had said that these are all.
    folder, manifest = open_checkpoint(first.folder)
    parts: dict[tuple[int, int], dict[int, int]] = {}
    for (epoch, span, number), examples in trained_batches(first).items():
        parts.setdefault((epoch, span), {})[number] = examples
    partial = begin(first.folder)
    files = [entry for entry in manifest.files if entry.role != ROLE]
    for entry in files:
        shutil.copyfile(folder / entry.name, partial / entry.name)
    files += SavedLedger(SavedLedger.read(folder, manifest.files).seed, {}, parts).write(partial)
    commit(partial, manifest.model_copy(update={"files": files}))
    second = finished(cluster, going_on(settings, first))
    report = second.report
    assert (report.restored_examples, report.examples.distinct) == (EXAMPLES, 0)
    assert open_checkpoint(second.folder, verify=True)[1].examples_trained == EXAMPLES
    # It is the same model, to the bit.
    now = tensors(second)
    assert same(now, tensors(first)), now.keys()
