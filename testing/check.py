"""The conformance suite: an algorithm's contract, checked in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..sync_algos.base import Algorithm, AlgorithmState
from ..sync_algos.catalog.plugins import check_class
from ..sync_algos.contract.options import AlgorithmError, make_options
from .center import (
    check_center_lost,
    check_center_rule,
    check_late_trainer,
    check_merge_rule,
    check_shared_instance,
)
from .declaration import check_declaration, check_options
from .error import ConformanceError
from .faults import check_death, check_join, check_leave
from .harness import Harness, Subject
from .invariants import (
    check_bounded,
    check_fixed_point,
    check_one_peer,
    check_progress,
    check_repeatable,
    check_zero_rounds,
)


def check_state(subject: Subject) -> None:
    """Check that a new instance with the state continues bit by bit."""
    old, new = Harness(subject, "state"), Harness(subject, "state")
    old.rounds(3)
    # The last round has all that was trained: a trainer's unsent training would be lost with it.
    old.trains = False
    old.round("round 4, nobody training")
    old.trains = True
    for index in old.cluster.members:
        _hand_over(old, new, index)
    new.cluster.center.take_over(old.cluster.center)
    # Both clusters then count rounds from 0, and draw the same groups.
    old.cluster.regroup()
    for number in range(1, 4):
        for harness in (old, new):
            harness.train()
        step = f"round {number} after the state was handed over"
        results = [harness.round(step) for harness in (old, new)]
        if results[0] != results[1]:
            new.fail(step, f"results {results[0]}, as without a handover", str(results[1]))
        for index, (before, after) in enumerate(zip(old.replicas(), new.replicas(), strict=True)):
            if not torch.equal(before, after):
                apart = float((before - after).abs().max())
                new.fail(
                    step,
                    "the same replicas as without a handover",
                    f"trainer {index}'s replica off by {apart:.3g}",
                )
        for index, model in old.global_models().items():
            if not torch.equal(model, new.cluster.algorithms[index].global_model()):
                new.fail(step, "the same global model as without a handover", f"another on trainer {index}")


def _hand_over(old: Harness, new: Harness, index: int) -> None:
    """Hand over as a checkpoint does: replica, new instance, then its state."""
    replica = new.cluster.replicas[index]
    replica.values.copy_(old.cluster.replicas[index].values)
    replica.trained_examples = old.cluster.replicas[index].trained_examples
    new.steps[index] = old.steps[index]
    algorithm = new.subject.make()
    algorithm.start(replica)
    if new.subject.cls.state_names:
        state = old.state(index)
        algorithm.load_state(AlgorithmState(state.completed_rounds, state.tensors))
    new.cluster.algorithms[index] = algorithm


CHECKS: dict[str, Callable[[Subject], None]] = {
    "declaration": check_declaration,
    "options": check_options,
    "zero rounds": check_zero_rounds,
    "fixed point": check_fixed_point,
    "progress": check_progress,
    "repeatable": check_repeatable,
    "one peer": check_one_peer,
    "bounded": check_bounded,
    "state": check_state,
    "joining": check_join,
    "leaving": check_leave,
    "death in mid-round": check_death,
    "center rule": check_center_rule,
    "merge rule": check_merge_rule,
    "late trainer": check_late_trainer,
    "center lost": check_center_lost,
    "shared instance": check_shared_instance,
}


def check_algorithm(cls: type[Algorithm], options: Mapping[str, Any] | None = None) -> None:
    """Run an algorithm through all `CHECKS`.

    `options` are keys of `sync.options`; the others have their defaults.

    Raises:
        ConformanceError: the first check that failed: its name, the step, what was expected, what was found.
    """
    options = dict(options or {})
    try:
        check_class(getattr(cls, "name", repr(cls)), cls)
        make_options(cls.name, cls.Options, options)
    except AlgorithmError as error:
        raise ConformanceError(
            "declaration", "loading the class", "a usable algorithm", str(error)
        ) from error
    subject = Subject(cls, options)
    for check in CHECKS.values():
        check(subject)
