"""Checks of trainers that die, leave or join at every phase of a round."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..sync_algos.base import AlgorithmState, Slice
from ..sync_algos.memory.faults import Action, Fault, Phase
from .harness import Harness, Subject, same_state

TRAINERS = 3
WARM_ROUNDS = 2


@dataclass(frozen=True)
class After:
    """Results and replicas after a round without faults."""

    results: dict[int, bool]
    replicas: list[torch.Tensor]


def check_death(subject: Subject) -> None:
    """Check that each trainer may die at each phase."""
    _check_going(subject, "death in mid-round", Action.DIE)


def check_leave(subject: Subject) -> None:
    """Check that each trainer may leave at each phase, with a whole replica."""
    _check_going(subject, "leaving", Action.LEAVE)


def check_join(subject: Subject) -> None:
    """Check that a trainer may join between rounds and at each phase."""
    harness = Harness(subject, "joining", TRAINERS, members=(0, 1))
    harness.rounds(WARM_ROUNDS)
    harness.cluster.act(2, Action.JOIN)
    _check_next(harness, "the first round of a trainer that joined")
    quiet = _after(subject, (0, 1))
    for reaching in (0, 1):
        for phase in Phase:
            harness = Harness(subject, "joining", TRAINERS, members=(0, 1))
            harness.rounds(WARM_ROUNDS)
            fault = Fault(2, Action.JOIN, reaching, phase)
            _check_round(harness, fault, [quiet])
            if 2 not in harness.cluster.members:
                # This algorithm's rounds do not have the phase.
                harness.cluster.act(2, Action.JOIN)
            _check_next(harness, f"the round after {fault}")


def _check_going(subject: Subject, check: str, action: Action) -> None:
    everyone = _after(subject, tuple(range(TRAINERS)))
    for who in range(TRAINERS):
        without = _after(subject, tuple(range(TRAINERS)), gone=who, action=action)
        for phase in Phase:
            harness = Harness(subject, check, TRAINERS)
            harness.rounds(WARM_ROUNDS)
            fault = Fault(who, action, who, phase)
            _check_round(harness, fault, [everyone, without])
            _check_next(harness, f"the round after {fault}")


def _after(
    subject: Subject, members: tuple[int, ...], gone: int | None = None, action: Action = Action.LEAVE
) -> After:
    """Run a round without faults, after the trainer `gone`, if any, died or left."""
    harness = Harness(subject, "reference", TRAINERS, members=members)
    harness.rounds(WARM_ROUNDS)
    harness.train()
    if gone is not None:
        harness.cluster.act(gone, action)
    results = harness.round(f"round {WARM_ROUNDS + 1}")
    return After(results, harness.replicas())


def _check_round(harness: Harness, fault: Fault, references: list[After]) -> None:
    """Check each living trainer's replica after a round with a fault.

    The replica must equal a reference's, or be as the trainer's workers left it.
    """
    harness.train()
    before = {index: harness.state(index) for index in range(TRAINERS)}
    step = str(fault)
    for index, complete in harness.round(step, [fault]).items():
        fitting = [after for after in references if after.results.get(index) is True]
        state = harness.state(index)
        if not complete:
            _check_incomplete(harness, step, index, fitting)
            if not same_state(state, before[index]):
                harness.fail(
                    step,
                    "an unchanged state, since the round is not complete",
                    f"trainer {index}: {_moved(before[index], state)}",
                )
            continue
        if not _whole(harness, index, fitting):
            expected = "a replica to which everything was applied, since the round returned True"
            harness.fail(step, expected, f"another replica of trainer {index}")


def _check_incomplete(harness: Harness, step: str, index: int, fitting: list[After]) -> None:
    """Check that nothing but whole slices from a center is applied."""
    parts = harness.cluster.center.slices if harness.subject.cls.needs_center else (_all(harness),)
    for part in parts:
        values, alone = (_cut(replicas[index], part) for replicas in (harness.replicas(), harness.alone))
        if torch.equal(values, alone):
            continue
        replied = any(torch.equal(values, _cut(after.replicas[index], part)) for after in fitting)
        if not (harness.subject.cls.needs_center and replied):
            apart = float((values - alone).abs().max())
            expected = "the replica as its workers left it, since the round is not complete"
            harness.fail(step, expected, f"trainer {index}'s replica off by {apart:.3g}")


def _whole(harness: Harness, index: int, references: list[After]) -> bool:
    """Return whether a replica equals a reference's.

    With a center, each slice may equal another reference's: the center may have some slices of a trainer
    that died.
    """
    replica = harness.cluster.replicas[index].values
    parts = harness.cluster.center.slices if harness.subject.cls.needs_center else (_all(harness),)
    return all(
        any(torch.equal(_cut(replica, part), _cut(after.replicas[index], part)) for after in references)
        for part in parts
    )


def _check_next(harness: Harness, step: str) -> None:
    """Check that the members' next round completes, and that they agree again.

    The rounds of an algorithm without center and peers must not complete.
    """
    # Small groups may have run different numbers of rounds; over a network the slower ones would catch up.
    harness.cluster.regroup()
    completes = harness.subject.cls.needs_center or harness.subject.cls.needs_peers
    harness.train()
    for index, complete in harness.round(step).items():
        if complete != completes:
            harness.fail(
                step, f"{completes} from each member's round", f"{complete} from trainer {index}'s round"
            )
    harness.check_global_models(step)
    if not (harness.subject.cls.needs_peers and harness.subject.cls.state_names):
        return
    states = {index: harness.state(index) for index in harness.cluster.members}
    for index, state in states.items():
        if state.completed_rounds != states[min(states)].completed_rounds:
            expected = (
                f"{states[min(states)].completed_rounds} completed rounds, as trainer {min(states)} has"
            )
            harness.fail(step, expected, f"{state.completed_rounds} on trainer {index}")


def _moved(before: AlgorithmState, after: AlgorithmState) -> str:
    if before.completed_rounds != after.completed_rounds:
        return f"{after.completed_rounds} completed rounds instead of {before.completed_rounds}"
    names = [name for name, tensor in before.tensors.items() if not torch.equal(tensor, after.tensors[name])]
    return f"{names[0]!r} changed" if names else "other names"


def _all(harness: Harness) -> Slice:
    return harness.cluster.replicas[0].whole


def _cut(values: torch.Tensor, part: Slice) -> torch.Tensor:
    return values[part.start : part.stop]
