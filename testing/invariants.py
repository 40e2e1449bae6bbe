"""Checks of rounds in which no trainer dies, leaves or joins."""

from __future__ import annotations

import torch

from .harness import Harness, Subject

TRAINERS = (1, 2, 3, 4, 5)
UNTRAINED_ROUNDS = 30
SLACK = 1.01


def check_zero_rounds(subject: Subject) -> None:
    """Check that `start` leaves replicas alone and makes a state in its own memory."""
    harness = Harness(subject, "zero rounds")
    for index, replica in enumerate(harness.replicas()):
        if not torch.equal(replica, harness.first):
            harness.fail("start", "an unchanged replica", f"trainer {index}'s replica changed")
    before = [harness.state(index) for index in harness.cluster.members]
    if before[0].completed_rounds != 0:
        harness.fail("start", "0 completed rounds in the state", str(before[0].completed_rounds))
    harness.train()
    for index, state in enumerate(before):
        for name, tensor in state.tensors.items():
            if not torch.equal(tensor, harness.state(index).tensors[name]):
                harness.fail(
                    "a step of training",
                    f"state {name!r} in its own memory",
                    "it changed with the replica",
                )
    for index, model in harness.global_models().items():
        if not torch.equal(model, harness.first):
            harness.fail("start", "the first weights as the global model", f"other values on trainer {index}")


def check_fixed_point(subject: Subject) -> None:
    """Check that identical, untrained replicas stay as they are, bit by bit."""
    for trainers in TRAINERS:
        harness = Harness(subject, "fixed point", trainers, trains=False)
        for number in range(1, 5):
            step = f"round {number} of {trainers} identical replicas"
            harness.round(step)
            models = {f"trainer {i}'s replica": replica for i, replica in enumerate(harness.replicas())}
            models |= {f"trainer {i}'s global model": model for i, model in harness.global_models().items()}
            models["the center"] = harness.cluster.center.values
            for what, values in models.items():
                if not torch.equal(values, harness.first):
                    apart = float((values - harness.first).abs().max())
                    harness.fail(step, "no bit changed", f"{what} off by {apart:.3g}")


def check_progress(subject: Subject) -> None:
    """Check that rounds complete, change replicas, and count once."""
    harness = Harness(subject, "progress")
    if not (subject.cls.needs_center or subject.cls.needs_peers):
        return
    for number in range(1, 5):
        harness.train()
        before = {index: harness.state(index) for index in harness.cluster.members}
        step = f"round {number} of 3 trainers"
        results = harness.round(step)
        for index, complete in results.items():
            if not complete:
                harness.fail(step, "True, since no peer is lost", f"False from trainer {index}'s round")
            completed = harness.state(index).completed_rounds - before[index].completed_rounds
            if subject.cls.state_names and completed != 1:
                harness.fail(step, "completed_rounds of the state to grow by 1", f"by {completed}")
        center = not torch.equal(harness.cluster.center.values, harness.first)
        if all(map(torch.equal, harness.replicas(), harness.alone)) and not center:
            harness.fail(step, "a replica or the center to move, since the replicas differ", "none moved")
        harness.check_global_models(step)


def check_repeatable(subject: Subject) -> None:
    """Check that a repetition gives the same bits.

    An algorithm uses no clock, and no randomness but the seed's.
    """
    first, second = Harness(subject, "repeatable"), Harness(subject, "repeatable")
    for harness in (first, second):
        harness.rounds(4)
    for index, pair in enumerate(zip(first.replicas(), second.replicas(), strict=True)):
        if not torch.equal(*pair):
            first.fail("4 rounds, twice", "the same replicas", f"another replica of trainer {index}")


def check_one_peer(subject: Subject) -> None:
    """Check that a lone trainer's rounds complete if three trainers' rounds do."""
    three, lone = Harness(subject, "one peer"), Harness(subject, "one peer", 1)
    expected, complete = three.rounds(3)[0], lone.rounds(3)[0]
    if complete != expected:
        lone.fail("round 3 of one trainer", f"{expected}, as with three trainers", str(complete))
    if not torch.isfinite(lone.replicas()[0]).all():
        lone.fail("round 3 of one trainer", "a finite replica", "a NaN or an infinity")


def check_bounded(subject: Subject) -> None:
    """Check that different replicas do not move apart without training."""
    harness = Harness(subject, "bounded", 4, trains=False)
    for index, replica in enumerate(harness.cluster.replicas):
        replica.values.add_(torch.randn(replica.numel, generator=torch.Generator().manual_seed(index)))
    center = [harness.cluster.center.values] if subject.cls.needs_center else []
    before = _width(harness.replicas() + center)
    for number in range(1, UNTRAINED_ROUNDS + 1):
        harness.round(f"round {number} without training")
    after = _width(harness.replicas() + center)
    if not after <= before * SLACK:
        step = f"{UNTRAINED_ROUNDS} rounds without training"
        harness.fail(step, f"replicas at most {before:.3g} apart, as before", f"{after:.3g}")


def _width(models: list[torch.Tensor]) -> float:
    """Return the greatest difference between two models in one element."""
    together = torch.stack(models)
    return float((together.amax(0) - together.amin(0)).max())
