"""A link to the coordinator that is gone for a while: who was declared dead and lives comes back."""

from __future__ import annotations

import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.cut_links import COORDINATOR, CutLinks
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, finished
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import folder_of, going_on
from shadowsync.tests.support.jobs.runs import EXAMPLES, Settings
from shadowsync.tests.support.sync.example_algorithms import DOWNPOUR, needs_examples

pytestmark = pytest.mark.no_kill

SETTINGS: Settings = {
    # Long enough for nodes of a busy machine.
    "run": {"node_timeout_seconds": 3.0},
    "embedding": {"nodes": 2},
}
BACK = "joined the running job"
SLICE = ": it was declared dead and lives, and has its slice"


class CutOff:
    """A job with some nodes cut off from the coordinator until they are declared dead."""

    def __init__(
        self, make: ClusterMaker, names: list[str], changes: Settings | None = None, *, replaces: bool = False
    ) -> None:
        # Of the one epoch much is left when the nodes are back.
        self.links, self.slowed, self.names = CutLinks(), Slowed(30, 1.0), names
        faults = (self.links, self.slowed)
        self.own: InProcessCluster = make({**SETTINGS, **(changes or {})}, faults=faults, replaces=replaces)
        self.own.start()
        self.own.wait_for_batches(20)
        if "checkpoint" in self.own.job.model_fields_set:
            wait_until((self.own.run.folder / "checkpoint").exists, "there is a checkpoint")
        self.nodes = [self.own.node(name) for name in names]
        for name in names:
            self.links.cut(name, COORDINATOR)
        self.await_events(*(f"{name}: was silent for 3 s" for name in names))

    def await_events(self, *texts: str) -> None:
        """Wait until the coordinator has logged all of these."""
        for text in texts:
            wait_until(lambda text=text: self.own.run.logged(text, ["coordinator"]), text)  # type: ignore[misc]

    def mend(self) -> None:
        """The links are whole again."""
        for name in self.names:
            self.links.mend(name, COORDINATOR)


@pytest.mark.parametrize("trainer", [{}, pytest.param({"lookups_ahead": 16}, marks=pytest.mark.matrix)])
def test_an_embedding_node_and_a_trainer_come_back(in_process: ClusterMaker, trainer: dict[str, int]) -> None:
    job = CutOff(in_process, ["embedding-0", "trainer-1"], {"trainer": trainer})
    job.mend()
    job.await_events(f"embedding-2: {BACK}: it was declared dead and lives", f"trainer-2: {BACK}")
    job.slowed.release()
    report = job.own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    said = [f"{event.node}: {event.what}" for event in report.events]
    # Its rows and its ledger are the same: nothing is trained again for it.
    assert "embedding-2: it has every trained batch" in said, said
    assert not any("failed" in text for text in said), said
    assert report.examples.replayed == 0
    assert [node.code for node in job.nodes] == [ExitCode.FINISHED_WITH_DEATHS] * 2


@pytest.mark.matrix
def test_one_whose_place_is_taken_says_so_and_goes(in_process: ClusterMaker) -> None:
    job = CutOff(in_process, ["embedding-0"])
    job.own.join("embedding")
    job.await_events(f"embedding-2: {BACK} with newly initialized rows")
    job.mend()
    (before,) = job.nodes
    assert before.wait() == ExitCode.STOPPED_BY_DEATH
    assert (
        "was declared dead: it was silent for 3 s; embedding-2 has taken the place of embedding-0"
        in before.text()
    )
    job.slowed.release()
    job.own.ended(ExitCode.FINISHED_WITH_DEATHS)


@pytest.mark.matrix
def test_under_a_supervisor_it_comes_back_and_is_replaced_once_it_dies(in_process: ClusterMaker) -> None:
    job = CutOff(in_process, ["embedding-0"], replaces=True)
    job.mend()
    job.await_events(f"embedding-2: {BACK}: it was declared dead and lives", "embedding-2: it has every")
    (node,) = job.nodes
    node.kill()
    # The supervisor knows it by its first token.
    job.own.replace_dead(node)
    job.await_events("embedding-2: died (killed by SIGKILL)", f"embedding-3: {BACK} with newly initialized")
    job.slowed.release()
    job.own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)


@pytest.mark.matrix
@pytest.mark.parametrize("sync", [{}, {"algorithm": "decoupled"}], ids=["default", "decoupled"])
def test_a_reader_and_a_sync_node_come_back(in_process: ClusterMaker, sync: dict[str, str]) -> None:
    job = CutOff(in_process, ["reader-0", "sync-0"], {"sync": sync})
    job.mend()
    job.await_events(f"reader-1: {BACK}", f"sync-1: {BACK}{SLICE}")
    job.slowed.release()
    job.own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)


@needs_examples
@pytest.mark.matrix
def test_a_slice_that_nobody_can_make_anew_comes_back(in_process: ClusterMaker) -> None:
    """Of a center that sums: a new node is refused, and it is the same one."""
    job = CutOff(in_process, ["sync-0"], {"sync": {"algorithm": DOWNPOUR}})
    new = job.own.join("sync")
    assert new.wait() != ExitCode.OK
    assert "cannot take another sync node now" in new.text()
    job.mend()
    job.await_events(f"sync-1: {BACK}{SLICE}")
    job.slowed.release()
    report = job.own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    assert report.model_saved == f"the center ({DOWNPOUR})", report.events


@pytest.mark.matrix
def test_without_any_trainer_it_is_said_what_is_lost_and_the_checkpoint_goes_on(
    in_process: ClusterMaker,
) -> None:
    """Under an algorithm whose model only trainers have."""
    changes: Settings = {"sync": {"algorithm": "bmuf"}, "checkpoint": {"every_examples": 1_000}}
    job = CutOff(in_process, ["trainer-0", "trainer-1"], changes)
    assert job.own.wait() == ExitCode.STOPPED_BY_DEATH
    job.mend()
    job.slowed.release()
    text, run = job.own.coordinator.text(), folder_of(job.own)
    report = run.report
    saved = open_checkpoint(run.folder, verify=True)[1].examples_trained
    trained = report.examples.distinct
    assert "the last trainer died" in text
    said = [event.what for event in report.events]
    all_of_it = f"the checkpoint that was written during training has all {trained:,} trained examples"
    some = f"the last checkpoint is older: it has {saved:,} of {trained:,} trained examples"
    assert (all_of_it if saved == trained else some) in said, said
    assert "`shadowsync resume " in text
    rest = finished(in_process, going_on({**SETTINGS, **changes}, run))
    assert saved + rest.report.examples.distinct == EXAMPLES
