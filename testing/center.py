"""Checks of algorithms with a center: its rule, lost sync nodes, concurrent rounds."""

from __future__ import annotations

import torch

from ..sync_algos.base import Merge, Slice
from .harness import Harness, Subject

MISSED_ROUNDS = 5


def check_center_rule(subject: Subject) -> None:
    """Check that the rule moves the center in place and returns a new tensor."""
    if not subject.cls.needs_center or subject.cls.merges:
        return
    harness = Harness(subject, "center rule", 1)
    center, values = harness.first.clone(), torch.randn(harness.first.numel())
    sent, step = values.clone(), "one exchange"
    reply = subject.make().center_rule(center, values)
    if not torch.equal(values, sent):
        harness.fail(
            step, "the values unchanged, since a request may be sent again", "the rule changed the values"
        )
    if not isinstance(reply, torch.Tensor) or reply.shape != center.shape or reply.dtype != torch.float32:
        harness.fail(step, f"a reply of float32 {list(center.shape)}", f"{reply!r:.80}")
    if reply.untyped_storage().data_ptr() in (
        center.untyped_storage().data_ptr(),
        values.untyped_storage().data_ptr(),
    ):
        harness.fail(step, "a new tensor as the reply", "a view of the center or of the request")
    parts = [(harness.first[cut].clone(), sent[cut]) for cut in (slice(0, 10), slice(10, None))]
    pieces = [subject.make().center_rule(*part) for part in parts]
    if not (
        torch.equal(torch.cat(pieces), reply) and torch.equal(torch.cat([part for part, _ in parts]), center)
    ):
        harness.fail("the same in two slices", "the same values as in one slice", "other values")


def check_merge_rule(subject: Subject) -> None:
    """Check that merges move the center element by element, and depend on their examples."""
    if not subject.cls.merges:
        return
    harness = Harness(subject, "merge rule", 1)
    values = torch.randn(harness.first.numel())
    sent, step = values.clone(), "one merge"
    merge = Merge((3, 5), 4, 2)
    whole = _merged(subject, harness.first, values, merge)
    if not torch.equal(values, sent):
        harness.fail(step, "the mean unchanged", "the rule changed it")
    if torch.equal(whole[0], harness.first):
        harness.fail(step, "the center to move, in place", "no move")
    cuts = (slice(0, 10), slice(10, None))
    pieces = [_merged(subject, harness.first[cut], values[cut], merge) for cut in cuts]
    for number, joined in enumerate(map(torch.cat, zip(*pieces, strict=True))):
        if not torch.equal(joined, whole[number]):
            harness.fail("the same in two slices", "the same values as in one slice", "other values")


def check_late_trainer(subject: Subject) -> None:
    """Check merges that close without a trainer, whose work then counts."""
    if not subject.cls.merges:
        return
    centers = [_center_after_late_round(subject, works=works) for works in (True, False)]
    if torch.equal(*centers):
        harness = Harness(subject, "late trainer")
        harness.fail("the late trainer's own round", "the center to move by its work", "the same without it")


def _center_after_late_round(subject: Subject, *, works: bool) -> torch.Tensor:
    """Return the center after a trainer has missed rounds, in which it `works` or not, and has one itself."""
    harness = Harness(subject, "late trainer")
    harness.rounds(2)
    late, step = len(harness.steps) - 1, "a round without the last trainer"
    first = harness.replicas()[late]
    for _ in range(MISSED_ROUNDS):
        harness.train()
        before = harness.replicas()[late]
        if harness.cluster.round(who=range(late)) != dict.fromkeys(range(late), True):
            harness.fail(step, "complete rounds of the others", "an incomplete one")
        if not torch.equal(harness.replicas()[late], before):
            harness.fail(step, "its replica unchanged", "another replica")
    if not works:
        harness.cluster.replicas[late].values.copy_(first)
    if harness.cluster.round(who=[late]) != {late: True}:
        harness.fail("the late trainer's own round", "a complete round", "an incomplete one")
    return harness.cluster.center.values


def _merged(
    subject: Subject, first: torch.Tensor, mean: torch.Tensor, merge: Merge
) -> tuple[torch.Tensor, ...]:
    """Merge twice, so that the state counts; return the center and its state."""
    algorithm, center = subject.make(), first.clone()
    state = {name: torch.zeros_like(center) for name in subject.cls.center_state_names}
    for _ in range(2):
        algorithm.merge_rule(center, state, mean, merge)
    return center, *state.values()


def check_center_lost(subject: Subject) -> None:
    """Check rounds in which a sync node dies.

    The sync node dies before or after it applied a slice. That slice of the replica must stay as it was, the
    other slices must be applied, and the round must not be complete.
    """
    if not subject.cls.needs_center:
        return
    good = Harness(subject, "center lost", 1)
    good.rounds(2)
    slices = good.cluster.center.slices
    for after_applying in (False, True):
        for lost in [*((lost_part,) for lost_part in slices), slices]:
            harness = Harness(subject, "center lost", 1)
            harness.rounds(1)
            for part in lost:
                harness.cluster.center.lose(part, after_applying=after_applying)
            harness.train()
            when = "after it applied them" if after_applying else "before it applied them"
            _check_lost(
                harness, good, lost, f"the sync node of {len(lost)} of {len(slices)} slices dies {when}"
            )


def check_shared_instance(subject: Subject) -> None:
    """Check concurrent rounds on one instance, as at a fixed rate."""
    if not subject.cls.needs_center or subject.cls.state_names or subject.cls.counts_once:
        return
    apart, shared = Harness(subject, "shared instance"), Harness(subject, "shared instance")
    shared.cluster.algorithms = [shared.cluster.algorithms[0]] * len(shared.cluster.algorithms)
    for harness in (apart, shared):
        harness.rounds(3)
    for index, pair in enumerate(zip(apart.replicas(), shared.replicas(), strict=True)):
        if not torch.equal(*pair):
            shared.fail(
                "3 rounds at once on one instance",
                "the same replicas as with one instance each",
                f"another replica of trainer {index}",
            )


def _check_lost(harness: Harness, good: Harness, lost: tuple[Slice, ...], step: str) -> None:
    if harness.round(step)[0] is not False:
        harness.fail(step, "a round that returns False, since a slice is missing", "True")
    replica, whole = harness.replicas()[0], good.replicas()[0]
    for part in harness.cluster.center.slices:
        cut = slice(part.start, part.stop)
        if part in lost and not torch.equal(replica[cut], harness.alone[0][cut]):
            harness.fail(step, "the lost slice of the replica as the workers left it", f"{part} changed")
        if part not in lost and not torch.equal(replica[cut], whole[cut]):
            harness.fail(step, "the other slices applied whole", f"other values in {part}")
