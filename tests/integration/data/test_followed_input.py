"""A job that follows its input: files that come while it trains are trained on, until the input is ended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.coordinator.input.follower import FoundSpans, GrowingInput
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, finished
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import going_on
from shadowsync.tests.support.jobs.resumed import interrupted as interrupted_at
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder

OF_A_FILE = EXAMPLES // 2


@pytest.fixture
def incoming(click_log: Path, tmp_path: Path) -> Path:
    """The folder of the input, with one file of OF_A_FILE examples."""
    folder = tmp_path / "incoming"
    folder.mkdir()
    arrive(click_log, folder, "m.parquet")
    return folder


def arrive(click_log: Path, folder: Path, name: str) -> None:
    """Put a file of OF_A_FILE examples into the folder at once, as a writer should."""
    shutil.copy(click_log / "train-000.parquet", folder / ".coming")
    os.rename(folder / ".coming", folder / name)


def changes(incoming: Path) -> dict[str, dict[str, Any]]:
    return {"data": {"path": str(incoming / "*.parquet"), "follow": True, "follow_seconds": 0.1}}


def trained(run: RunFolder) -> int:
    """Examples in the ledger's file."""
    return int(run.query("SELECT coalesce(sum(examples), 0) FROM batches")[0][0])


def wait_for(own: InProcessCluster, examples: int) -> None:
    """Wait until so many are trained, while the job goes on."""
    wait_until(
        lambda: trained(own.run) >= examples or own.coordinator.poll() is not None, f"{examples} are trained"
    )
    assert own.coordinator.poll() is None, own.coordinator.text()


def stop(own: InProcessCluster) -> str:
    """End the input, as a user does; gives what the command said."""
    return said("stop", str(own.run.folder))


def test_files_are_trained_on_as_they_come(in_process: ClusterMaker, click_log: Path, incoming: Path) -> None:
    own = in_process(changes(incoming)).start()
    wait_for(own, OF_A_FILE)
    # One that sorts before the first.
    arrive(click_log, incoming, "a.parquet")
    wait_for(own, 2 * OF_A_FILE)
    arrive(click_log, incoming, "z.parquet")
    wait_for(own, 3 * OF_A_FILE)
    assert own.status()["progress"]["total"] is None
    assert "looks for no more input" in stop(own)
    report = own.ended()
    assert report.examples.distinct == report.examples.read == 3 * OF_A_FILE
    assert [event.what for event in report.events].count("the input was ended as requested") == 1
    files = own.run.query("SELECT span, path FROM spans ORDER BY span")
    assert [(span, Path(path).name) for span, path in files] == [
        (0, "m.parquet"),
        (1, "a.parquet"),
        (2, "z.parquet"),
    ]
    assert report.eval is not None


def interrupted(in_process: ClusterMaker, click_log: Path, incoming: Path) -> InProcessCluster:
    """A job that was interrupted after it had trained m.parquet and z.parquet, which came later."""
    own = in_process(changes(incoming)).start()
    arrive(click_log, incoming, "z.parquet")
    wait_for(own, 2 * OF_A_FILE)
    own.interrupted()
    return own


@pytest.mark.matrix
def test_an_interrupted_one_is_resumed_and_trains_what_has_come(
    in_process: ClusterMaker, click_log: Path, incoming: Path
) -> None:
    first = interrupted(in_process, click_log, incoming)
    # By its path it is the first; the two before it keep their numbers, though one of them is gone.
    arrive(click_log, incoming, "a.parquet")
    (incoming / "m.parquet").unlink()
    second = in_process(going_on(changes(incoming), first.run)).start()
    wait_for(second, OF_A_FILE)
    stop(second)
    report = second.ended(distinct=OF_A_FILE)
    assert report.restored_examples == 2 * OF_A_FILE
    assert [Path(path).name for (path,) in second.run.query("SELECT path FROM spans")] == ["a.parquet"]


