"""`shadowsync run` from the job file to the report: one run, looked at from all sides."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Starter, Starting
from shadowsync.tests.support.jobs.runs import EVAL_EXAMPLES, EXAMPLES, RunFolder, small_job, write_job


@pytest.fixture(scope="module")
def finished(starting: Starting, click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run of the small job, under the command that a user types."""
    folder = tmp_path_factory.mktemp("whole-job")
    drawn = {"report": {"pictures": True}}
    job = write_job(folder / "job.toml", small_job(click_log, folder / "runs"), drawn)
    with starting(folder) as starter:
        process = starter.spawn("run", str(job))
        assert process.wait() == 0, process.text()
        assert "The ledger adds up." in process.text()
    return RunFolder(folder / "runs" / "small")


def test_report_states_every_count(finished: RunFolder) -> None:
    report = finished.report
    assert report.outcome == "finished"
    assert report.exit_code == 0
    counted = report.examples
    assert counted.read == counted.distinct == counted.trained == EXAMPLES
    assert counted.replayed == counted.returned == counted.in_flight == 0
    assert counted.dropped == counted.bad_rows == 0


def test_every_identity_of_the_ledger_holds(finished: RunFolder) -> None:
    ledger = finished.report.ledger
    assert ledger.adds_up
    assert len(ledger.identities) >= 6
    assert all(identity.holds for identity in ledger.identities)
    batches = finished.batches()
    assert ledger.shard_applied == {"embedding-0": batches}
    assert ledger.lost_dense_updates == 0


def test_report_measures_the_run(finished: RunFolder) -> None:
    report = finished.report
    assert report.elp == 128 * 1 * 2
    assert set(report.throughput.per_trainer) == {"trainer-0", "trainer-1"}
    speed = present(report.throughput.examples_per_second)
    assert speed == pytest.approx(sum(report.throughput.per_trainer.values()))
    assert report.throughput.cpu_seconds_per_million is not None
    assert 0.5 < present(report.train.ne_progressive) < 1.2
    assert report.sync.algorithm == "easgd"
    assert report.sync.mode == "shadow"
    # The closing rounds alone: how many there are in the background before is up to the machine.
    assert report.sync.rounds >= 2
    assert 0 < present(report.sync.gap_mean) <= present(report.sync.gap_max)
    assert present(report.replicas.divergence) > 0
    assert report.staleness.embedding_mean is not None
    assert report.wall_seconds > 0
    assert {"torch", "python"} <= set(report.versions)


def test_peak_memory_is_told_of_each_node(finished: RunFolder) -> None:
    """That it is the process's own: `tests/unit/nodes/runtime/test_process_figures.py`."""
    nodes = finished.report.nodes
    assert {node.role for node in nodes} == {"reader", "trainer", "embedding", "sync"}
    assert all(node.peak_memory_bytes for node in nodes)


def test_bytes_of_synchronization_are_those_of_its_rounds(finished: RunFolder) -> None:
    sync = finished.report.sync
    folder, manifest = open_checkpoint(finished.folder)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == "sync-0"])
    (elements,) = reader.shape("center")
    payload = sync.rounds * 2 * 4 * elements
    # The first values, their reading at the end and the headers come on top.
    assert payload < sync.bytes < payload * 1.5 + 100 * 4 * elements


def test_the_evaluation_is_of_the_center(finished: RunFolder) -> None:
    scored = finished.evaluation
    assert scored.model == "the center (easgd)"
    assert finished.report.model_saved == "the center (easgd)"
    assert scored.examples == EVAL_EXAMPLES
    assert present(scored.gain_ratio) == pytest.approx(
        (1 - present(scored.ne)) / (1 - present(scored.teacher_ne))
    )


def test_latest_points_to_the_run(finished: RunFolder) -> None:
    link = finished.folder.parent / "latest"
    assert os.readlink(link) == finished.folder.name
    assert finished.folder.name == "small"


def test_the_pictures_are_png_with_a_size(finished: RunFolder) -> None:
    for name in ("ne.png", "throughput.png", "sync_gap.png"):
        data = (finished.folder / name).read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", data[16:24])
        assert width > 100
        assert height > 100
        assert data.endswith(b"IEND\xaeB`\x82")
    assert "sync_gap.png" in (finished.folder / "report.md").read_text()


def test_every_node_has_a_log_of_json_lines(finished: RunFolder) -> None:
    nodes = ["coordinator", "reader-0", "trainer-0", "trainer-1", "embedding-0", "sync-0"]
    for node in nodes:
        assert finished.log(node), node
        assert {"time", "level", "logger", "text"} <= set(finished.log(node)[0])
    assert finished.logged("training ends; complete: True")
    problems = [line for node in nodes for line in finished.log(node) if line["level"] == "error"]
    assert not problems


def test_the_resolved_job_is_the_one_of_the_report(finished: RunFolder) -> None:
    resolved = json.loads((finished.folder / "job.json").read_text())
    assert resolved["trainer"]["count"] == 2
    _, manifest = open_checkpoint(finished.folder, verify=True)
    assert manifest.job == resolved
    assert manifest.job_digest == finished.report.job_digest
    assert manifest.examples_trained == EXAMPLES


def test_eval_of_the_checkpoint_gives_the_scores_of_the_report(
    finished: RunFolder, starter: Starter, click_log: Path
) -> None:
    def scores_of(files: str) -> dict[str, Any]:
        command = ["eval", str(finished.folder), "--data", str(click_log / files), "--json"]
        found: dict[str, Any] = json.loads(starter.ended(*command).splitlines()[-1])
        return found

    scores, reported = scores_of("eval-*.parquet"), finished.evaluation
    assert scores["examples"] == reported.examples
    for key in ("ne", "auc", "logloss"):
        assert scores[key] == pytest.approx(getattr(reported, key), abs=1e-6)
    for key in ("gain_ratio", "pr_auc", "lift", "calibration_error"):
        assert scores[key] == pytest.approx(getattr(reported, key), abs=1e-5)
    assert len(scores["calibration_curve"]) == len(reported.calibration_curve) == 20
    # The control: other examples score otherwise.
    assert abs(scores_of("train-000.parquet")["ne"] - scores["ne"]) > 1e-4


def test_an_altered_checkpoint_is_refused(
    finished: RunFolder, starter: Starter, click_log: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished.folder / "checkpoint", copy / "checkpoint")
    (victim,) = (copy / "checkpoint").glob("dense-center-*.safetensors")
    data = victim.read_bytes()
    victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    text = starter.ended("eval", str(copy), "--data", str(click_log / "eval-*.parquet"), code=3)
    (line,) = text.splitlines()
    assert victim.name in line
