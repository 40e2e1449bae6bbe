"""Which trainer begins a job, and who waits how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.coordinator.state.job import JobState
from shadowsync.nodes.coordinator.state.phases import JobPhase
from shadowsync.tests.support.coordinator.fake_coordinator import member, state_of
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.expected import present

CENTRAL = {"needs_center": True, "model_origin": "center"}
WARM = {"warmup_iterations": 1}
# `state_of` has one trained batch of 10.
START, DONE = 50_000, 10


def started(
    folder: Path, phase: JobPhase = JobPhase.TRAINING, trainers: int = 3, **sections: Any
) -> JobState:
    """The state of a job of three trainers, by default with a warm-up, in this phase."""
    facts = sections.pop("facts", {})
    sections.setdefault("embedding", WARM)
    sections.setdefault("sync", {"algorithm": "none"})
    nodes = [member("trainer", index, **facts) for index in range(trainers)]
    state = state_of(folder, [*nodes, member("embedding", 0), member("reader", 0)], **sections)
    state.start_members()
    if phase is not JobPhase.STARTING:
        state.lifecycle.begin_training({})
    return state


def names(state: JobState) -> tuple[list[str], list[str]]:
    """The trainers that take part, and those that wait."""
    active, waiting = state.members.alive("trainer"), state.lone_start.waiting()
    return [one.info.name for one in active], [one.info.name for one in waiting]


def train(state: JobState, examples: int) -> None:
    state.ledger.acknowledge("trainer-0", batch_id(1), examples)


def test_the_first_begins_and_the_others_wait_until_the_start_is_over(tmp_path: Path) -> None:
    state = started(tmp_path)
    assert names(state) == (["trainer-0"], ["trainer-1", "trainer-2"])
    assert state.lone_start.holds
    assert [one.info.name for one in state.lone_start.untouched()] == ["trainer-1", "trainer-2"]
    train(state, START - DONE - 1)
    assert state.lone_start.holds
    state.ledger.acknowledge("trainer-0", batch_id(2), 1)
    assert not state.lone_start.holds
    # They wait until they are introduced, of which a coordinator that takes over knows nothing.
    assert names(state)[1] == ["trainer-1", "trainer-2"]
    assert state.lone_start.untouched() == []


@pytest.mark.parametrize(
    "sections",
    [
        {"embedding": {"warmup_iterations": 0}},
        {"trainer": {"count": 1}, "trainers": 1},
    ],
    ids=["no warm-up", "one trainer"],
)
def test_the_control_all_begin_at_once(tmp_path: Path, sections: dict[str, Any]) -> None:
    state = started(tmp_path, **sections)
    assert names(state)[1] == []
    assert not state.lone_start.is_on
    assert not state.lone_start.holds


def test_a_run_that_is_past_its_start_has_none(tmp_path: Path) -> None:
    nodes = [member("trainer", index) for index in range(2)]
    state = state_of(tmp_path, nodes, embedding=WARM)
    train(state, START)
    state.start_members()
    assert names(state) == (["trainer-0", "trainer-1"], [])


def test_the_start_is_that_of_one_trainer_however_many_there_are(tmp_path: Path) -> None:
    for trainers in (2, 8):
        job = started(tmp_path, trainers=trainers).job
        assert (job.rows_warmup_examples, job.start_examples) == (job.trainer.batch, START)
        every = started(tmp_path, trainers=trainers, embedding={"warmup_iterations": 0}).job
        assert every.start_examples == trainers * START, "all of them look nothing further up"
    long = started(tmp_path, embedding={"warmup_iterations": 1_000}).job
    assert long.start_examples == 3 * 1_000 * long.trainer.batch


@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.TRAINING])
@pytest.mark.parametrize("facts", [{}, CENTRAL])
def test_if_it_dies_another_one_can_go_on(tmp_path: Path, phase: JobPhase, facts: dict[str, Any]) -> None:
    state = started(tmp_path, phase, facts=facts)
    death = present(state.mark_dead("token-trainer-0", "died"))
    assert death.stop is None
    assert not state.lone_start.holds, "one of them may go on"
    assert [one.info.name for one in state.lone_start.untouched()] == ["trainer-2"]
    assert state.has_to_recover(death.member)
    state.lone_start.waiting()[0].begin()
    assert names(state) == (["trainer-1"], ["trainer-2"])
    assert state.lone_start.holds, "the last one waits again"


def test_the_control_without_one_that_waits_the_job_ends(tmp_path: Path) -> None:
    state = started(tmp_path)
    for name in ("trainer-1", "trainer-2"):
        death = present(state.mark_dead(f"token-{name}", "died"))
        assert (death.stop, death.group) == (None, None)
    death = present(state.mark_dead("token-trainer-0", "died"))
    assert death.stop is not None
    assert death.stop.text == "the last trainer died"


def test_it_can_leave_since_another_one_goes_on_first(tmp_path: Path) -> None:
    state = started(tmp_path)
    first = state.members.require("token-trainer-0")
    assert state.can_leave(first)
    first.prepare_to_leave()
    assert not state.lone_start.holds
    state.lone_start.waiting()[0].begin()
    assert state.lone_start.holds
    for waiting in state.lone_start.waiting():
        state.mark_dead(waiting.info.token, "died")
    second = state.members.require("token-trainer-1")
    state.leave(first, {})
    assert not state.can_leave(second), "the control: no other one is left"


def test_whoever_joins_meanwhile_waits_too_and_is_not_one_of_them(tmp_path: Path) -> None:
    state = started(tmp_path)
    late = state.join("trainer", "late", state.job.digest, "", "here", 2)
    assert not late.held
    assert late not in state.lone_start.untouched()
    assert state.lone_start.holds
