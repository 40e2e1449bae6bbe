"""The check that an algorithm's state is complete."""

from __future__ import annotations

import torch

from ..sync_algos.base import AlgorithmState
from .harness import Harness, Subject


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
        for index, (one, other) in enumerate(zip(old.replicas(), new.replicas(), strict=True)):
            if not torch.equal(one, other):
                apart = float((one - other).abs().max())
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
