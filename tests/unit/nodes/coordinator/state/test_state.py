"""The state of a job: which phase may follow which, and what a death means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.control.progress import MAX_POINTS, DivergenceCurve
from shadowsync.nodes.coordinator.state.changes import REQUESTS
from shadowsync.nodes.coordinator.state.job import Death, JobState
from shadowsync.nodes.coordinator.state.outcome import ClosingResult, DrainedCounts, Outcome, Stop
from shadowsync.nodes.coordinator.state.phases import NEXT_PHASES, JobPhase, PhaseError
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.control.messages import Hello, HelloReply
from shadowsync.tests.support.coordinator.fake_coordinator import member, state_of
from shadowsync.tests.support.expected import of_type, present


@pytest.fixture
def state(tmp_path: Path) -> JobState:
    nodes = [
        member("trainer", 0),
        member("trainer", 1),
        member("embedding", 0, rows=1000),
        member("reader", 0),
    ]
    return state_of(tmp_path, nodes, sync={"algorithm": "none"})


def test_a_whole_job_is_a_way_through_the_phases(state: JobState) -> None:
    for phase in tuple(JobPhase)[1:]:
        if phase not in (JobPhase.STOPPING, JobPhase.DONE):
            state.lifecycle.enter(phase)
    state.lifecycle.finish("finished")
    assert (state.lifecycle.over, state.lifecycle.outcome) == (True, "finished")


@pytest.mark.parametrize("phase", JobPhase)
def test_what_cannot_follow_is_refused_and_changes_nothing(state: JobState, phase: JobPhase) -> None:
    if phase in NEXT_PHASES[JobPhase.GATHERING]:
        state.lifecycle.enter(phase)
        assert state.lifecycle.phase is phase
        return
    with pytest.raises(PhaseError, match=f"{phase.name} cannot follow GATHERING"):
        state.lifecycle.enter(phase)
    assert state.lifecycle.phase is JobPhase.GATHERING


def test_every_phase_is_reached_and_ends() -> None:
    assert set(NEXT_PHASES) == set(JobPhase)
    assert set().union(*NEXT_PHASES.values()) == set(JobPhase) - {JobPhase.GATHERING}
    for phase, following in NEXT_PHASES.items():
        assert phase is JobPhase.DONE or JobPhase.DONE in following


def test_the_first_reason_to_stop_counts(state: JobState) -> None:
    first, second = (Stop("failed", text, ExitCode.DATA) for text in ("first", "second"))
    assert state.lifecycle.request_stop(first)
    assert not state.lifecycle.request_stop(second)
    assert state.lifecycle.stop is first


def test_before_the_start_another_node_takes_the_place_of_a_dead_one(state: JobState) -> None:
    death = present(state.mark_dead("token-embedding-0", "died (killed)"))
    assert death.stop is None
    assert state.mark_dead("token-embedding-0", "again") is None, "it is dead already"
    assert state.members.missing() == {"embedding": 1}
    assert state.ledger.owed.has_all_shards, "no row was lost"
    assert state.join("embedding", "another", state.job.digest, "", "here", 2).info.name == "embedding-0"


def deaths_in(state: JobState, phase: JobPhase, dead: list[str]) -> list[Death | None]:
    """What nodes, which die in this phase one after the other, leave; the last one says whether it stops."""
    state.start_members()
    for following in (JobPhase.TRAINING, JobPhase.CLOSING, JobPhase.CHECKPOINT, JobPhase.VALIDATING):
        if state.lifecycle.phase is not phase:
            state.lifecycle.enter(following)
    return [state.mark_dead(f"token-{name}", "died") for name in dead]


@pytest.mark.parametrize(
    ("phase", "dead", "text", "lost_shard"),
    [
        (JobPhase.STARTING, ["trainer-0"], None, False),
        (JobPhase.STARTING, ["trainer-0", "trainer-1"], "the last trainer died", False),
        (JobPhase.STARTING, ["embedding-0"], None, False),
        (JobPhase.STARTING, ["reader-0"], None, False),
        (JobPhase.TRAINING, ["embedding-0", "reader-0"], None, False),
        (JobPhase.CLOSING, ["trainer-0"], None, False),
        (JobPhase.CLOSING, ["embedding-0"], "embedding-0 died, and its 1,000 rows are lost", True),
        (JobPhase.CHECKPOINT, ["embedding-0"], "embedding-0 died, and its 1,000 rows are lost", True),
        (JobPhase.VALIDATING, ["embedding-0"], "embedding-0 died before the model was scored", True),
        (
            JobPhase.CLOSING,
            ["reader-0"],
            "reader-0 died; the batches that it had not delivered are untrained",
            False,
        ),
    ],
)
def test_which_deaths_a_job_survives(
    state: JobState, phase: JobPhase, dead: list[str], text: str | None, lost_shard: bool
) -> None:
    deaths = deaths_in(state, phase, dead)
    assert deaths[-1] is not None
    stop = deaths[-1].stop
    assert (stop and stop.text) == text
    assert (stop is not None and stop.lost_shard) == lost_shard


CENTRAL = {"needs_center": True, "model_origin": "center"}
LAST = "the last trainer died"
LOST = "sync-0 died while the job had no trainer, so the center is lost"


@pytest.mark.parametrize(
    ("facts", "phase", "dead", "text"),
    [
        (CENTRAL, JobPhase.TRAINING, ["trainer-0"], None),
        (CENTRAL, JobPhase.STARTING, ["trainer-0"], LAST),
        (CENTRAL, JobPhase.CLOSING, ["trainer-0"], LAST),
        (CENTRAL, JobPhase.TRAINING, ["sync-0"], None),
        (CENTRAL, JobPhase.TRAINING, ["sync-0", "trainer-0"], LAST),
        (CENTRAL, JobPhase.TRAINING, ["trainer-0", "sync-0"], LOST),
        # Its sync nodes have something else than the model.
        ({"needs_center": True, "model_origin": "replicas"}, JobPhase.TRAINING, ["trainer-0"], LAST),
        ({"model_origin": "center"}, JobPhase.TRAINING, ["trainer-0"], LAST),
    ],
)
def test_a_job_survives_its_last_trainer_where_the_center_has_the_model(
    tmp_path: Path, facts: dict[str, Any], phase: JobPhase, dead: list[str], text: str | None
) -> None:
    nodes = [member("trainer", 0, **facts), member("embedding", 0), member("reader", 0), member("sync", 0)]
    state = state_of(tmp_path, nodes, sync={"nodes": 1}, trainer={"count": 1})
    deaths = deaths_in(state, phase, dead)
    assert deaths[-1] is not None
    stop = deaths[-1].stop
    assert (stop and stop.text) == text
    last_died = "trainer-0" in dead and text is None
    assert state.can_join("trainer") == last_died
    assert state.has_to_recover(deaths[0].member if deaths[0] else nodes[0]) == (dead[0] == "trainer-0")


def test_a_job_of_one_trainer_never_gets_a_second(tmp_path: Path) -> None:
    """Its schedule counts that one alone."""
    nodes = [member("trainer", 0, **CENTRAL), member("embedding", 0), member("reader", 0), member("sync", 0)]
    state = state_of(tmp_path, nodes, sync={"nodes": 1})
    state.start_members()
    state.lifecycle.enter(JobPhase.TRAINING)
    assert not state.can_join("trainer")
    state.mark_dead("token-trainer-0", "died")
    assert state.can_join("trainer")
    late = state.join("trainer", "late", state.job.digest, "", "here", 2)
    assert late.info.name == "trainer-1"
    assert not state.can_join("trainer")


def test_a_dead_trainer_leaves_the_group_and_its_unsynchronized_updates_are_lost(state: JobState) -> None:
    state.start_members()
    death = present(state.mark_dead("token-trainer-0", "died"))
    assert death.group is not None
    assert death.group.members == (1,)
    # One batch of it is in the ledger, of which it had synchronized nothing.
    assert state.training.lost_dense_updates == 1


def test_nodes_are_told_the_absolute_folder_of_the_run(
    tmp_path: Path,
) -> None:
    known = state_of(tmp_path, [member("trainer", 0)])
    state = JobState(
        known.job, Path("runs/one"), known.ledger, known.placement, absolute_folder=tmp_path / "runs/one"
    )
    hello = Hello("reader", "token", known.job.digest, "", 1, "here")
    reply = of_type(HelloReply, REQUESTS[Hello](state, "token", hello).reply)
    assert reply.folder == str(tmp_path / "runs/one")


def test_at_the_end_nobody_dies(state: JobState) -> None:
    state.lifecycle.finish("finished")
    assert state.mark_dead("token-trainer-0", "died") is None
    assert state.members.require("token-trainer-0").alive


def test_a_curve_keeps_every_second_point_and_doubles_its_period() -> None:
    curve = DivergenceCurve()
    for second in range(MAX_POINTS):
        curve.add(float(second), 0.5)
    assert curve.period_seconds == 2.0
    assert [seconds for seconds, _ in curve.points[:3]] == [0.0, 2.0, 4.0]
    assert len(curve.points) == MAX_POINTS // 2


def test_the_counts_of_a_closing_round_are_added_to_those_of_the_drain() -> None:
    """A trainer that was late for the drain has those of the round alone."""
    drained = DrainedCounts(
        trainers={"trainer-0": {"rounds": 1, "iterations": 8}, "trainer-1": {"rounds": 1}}
    )
    closed = ClosingResult({"trainer-0": {"rounds": 2}, "trainer-2": {"rounds": 3}})
    assert Outcome(drained=drained, closed=closed).trainers == {
        "trainer-0": {"rounds": 2, "iterations": 8},
        "trainer-1": {"rounds": 1},
        "trainer-2": {"rounds": 3},
    }
    assert drained.trainers["trainer-0"] == {"rounds": 1, "iterations": 8}
