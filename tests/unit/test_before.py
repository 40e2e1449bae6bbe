"""What an earlier version wrote is read as it is, or refused by name: tests/golden/before has it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import polars as pl
import pytest
from shadowsync.nodes.coordinator.recovery.takeover import Takeover
from shadowsync.nodes.supervisor.run import resumed_job
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger
from shadowsync.pipeline.errors import CheckpointError, ClusterError, JobFileError
from shadowsync.pipeline.jobfile.load import load_resolved
from shadowsync.pipeline.report.write import read_report
from shadowsync.pipeline.saved_model.export import export_model
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.saved_model.prediction import write_predictions
from shadowsync.sync_algos.catalog.registry import find_algorithm
from shadowsync.testing import check_algorithm
from shadowsync.tests.support.before import BEFORE, PLACE, TRAINED_BATCHES, described, put_there
from shadowsync.tests.support.evaluate_run import evaluate_run
from shadowsync.watch import attach

SCORES = json.loads((BEFORE / "scores.json").read_text("utf-8"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return put_there(tmp_path / "old")


def test_the_model_scores_as_it_did(place: Path, tmp_path: Path) -> None:
    found = evaluate_run(place / "run", [str(place / "eval.csv")])
    assert (found["ne"], found["auc"]) == pytest.approx((SCORES["ne"], SCORES["auc"]), abs=1e-6)
    model = SavedModel.open(BEFORE / "run")
    write_predictions(model, [str(place / "eval.csv")], tmp_path / "scores.parquet")
    probabilities = pl.read_parquet(tmp_path / "scores.parquet")["probability"].to_list()
    assert probabilities == pytest.approx(SCORES["probabilities"], abs=1e-6)
    assert min(probabilities) < max(probabilities) - 0.03, "they tell rows apart"
    export_model(model, tmp_path / "out", "torch-export", "parquet")
    (table,) = (tmp_path / "out").glob("table-*-user.parquet")
    assert pl.read_parquet(table).height == 32


def test_the_report_is_read(place: Path) -> None:
    report = read_report(place / "run" / "report.json")
    assert (report.outcome, report.exit_code) == ("interrupted", 130)
    assert report.examples.trained == TRAINED_BATCHES * 32
    assert report.ledger.adds_up


def test_digests_are_made_as_they_were() -> None:
    """A resumed run compares the input's; the manifest's own is compared by whoever opens it."""
    folder, manifest = open_checkpoint(BEFORE / "run", verify=True)
    assert described(PLACE)["digest"] == manifest.ledger["input"]["digest"]
    ledger = SavedLedger.read(folder, manifest.files)
    assert ledger.examples == TRAINED_BATCHES * 32


def test_the_job_is_read_without_keys_that_are_gone(place: Path) -> None:
    written = json.loads((place / "run" / "job.json").read_text("utf-8"))
    assert "cache_rows" in written["trainer"], "which a job file of today may not have"
    assert load_resolved(place / "run" / "job.json").trainer.batch == 32
    job = resumed_job(str(place / "run"), ["data.epochs=9"], "last")
    assert (job.data.epochs, job.start.resume) == (9, True)
    with pytest.raises(JobFileError, match=r"trainer\.cache_rows: was removed in 0\.2: delete the key"):
        resumed_job(str(place / "run"), ["trainer.cache_rows=100"], "last")


def test_no_coordinator_takes_over_from_a_ledger_without_a_journal(place: Path) -> None:
    before = (place / "run" / "ledger.sqlite").read_bytes()
    with pytest.raises(ClusterError, match=r"its ledger\.sqlite has no journal") as caught:
        Takeover.open(place / "run", "ledger.sqlite")
    assert "shadowsync resume" in str(caught.value)
    assert (place / "run" / "ledger.sqlite").read_bytes()[100:] == before[100:], "but for SQLite's own header"


def test_its_status_is_asked_for_in_vain(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "FIRST_REPLY_SECONDS", 0.1)
    address = attach.address_of(place / "run", None)
    with pytest.raises(ClusterError, match="no coordinator answered") as caught:
        asyncio.run(attach.attach(address, once=True, as_json=False))
    assert "give the address or the folder of a job that is running" in str(caught.value)


def test_a_checkpoint_that_was_changed_is_refused(place: Path) -> None:
    """The control of all above: these files are checked."""
    file = place / "run" / "checkpoint" / "manifest.json"
    file.write_text(file.read_text("utf-8").replace('"examples_trained": 608', '"examples_trained": 609'))
    with pytest.raises(CheckpointError, match="the manifest was altered"):
        SavedModel.open(place / "run")


def test_an_algorithm_of_ones_own_is_found_and_keeps_the_contract() -> None:
    algorithm = find_algorithm(f"{BEFORE / 'diloco.py'}:DiLoCo")
    assert algorithm.summary.startswith("an outer Nesterov step over the mean of the replicas")
    check_algorithm(algorithm)
    check_algorithm(algorithm, {"outer_lr": 1.0, "outer_momentum": 0.0})
