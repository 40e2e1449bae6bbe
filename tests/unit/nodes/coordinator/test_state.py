"""The state of a job: which phase may follow which, what a death means, and who may change it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import shadowsync
from shadowsync.nodes.coordinator.state.outcome import Stop
from shadowsync.nodes.coordinator.state.facts import MAX_POINTS, DivergenceCurve
from shadowsync.nodes.coordinator.state.job import JobState
from shadowsync.nodes.coordinator.state.phases import NEXT_PHASES, JobPhase, PhaseError
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.fake_coordinator import member, state_of

NODES = Path(shadowsync.__file__).resolve().parent / "nodes"
# What the coordinator's parts are called where others hold them.
OWNED = {"state", "_state", "server", "_server", "coordinator", "member", "members", "node"}


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
            state.enter(phase)
    state.finish("finished")
    assert (state.over, state.outcome) == (True, "finished")


@pytest.mark.parametrize("phase", JobPhase)
def test_what_cannot_follow_is_refused_and_changes_nothing(state: JobState, phase: JobPhase) -> None:
    if phase in NEXT_PHASES[JobPhase.GATHERING]:
        state.enter(phase)
        assert state.phase is phase
        return
    with pytest.raises(PhaseError, match=f"{phase.name} cannot follow GATHERING"):
        state.enter(phase)
    assert state.phase is JobPhase.GATHERING


def test_every_phase_is_reached_and_ends() -> None:
    assert set(NEXT_PHASES) == set(JobPhase)
    assert set().union(*NEXT_PHASES.values()) == set(JobPhase) - {JobPhase.GATHERING}
    for phase, following in NEXT_PHASES.items():
        assert phase is JobPhase.DONE or JobPhase.DONE in following


def test_the_first_reason_to_stop_counts(state: JobState) -> None:
    first, second = (Stop("failed", text, ExitCode.DATA) for text in ("first", "second"))
    assert state.request_stop(first)
    assert not state.request_stop(second)
    assert state.stop is first


def test_a_node_that_dies_before_the_start_stops_the_job(state: JobState) -> None:
    death = state.mark_dead("token-trainer-0", "died (killed)")
    assert death is not None
    assert death.stop is not None
    assert death.stop.text == "trainer-0 died before the job started (died (killed))"
    assert state.mark_dead("token-trainer-0", "again") is None, "it is dead already"


@pytest.mark.parametrize(
    ("dead", "text", "lost_shard"),
    [
        (["trainer-0"], None, False),
        (["trainer-0", "trainer-1"], "the last trainer died", False),
        (["embedding-0"], "embedding-0 died, and its 1,000 rows are lost", True),
        (["reader-0"], "reader-0 died; the batches that it had not delivered are untrained", False),
    ],
)
def test_which_deaths_a_job_survives(
    state: JobState, dead: list[str], text: str | None, lost_shard: bool
) -> None:
    state.start_members()
    deaths = [state.mark_dead(f"token-{name}", "died") for name in dead]
    assert deaths[-1] is not None
    stop = deaths[-1].stop
    assert (stop and stop.text) == text
    assert (stop is not None and stop.lost_shard) == lost_shard


def test_a_dead_trainer_leaves_the_group_and_its_unsynchronized_updates_are_lost(state: JobState) -> None:
    state.start_members()
    death = state.mark_dead("token-trainer-0", "died")
    assert death is not None
    assert death.group is not None
    assert death.group.members == (1,)
    # One batch of it is in the ledger, of which it had synchronized nothing.
    assert state.lost_dense_updates == 1


@pytest.mark.parametrize("balance", ["off", "updates"])
def test_a_slow_trainer_is_told_to_cut_its_batches_while_it_trains(tmp_path: Path, balance: str) -> None:
    nodes = [member("trainer", 0), member("trainer", 1), member("reader", 0)]
    now = [0.0]
    trainer = {"count": 2, "balance": balance}
    state = state_of(tmp_path, nodes, clock=lambda: now[0], sync={"algorithm": "none"}, trainer=trainer)
    rates = {"trainer-0": 30, "trainer-1": 90, "reader-0": 60}

    def orders(first: int) -> dict[str, list[float]]:
        """Those of five seconds."""
        found: dict[str, list[float]] = {}
        for seconds in range(first, first + 5):
            now[0] = float(seconds)
            for one in state.members.alive():
                done, name = rates[one.info.name] * seconds, one.info.name
                counts = {"iterations": done, "dense_updates": done, "parts": 1.0}
                parts = state.heartbeat(one, counts if "trainer" in name else {"read_examples": done})
                if parts is not None:
                    found.setdefault(name, []).append(parts)
        return found

    state.enter(JobPhase.STARTING)
    assert orders(0) == {}
    state.enter(JobPhase.TRAINING)
    given = orders(5)
    if balance == "off":
        assert given == {}, "the control"
        return
    assert list(given) == ["trainer-0"]
    assert 3.0 <= given["trainer-0"][-1] < 4.6
    state.mark_dead(nodes[1].info.token, "gone")
    assert orders(10) == {}, "it is the fastest now"
    state.enter(JobPhase.CLOSING)
    assert orders(15) == {}


def test_at_the_end_nobody_dies(state: JobState) -> None:
    state.finish("finished")
    assert state.mark_dead("token-trainer-0", "died") is None
    assert state.members.require("token-trainer-0").alive


def test_a_curve_keeps_every_second_point_and_doubles_its_period() -> None:
    curve = DivergenceCurve()
    for second in range(MAX_POINTS):
        curve.add(float(second), 0.5)
    assert curve.period_seconds == 2.0
    assert [seconds for seconds, _ in curve.points[:3]] == [0.0, 2.0, 4.0]
    assert len(curve.points) == MAX_POINTS // 2


def written_from_outside(source: str) -> list[str]:
    """Where attributes are assigned of the coordinator's parts by others than they themselves."""
    found = []
    for node in ast.walk(ast.parse(source)):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AugAssign | ast.AnnAssign)
            else []
        )
        places = [
            place for target in targets for place in ast.walk(target) if isinstance(place, ast.Attribute)
        ]
        for place in places:
            owner = place.value
            name = (
                owner.id
                if isinstance(owner, ast.Name)
                else owner.attr
                if isinstance(owner, ast.Attribute)
                else ""
            )
            if isinstance(place.ctx, ast.Store) and name in OWNED:
                found.append(ast.unparse(place))
    return found


def test_nobody_writes_attributes_of_the_coordinator() -> None:
    sources = {path.name: path.read_text("utf-8") for path in NODES.rglob("*.py")}
    files = {name: text for name, text in sources.items() if re.search("JobState|CoordinatorServer", text)}
    assert len(files) > 10
    found = {name: found for name, text in files.items() if (found := written_from_outside(text))}
    assert found == {}


@pytest.mark.parametrize(
    "source",
    ["self._state.phase = 1", "state.lost += 1", "server.state.stop: int = 1", "a, self._server.x = 1, 2"],
)
def test_who_writes_them_is_found(source: str) -> None:
    assert written_from_outside(source)


def test_its_own_attributes_are_its_own() -> None:
    assert written_from_outside("self.phase = 1\nstate = 2\nself._state = 3\nx = state.phase") == []
