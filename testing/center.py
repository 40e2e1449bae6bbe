"""Checks of algorithms with a center: its rule, lost sync nodes, concurrent rounds."""

from __future__ import annotations

import torch

from ..sync_algos.base import Slice
from .harness import Harness, Subject


def check_center_rule(subject: Subject) -> None:
    """Check that the rule moves the center in place and returns a new tensor."""
    if not subject.cls.needs_center:
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
        for lost in [*((one,) for one in slices), slices]:
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
    for index, (one, other) in enumerate(zip(apart.replicas(), shared.replicas(), strict=True)):
        if not torch.equal(one, other):
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
