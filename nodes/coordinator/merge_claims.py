"""Trainers that say they have trained more than readers gave them.

A trainer says how many examples are behind what it sends to a merge, and so how much the others count beside
it.
"""

from __future__ import annotations

from ...pipeline.report.merged_work import merged_work
from ...pipeline.text.format import count
from ...pipeline.wire.control.orders import CountDelivered
from ...pipeline.wire.field_checks import Counts
from ..control.membership import Member
from ..control.server import REQUEST_SECONDS, ControlServer
from .state.job import JobState


class MergeClaims:
    """Declare a trainer dead that says so. Runs on the coordinator's loop.

    A claim is a number of examples that a sync node has merged of one trainer. What the trainer has confirmed
    needs no question. Beyond that, each reader is asked how much it has delivered to the trainer, after the
    claim was heard: batches are delivered before they are trained, so a true claim is never above the sum.
    Of a dead reader the ledger knows it once all trainers have settled its batches; until then nobody is
    judged. Sync nodes are believed.
    """

    def __init__(self, server: ControlServer, state: JobState) -> None:
        self._server = server
        self._state = state
        self._is_asking = False

    def heard(self, counts: Counts) -> None:
        """Take a sync node's counts; question a claim of more examples than the ledger has settled."""
        merged, ledger = merged_work(counts), self._state.ledger
        claims = [
            (trainer, merged[name].examples)
            for trainer in self._state.members.alive("trainer")
            if (name := trainer.info.name) in merged
            and merged[name].examples > ledger.settled_examples_of(name)
        ]
        # If it is about to ask, the next counts repeat these claims.
        if claims and not self._is_asking and self._state.lifecycle.is_training:
            self._is_asking = True
            self._server.spawn(self._look_into(claims))

    async def _look_into(self, claims: list[tuple[Member, int]]) -> None:
        try:
            readers = [reader for reader in self._state.members.everyone("reader") if reader.begun]
            asked = CountDelivered(tuple(trainer.info.token for trainer, _ in claims))
            replies = await self._server.call_all(readers, asked, REQUEST_SECONDS)
            delivered = {reader: reply.examples for reader, reply in replies.items()}
            for place, (trainer, claimed) in enumerate(claims):
                of_trainer = {name: sums[place] for name, sums in delivered.items()}
                examples = self._delivered_examples(trainer, readers, of_trainer)
                if examples is not None and claimed > examples and trainer.alive:
                    what = f"{count(claimed)} examples behind its part of the merges"
                    self._server.expel(trainer, f"{what}, and {count(examples)} were given to it")
        finally:
            self._is_asking = False

    def _delivered_examples(
        self, trainer: Member, readers: list[Member], delivered: dict[str, int]
    ) -> int | None:
        """Return the examples that all readers delivered to a trainer; None if that is not known now.

        `delivered` are those of the readers that answered.
        """
        ledger, total = self._state.ledger, 0
        for reader in readers:
            name = reader.info.name
            if name in delivered:
                total += delivered[name]
            elif reader.alive or ledger.has_unread_of(name):
                return None
            else:
                total += ledger.known_deliveries(name, trainer.info.name)
        return total
