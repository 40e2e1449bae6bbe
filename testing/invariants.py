"""Checks of rounds in which no trainer dies, leaves or joins."""

from __future__ import annotations

import torch

from .harness import Harness, Subject

TRAINERS = (1, 2, 3, 4, 5)
SETTLING_ROUNDS = 30
SLACK = 1.01


def check_zero_rounds(subject: Subject) -> None:
    """Check that `start` leaves replicas alone and makes the state.

    It may not keep a replica either.
    """
    trial = Harness(subject, "zero rounds")
    for index, replica in enumerate(trial.replicas()):
        if not torch.equal(replica, trial.first):
            trial.fail("start", "an unchanged replica", f"trainer {index}'s replica changed")
    before = [trial.state(index) for index in trial.cluster.members]
    if before[0].completed_rounds != 0:
        trial.fail("start", "0 completed rounds in the state", str(before[0].completed_rounds))
    trial.train()
    for index, state in enumerate(before):
        for name, tensor in state.tensors.items():
            if not torch.equal(tensor, trial.state(index).tensors[name]):
                trial.fail(
                    "a step of training",
                    f"state {name!r} in its own memory",
                    "it changed with the replica",
                )
    for index, model in trial.global_models().items():
        if not torch.equal(model, trial.first):
            trial.fail("start", "the first weights as the global model", f"other values on trainer {index}")


def check_fixed_point(subject: Subject) -> None:
    """Check that identical, untrained replicas stay as they are, bit by bit."""
    for trainers in TRAINERS:
        trial = Harness(subject, "fixed point", trainers, trains=False)
        for number in range(1, 5):
            step = f"round {number} of {trainers} identical replicas"
            trial.round(step)
            models = {f"trainer {index}'s replica": one for index, one in enumerate(trial.replicas())}
            models |= {f"trainer {i}'s global model": one for i, one in trial.global_models().items()}
            models["the center"] = trial.cluster.center.values
            for what, values in models.items():
                if not torch.equal(values, trial.first):
                    apart = float((values - trial.first).abs().max())
                    trial.fail(step, "no bit changed", f"{what} off by {apart:.3g}")


def check_progress(subject: Subject) -> None:
    """Check that rounds complete, change replicas, and count once."""
    trial = Harness(subject, "progress")
    if not (subject.cls.needs_center or subject.cls.needs_peers):
        return
    for number in range(1, 5):
        trial.train()
        before = {index: trial.state(index) for index in trial.cluster.members}
        step = f"round {number} of 3 trainers"
        results = trial.round(step)
        for index, complete in results.items():
            if not complete:
                trial.fail(step, "True, since no peer is lost", f"False from trainer {index}'s round")
            completed = trial.state(index).completed_rounds - before[index].completed_rounds
            if subject.cls.state_names and completed != 1:
                trial.fail(step, "completed_rounds of the state to grow by 1", f"by {completed}")
        center = not torch.equal(trial.cluster.center.values, trial.first)
        if all(map(torch.equal, trial.replicas(), trial.alone)) and not center:
            trial.fail(step, "a replica or the center to move, since the replicas differ", "none moved")
        trial.look_at_global_models(step)


def check_repeatable(subject: Subject) -> None:
    """Check that a repetition gives the same bits.

    An algorithm uses no clock, and no randomness but the seed's.
    """
    first, second = Harness(subject, "repeatable"), Harness(subject, "repeatable")
    for trial in (first, second):
        trial.rounds(4)
    for index, (one, other) in enumerate(zip(first.replicas(), second.replicas(), strict=True)):
        if not torch.equal(one, other):
            first.fail("4 rounds, twice", "the same replicas", f"another replica of trainer {index}")


def check_one_peer(subject: Subject) -> None:
    """Check that a lone trainer's rounds complete if those of three do."""
    three, one = Harness(subject, "one peer"), Harness(subject, "one peer", 1)
    expected = three.rounds(3)[0]
    found = one.rounds(3)[0]
    if found != expected:
        one.fail("round 3 of one trainer", f"{expected}, as with three trainers", str(found))
    if not torch.isfinite(one.replicas()[0]).all():
        one.fail("round 3 of one trainer", "a finite replica", "a NaN or an infinity")


def check_bounded(subject: Subject) -> None:
    """Check that different replicas do not move apart without training."""
    trial = Harness(subject, "bounded", 4, trains=False)
    for index, replica in enumerate(trial.cluster.replicas):
        replica.values.add_(torch.randn(replica.numel, generator=torch.Generator().manual_seed(index)))
    center = [trial.cluster.center.values] if subject.cls.needs_center else []
    before = _width(trial.replicas() + center)
    for number in range(1, SETTLING_ROUNDS + 1):
        trial.round(f"round {number} without training")
    after = _width(trial.replicas() + center)
    if not after <= before * SLACK:
        step = f"{SETTLING_ROUNDS} rounds without training"
        trial.fail(step, f"replicas at most {before:.3g} apart, as before", f"{after:.3g}")


def _width(models: list[torch.Tensor]) -> float:
    """Return the greatest difference between two models in one element."""
    together = torch.stack(models)
    return float((together.amax(0) - together.amin(0)).max())