@pytest.mark.matrix
def test_one_is_resumed_although_a_file_is_still_empty(
    in_process: ClusterMaker, click_log: Path, incoming: Path
) -> None:
    first = interrupted(in_process, click_log, incoming)
    (incoming / "b.parquet").touch()
    second = in_process(going_on(changes(incoming), first.run)).start()
    arrive(click_log, incoming, "a.parquet")
    wait_for(second, OF_A_FILE)
    stop(second)
    second.ended(distinct=OF_A_FILE)


@pytest.mark.matrix
def test_one_is_resumed_with_the_files_of_now_and_then_ends(
    in_process: ClusterMaker, click_log: Path, incoming: Path
) -> None:
    first = interrupted(in_process, click_log, incoming)
    arrive(click_log, incoming, "a.parquet")
    (incoming / "z.parquet").unlink()
    fixed = {"data": {"follow": False}}
    report = finished(in_process, going_on(changes(incoming), first.run, fixed)).report
    assert (report.examples.distinct, report.restored_examples) == (OF_A_FILE, 2 * OF_A_FILE)


@pytest.mark.matrix
def test_one_that_was_resumed_with_a_fixed_input_is_resumed_again(
    in_process: ClusterMaker, click_log: Path, incoming: Path
) -> None:
    """Its files are in the order in which they came, not in that of their names."""
    first = interrupted(in_process, click_log, incoming)
    arrive(click_log, incoming, "a.parquet")
    fixed = going_on(changes(incoming), first.run, {"data": {"follow": False}})
    second = interrupted_at(in_process, fixed, 20)
    arrive(click_log, incoming, "b.parquet")
    refused = in_process(going_on(fixed, second)).start_coordinator()
    assert refused.wait() == ExitCode.DATA
    assert f"{incoming}/b.parquet was not there" in refused.text()
    (incoming / "b.parquet").unlink()
    report = finished(in_process, going_on(fixed, second)).report
    assert report.examples.distinct + report.restored_examples == 3 * OF_A_FILE


def test_a_file_that_cannot_be_trained_on_stops_the_job_and_is_named(
    in_process: ClusterMaker, incoming: Path
) -> None:
    own = in_process(changes(incoming)).start()
    wait_for(own, OF_A_FILE)
    (incoming / "z.parquet").write_text("not a table\n", encoding="utf-8")
    assert own.wait() == ExitCode.DATA
    said = own.coordinator.text()
    assert "a new file of data.path cannot be trained on" in said
    assert str(incoming / "z.parquet") in said
    # What was trained is kept, and the file can be mended.
    assert "shadowsync resume" in said
    (incoming / "z.parquet").unlink()
    again = in_process(going_on(changes(incoming), own.run)).start()
    stop(again)
    again.ended(distinct=0)


def test_rows_added_to_a_planned_file_are_an_event(
    in_process: ClusterMaker, incoming: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_new_spans, looks = GrowingInput.find_new_spans, list[FoundSpans]()

    def noted(self: GrowingInput) -> FoundSpans:
        looks.append(find_new_spans(self))
        return looks[-1]

    monkeypatch.setattr(GrowingInput, "find_new_spans", noted)
    own = in_process(changes(incoming)).start()
    wait_until(lambda: looks, "the job knows how the file was")
    os.utime(incoming / "m.parquet", (1, 1))
    wait_until(lambda: own.run.logged("m.parquet has changed since it was planned"), "that is an event")
    stop(own)
    own.ended()
    assert sum("has changed" in event.what for event in own.run.report.events) == 1


def test_a_job_of_fixed_input_is_not_stopped(in_process: ClusterMaker) -> None:
    own = in_process({"data": {"epochs": 10_000}}).start()
    own.wait_for_batches(1)
    assert "the job reads a fixed input" in said("stop", str(own.run.folder), code=ExitCode.CLUSTER)
    assert own.coordinator.poll() is None
    own.interrupted()
