"""The start of a job, which one trainer goes through alone: a state machine without I/O."""

from __future__ import annotations

from ....pipeline.config.job import Job
from ...control.membership import Member, Membership
from ..ledger.ledger import LedgerState


class LoneStart:
    """Says which trainers have to wait while another one goes through the start of the job.

    Gradients of a model that has learned little agree, and those that several trainers make of the same
    weights go too far together (`Job.one_trainer_begins`). So one of them begins. The others are ready, but
    take no part; they join as late trainers do, with its weights and its optimizer. If it dies, one of them
    goes on alone. Whoever joins meanwhile waits like them. Owned by the coordinator's loop.
    """

    def __init__(self, job: Job, members: Membership, ledger: LedgerState) -> None:
        self._job = job
        self._members = members
        self._ledger = ledger

    @property
    def is_on(self) -> bool:
        """Whether the job is in such a start; a resumed run may be past it."""
        return self._job.one_trainer_begins and self._ledger.examples_so_far < self._job.start_examples

    def begin(self) -> None:
        """Have all ready trainers but the first wait, if the job starts so."""
        for trainer in self._members.alive("trainer")[1:] if self.is_on else ():
            trainer.hold()

    def waiting(self) -> list[Member]:
        """Return the living trainers that were ready when the job started, and have not begun."""
        return [member for member in self._members.joining("trainer") if member.held]

    @property
    def holds(self) -> bool:
        """Whether a trainer that is ready has to wait: another one trains, and stays."""
        return self.is_on and any(not trainer.leaves for trainer in self._members.alive("trainer"))

    def untouched(self) -> list[Member]:
        """Return those that wait and of whose introduction nothing can have begun.

        All of them are introduced together once the start is over; before, only the first, to go on.
        """
        if not self.is_on:
            return []
        return self.waiting() if self.holds else self.waiting()[1:]
