"""Whole jobs whose rows lie on disk, beside the same jobs with all rows in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.embedding.storage.on_disk import row_file
from shadowsync.pipeline.jobfile.draft import draft
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs import resumed
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished, in_process_clusters

# Of 936 kB of rows on each node.
MEMORY_BYTES = 300_000


def job_of(seed: int = 3, **embedding: Any) -> dict[str, dict[str, Any]]:
    return {
        "run": {"deterministic": True, "seed": seed},
        "trainer": {"count": 1},
        "embedding": {"nodes": 2, **embedding},
        "sync": {"algorithm": "none", "nodes": 0},
    }


@pytest.mark.parametrize(
    "embedding", [{}, pytest.param({"threads": 3, "optimizer": "adam"}, marks=pytest.mark.matrix)]
)
def test_the_model_is_that_of_memory_to_the_bit(
    cluster: ClusterMaker, tmp_path: Path, embedding: dict[str, Any]
) -> None:
    scale = 3 if "optimizer" in embedding else 1
    folder = tmp_path / "rows"
    folder.mkdir()
    on_disk: dict[str, Any] = {"memory_bytes": scale * MEMORY_BYTES, "folder": str(folder)}
    whole = finished(cluster, job_of(**embedding))
    spilled = finished(cluster, job_of(**embedding, **on_disk))
    other = finished(cluster, job_of(**embedding, **on_disk, seed=4))
    assert whole.report.disk_rows == []
    for node in spilled.report.disk_rows:
        assert node.reads > 100
        assert node.writes > 100
        assert 0.3 < present(node.memory_share) < 1
    one, two, third = (resumed.tensors(run) for run in (whole, spilled, other))
    assert one.keys() == two.keys() == third.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    # The control: the same job from another seed.
    assert any(not np.array_equal(one[name], third[name]) for name in one)
    assert "## Rows on disk" in (spilled.folder / "report.md").read_text()
    assert "## Rows on disk" not in (whole.folder / "report.md").read_text()
    assert not list(folder.iterdir())


def test_it_goes_on_from_a_checkpoint_to_the_same_model(cluster: ClusterMaker, tmp_path: Path) -> None:
    on_disk: dict[str, Any] = {"memory_bytes": MEMORY_BYTES, "folder": str(tmp_path)}
    whole = finished(cluster, job_of())
    first = resumed.interrupted(cluster, job_of(**on_disk), 60)
    # Only one of the two has its rows on disk, and then the other.
    second = finished(cluster, resumed.going_on(job_of(**on_disk), first))
    third = finished(cluster, resumed.going_on(job_of(), first))
    expected = resumed.tensors(whole)
    for run in (second, third):
        for name, values in resumed.tensors(run).items():
            if "applied" not in name:
                np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_a_model_is_scored_from_a_file_as_from_memory(
    cluster: ClusterMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tables need 1.66 MB; with less they are mapped, and every score is the same."""
    growing: dict[str, dict[str, Any]] = {
        "model": {"table_kind": "growing"},
        "tables": {"C3": {"kind": "hashed"}},
    }
    for settings in (job_of(), job_of() | growing):
        run = finished(cluster, settings)
        caplog.clear()
        whole = SavedModel.open(run.folder)
        assert not caplog.records
        mapped = SavedModel.open(run.folder, memory_bytes=100_000)
        assert "they are read from a file in /var/tmp" in caplog.text
        for name in whole.tables:
            one, other = (model._loaded.table(name) for model in (whole, mapped))
            np.testing.assert_array_equal(one, other, err_msg=name)
        job = json.loads((run.folder / "job.json").read_text())
        scores = []
        for number, memory in enumerate(([], ["--memory", "100kB"])):
            out = tmp_path / f"scores-{number}.csv"
            given = ["predict", str(run.folder), "--data", *job["data"]["eval_path"], "--out", str(out)]
            said(*given, *memory)
            scores.append(out.read_text())
        assert scores[0] == scores[1]


def test_a_draft_for_a_machine_of_little_memory_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full, its table needs 10.2 MB; rows may use 10.1 MB of a machine of 12 MiB, and 10.9 MB of 13 MiB."""
    users = [row * 7919 % 40_000 for row in range(80_000)]
    lines = "".join(f"u{user},{user % 2}\n" for user in users)
    (tmp_path / "log.csv").write_text(f"user,clicked\n{lines}")
    monkeypatch.chdir(tmp_path)
    for machine_mib, on_disk in ((12, True), (13, False)):
        monkeypatch.setattr(draft, "total_memory_bytes", lambda size=machine_mib << 20: size)
        said("init", "log.csv", "--force")
        job = Path("job.toml")
        job.write_text(
            job.read_text().replace("epochs = 10", "epochs = 1").replace("batch = 64", "batch = 1024")
        )
        with in_process_clusters() as make:
            own = make(job).start()
            own.ended()
            disk_rows = resumed.folder_of(own).report.disk_rows
        assert [node.reads > 1000 for node in disk_rows] == [True] * on_disk


def test_a_folder_where_rows_should_not_lie_is_an_event(
    cluster: ClusterMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: dict[str, Any] = {"memory_bytes": MEMORY_BYTES, "folder": str(tmp_path)}
    for why in ("is in memory (tmpfs)", ""):
        monkeypatch.setattr(row_file, "unfit_for_rows", lambda folder, why=why: why and f"{folder} {why}")
        run = finished(cluster, job_of(**on_disk))
        said = {event.node: event.what for event in run.report.events if "embedding.folder" in event.what}
        text = f"embedding.folder: {tmp_path} is in memory (tmpfs); give a folder on a local disk"
        assert said == (dict.fromkeys(("embedding-0", "embedding-1"), text) if why else {})
