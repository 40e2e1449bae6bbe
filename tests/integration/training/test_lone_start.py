"""One trainer goes through the start of a job alone, then the others join it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import folder_of, going_on
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder
from shadowsync.tests.support.jobs.short_start import (
    ALGORITHMS,
    ALL_BATCHES,
    WARM,
    InOrder,
    algorithms,
    short_start,
)

START = 40


def changed(sync: dict[str, Any], **sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    trainer = {"count": 3, "optimizer": "adagrad", **sections.pop("trainer", {})}
    return {"trainer": trainer, "embedding": WARM, "sync": sync, **sections}


def squares(run: RunFolder, trainer: str) -> float:
    """The mean of Adagrad's sums in a trainer's part of the last checkpoint."""
    path, manifest = open_checkpoint(run.folder, verify=True)
    reader = TensorReader(path, [entry for entry in manifest.files if entry.role == trainer])
    return float(np.mean(reader.read("optimizer.sum")))


@pytest.mark.parametrize("algorithm", algorithms("easgd", "bmuf", "fixed bmuf"))
def test_the_others_join_with_its_weights_and_its_optimizer(in_process: ClusterMaker, algorithm: str) -> None:
    slowed, joining, order = Slowed(START // 2), Slowed(START), InOrder()
    faults = (short_start(START), slowed, joining, order)
    own = in_process(changed(ALGORITHMS[algorithm]), faults=faults).start()
    own.wait_for_batches(START // 2)
    status = own.status()
    assert status["phase"] == "training, one trainer alone at first"
    assert [node["why"] for node in status["nodes"] if node["role"] == "trainer"] == ["", "", ""]
    slowed.release()
    wait_until(lambda: len(set(order)) == 3, "the others train")
    joining.release()
    report, run = own.ended_whole(ExitCode.OK), own.run
    assert set(order[:START]) == {"trainer-0"}
    assert set(order) == {"trainer-0", "trainer-1", "trainer-2"}
    assert report.examples.trained == EXAMPLES
    start, joined = ((event.node, event.what) for event in report.events)
    assert start == ("trainer-0", "goes through the start of 5,120 examples alone, before 2 others")
    assert joined[0] == "coordinator"
    assert joined[1].startswith("2 trainers joined after the start of ")
    assert joined[1].endswith(" examples, with the weights and the optimizer of trainer-0")
    # Sums of squares only grow, most of all at first: each has those of the start in its own.
    assert min(squares(run, f"trainer-{index}") for index in (1, 2)) > 0.5 * squares(run, "trainer-0")


def test_the_control_all_begin_at_once(in_process: ClusterMaker) -> None:
    slowed, order = Slowed(START // 2), InOrder()
    settings = changed(ALGORITHMS["easgd"]) | {"embedding": {"warmup_iterations": 0}}
    own = in_process(settings, faults=(short_start(START), slowed, order)).start()
    wait_until(lambda: len(set(order)) == 3, "all of them train")
    assert len(order) < START
    slowed.release()
    assert own.ended().events == []


def test_the_input_may_end_in_the_start(in_process: ClusterMaker) -> None:
    order = InOrder()
    faults = (short_start(2 * ALL_BATCHES), order)
    report = finished(in_process, changed(ALGORITHMS["bmuf"]), faults=faults).report
    assert set(order) == {"trainer-0"}
    assert report.examples.trained == EXAMPLES
    assert report.eval is not None
    said = report.events[-1].what
    assert said.startswith("training ended within the start of 40,192 examples")
    assert "trainer-1, trainer-2 trained nothing" in said


@pytest.mark.parametrize("workers", [2, 4])
def test_the_input_may_end_before_all_workers_begin(in_process: ClusterMaker, workers: int) -> None:
    """The second begins after half of it; the fourth would after one and a half."""
    settings = changed(ALGORITHMS["none"]) | {"trainer": {"count": 1, "workers": workers}}
    report = finished(in_process, settings, faults=(short_start(ALL_BATCHES // 2),)).report
    said = [event.what for event in report.events if "workers had begun" in event.what]
    assert len(said) == (workers > 2)
    assert all("when 3 of a trainer's 4 workers had begun" in what for what in said)


@pytest.mark.parametrize("batches", [START // 2, START + 20], ids=["in the start", "after it"])
def test_a_resumed_run_goes_on_in_its_start_or_past_it(in_process: ClusterMaker, batches: int) -> None:
    settings, slowed, order = changed(ALGORITHMS["easgd"]), Slowed(batches), InOrder()
    own = in_process(settings, faults=(short_start(START), slowed)).start()
    own.wait_for_batches(batches)
    own.coordinator.interrupt()
    slowed.release()
    assert own.wait() == ExitCode.INTERRUPTED, own.coordinator.text()
    before, again = folder_of(own), Slowed(START // 2)
    then = in_process(going_on(settings, before), faults=(short_start(START), again, order)).start()
    wait_until(lambda: len(set(order)) == 3, "all train")
    again.release()
    then.ended()
    report, lone = then.run.report, START - before.batches()
    events = [event.what for event in report.events]
    assert any("alone, before 2 others" in what for what in events) == (batches < START), events
    assert batches > START or set(order[:lone]) == {"trainer-0"}
    assert set(order) == {"trainer-0", "trainer-1", "trainer-2"}
