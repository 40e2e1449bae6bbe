"""A small job's ledger as its processes would have counted them, for the ledger's identities."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shadowsync.nodes.control.progress import Origin
from shadowsync.nodes.coordinator.audit import contradicted, examples_of, ledger_of
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.nodes.coordinator.state.job import JobState
from shadowsync.nodes.coordinator.state.outcome import Outcome
from shadowsync.nodes.coordinator.state.placement import TablePlacement
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.report.document import ExampleCounts
from shadowsync.pipeline.report.ledger import Ledger
from shadowsync.pipeline.types import BatchId

BATCH = 10


@dataclass
class JobCounts:
    """One reader, two trainers and two shards, each with its own count; two spans of four batches.

    A test calls the events in whatever order, and leaves one out or doubles it. A trainer is named by its
    token: "t0" is trainer-0.

    Attributes:
        pushed_by_the_dead: what shards say that they applied of the batches that they are asked for.
        restored: what the run that this one goes on with had trained.
        applied_before: what the shards had applied besides when that was saved.
        contradicted: the nodes whose counts contradict others, once the ledger is closed.
    """

    folder: Path
    read_examples: int = 0
    confirmed: dict[str, int] = field(default_factory=lambda: {"t0": 0, "t1": 0})
    left_out: dict[str, int] = field(default_factory=lambda: {"t0": 0, "t1": 0})
    in_flight: dict[str, int] = field(default_factory=lambda: {"t0": 0, "t1": 0})
    received: dict[str, int] = field(default_factory=lambda: {"t0": 0, "t1": 0})
    resent_pushes: dict[str, int] = field(default_factory=lambda: {"t0": 0, "t1": 0})
    repeated_pushes: dict[str, int] = field(default_factory=lambda: {"embedding-0": 0, "embedding-1": 0})
    applied: dict[str, int] = field(default_factory=lambda: {"embedding-0": 0, "embedding-1": 0})
    pushed_by_the_dead: dict[str, set[BatchId]] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=Outcome)
    restored: SavedLedger | None = None
    applied_before: dict[str, frozenset[BatchId]] = field(default_factory=dict)
    contradicted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        spans = [Span(number, "part.tsv", "bytes", 0, 100) for number in range(2)]
        self.ledger = LedgerState(spans, epochs=1, seed=1, shuffled=False, restored=self.restored)
        self.store = LedgerStore(self.folder / "ledger.sqlite")
        job = Job.model_validate(
            {
                "data": {"format": "criteo_tsv", "path": ["part.tsv"]},
                "trainer": {"count": 2},
                "embedding": {"nodes": 2},
            }
        )
        origin = Origin(applied_before=self.applied_before)
        self.state = JobState(job, self.folder, self.ledger, TablePlacement.by_rows(job), origin=origin)
        self.members, self.bad_batches = self.state.members, self.state.training.bad_batches
        roles = {"r": "reader", "t0": "trainer", "t1": "trainer", "e0": "embedding", "e1": "embedding"}
        for token, role in roles.items():
            self.state.join(role, token, job.digest, "", "", 0)
        self.members.start()
        for span in spans:
            self.ledger.grant("reader-0")
            self.store.grant(0, span, "reader-0")

    @property
    def batches(self) -> list[BatchId]:
        return [BatchId(0, span, number, 1) for span in range(2) for number in range(4)]

    def cut(self, span: int, examples: int = 4 * BATCH) -> None:
        """The reader has read a span of four batches."""
        self.ledger.span_read(0, span, batches=4, examples=examples, bad_rows=0)
        self.store.span_read(0, span, 4, examples, 0)

    def deliver(self) -> None:
        """The reader has sent a batch to a trainer."""
        self.read_examples += BATCH

    def push(self) -> None:
        """Both shards have applied a batch."""
        for name in self.applied:
            self.applied[name] += 1

    def acknowledge(self, token: str, batch: BatchId, examples: int = BATCH, *, stored: bool = True) -> None:
        """The coordinator has noted a batch, in memory and in the file."""
        row = self.ledger.acknowledge(self.members.require(token).info.name, batch, examples)
        if stored:
            self.store.acknowledge([row])

    def confirm(self, token: str, examples: int = BATCH) -> None:
        """The trainer has heard that a batch is noted."""
        self.confirmed[token] += examples

    def train(self, token: str, batch: BatchId) -> None:
        """Everything that one batch is: delivered, pushed, acknowledged, confirmed."""
        self.deliver()
        self.received[token] += BATCH
        self.push()
        self.acknowledge(token, batch)
        self.confirm(token)

    def leave_out(self, token: str, batch: BatchId, why: str = "why", *, stored: bool = True) -> None:
        """Everything that one batch is whose gradients are not finite: delivered, told, confirmed."""
        self.deliver()
        self.received[token] += BATCH
        name = self.members.require(token).info.name
        row = self.ledger.leave_out(name, batch, BATCH, why)
        self.bad_batches.add(row, self.ledger.queue.path_of)
        if stored:
            self.store.left_out([row])
        self.left_out[token] += BATCH

    def die(self, token: str, held: list[BatchId]) -> list[BatchId]:
        """A trainer died, to which the reader had sent `held`; gives what is to be trained again."""
        name = self.members.require(token).info.name
        self.members.lose(token, "died")
        again = self.ledger.return_batches(name, ((batch, BATCH) for batch in held))
        self.store.returned((b.epoch, b.span, b.number, BATCH, name) for b in again)
        return again

    def close(self, late_replies: dict[str, dict[str, Any]] | None = None) -> tuple[ExampleCounts, Ledger]:
        """The job ends: the living nodes tell their counts, and the ledger is closed. `late_answers` are of
        trainers that died after they had told theirs."""
        trainers = {
            token: {
                "confirmed_examples": self.confirmed[token],
                "left_out_examples": self.left_out[token],
                "in_flight": self.in_flight[token],
                "training_examples/reader-0": self.received[token],
                "resent_pushes": self.resent_pushes[token],
            }
            for token in self.confirmed
        }
        asked = self.store.returned_and_left_out()
        drained = replace(
            self.outcome.drained,
            readers=self._living("reader", {"r": {"read_examples": self.read_examples}}),
            trainers=self._living("trainer", trainers) | (late_replies or {}),
            shards={
                name: {"applied_batches": count, "repeated_pushes": self.repeated_pushes[name]}
                for name, count in self.applied.items()
            },
            applied_of={
                name: tuple(b for b in asked if b in self.pushed_by_the_dead.get(name, ()))
                for name in self.applied
            },
        )
        outcome = replace(self.outcome, drained=drained)
        examples = examples_of(self.state, self.store.totals(), outcome)
        ledger = ledger_of(self.state, self.store.totals(), outcome, examples)
        self.contradicted = contradicted(self.state, outcome)
        self.store.close()
        return examples, ledger

    def _living(self, role: str, counts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {member.info.name: counts[member.info.token] for member in self.members.alive(role)}


def red(ledger: Ledger) -> list[str]:
    """The names of the identities that do not hold."""
    return [identity.name for identity in ledger.identities if identity.holds is False]
