"""A coordinator's state and journal in a small job that is played by chance, without nodes."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.control.progress import InputFacts, InputSize
from shadowsync.nodes.coordinator.journal import JobJournal
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.nodes.coordinator.recovery.takeover import Takeover
from shadowsync.nodes.coordinator.state.changes import (
    BestTakenOver,
    CheckpointScored,
    CheckpointWritten,
    GroupFormed,
    JobBegan,
    MembersStarted,
    NodeBegan,
    NodeDied,
    ShardRestored,
    SpansReadAgain,
    TrainingBegan,
)
from shadowsync.nodes.coordinator.state.job import JobState
from shadowsync.nodes.coordinator.state.outcome import Scored
from shadowsync.nodes.coordinator.state.placement import TablePlacement
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger, SavedSpan
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.base import Reply, Request
from shadowsync.pipeline.wire.control.messages import (
    DeliveryKey,
    HeldBatch,
    Hello,
    LeftOutBatch,
    NextSpan,
    NextSpanReply,
    NodeFacts,
    Ready,
    ReturnBatches,
    SpanGrant,
    SpanRead,
    TrainedBatch,
    TrainedBatches,
)

EXAMPLES = 10
SPANS = [Span(number, f"part-{number}.tsv", "bytes", 0, 100) for number in range(3)]
BATCHES = 4
ROLES = ["reader", "reader", "trainer", "trainer", "embedding", "embedding"]
JOB = Job.model_validate(
    {
        "data": {"format": "criteo_tsv", "path": ["part.tsv"], "readers": 2, "epochs": 2},
        "trainer": {"count": 2, "max_bad_batches": 1000},
        "embedding": {"nodes": 2},
        "sync": {"algorithm": "none"},
    }
)


# What a run that is resumed had settled: one span, and two batches of another.
RESTORED = SavedLedger(
    1, {(0, 1): SavedSpan(BATCHES, BATCHES * EXAMPLES, 1)}, {(0, 0): {1: 10}}, {(0, 0): {2: 10}}
)


def new_state(folder: Path, clock: Callable[[], float], restored: SavedLedger | None = None) -> JobState:
    """The state of a job that has not begun."""
    ledger = LedgerState(SPANS, epochs=2, seed=1, shuffled=True, restored=restored)
    facts = InputFacts(InputSize({span.number: 1.0 for span in SPANS}, 2, 40.0, exact=False))
    return JobState(JOB, folder, ledger, TablePlacement.by_rows(JOB), input_facts=facts, clock=clock)


class Coordinator:
    """A coordinator's state and journal, and what its nodes have: a small job that is played by chance.

    Attributes:
        clock: what the journal's first change says of the clocks; without it, of none.
        replies: by token and number of the request.
    """

    def __init__(
        self, folder: Path, seed: int, restored: SavedLedger | None = None, clock: tuple[Any, ...] = ()
    ) -> None:
        self.now, self.clock = 0.0, clock
        self.state = new_state(folder, lambda: self.now, restored)
        self.store = LedgerWriter(LedgerStore(folder / "ledger.sqlite"))
        self.journal = JobJournal(self.state, self.store, self._failed)
        self.replies: dict[str, dict[int, Reply]] = {}
        self._random = random.Random(seed)
        self._numbers = self._deliveries = 0
        # What readers have delivered, and trainers have: (token, batch).
        self.held: list[tuple[str, str, BatchId]] = []
        self._uncut: list[tuple[str, SpanGrant]] = []

    def _failed(self, error: BaseException) -> None:
        raise error

    async def request(self, token: str, request: Request[Any]) -> Reply:
        self._numbers += 1
        self.now += self._random.random()
        reply, written = self.journal.apply(token, self._numbers, request)
        self.replies.setdefault(token, {})[self._numbers] = reply
        await written
        return reply

    async def begin(self) -> None:
        plan = self.state.placement.plan
        await self.journal.decided(JobBegan(0.0, "ipc://here", plan.to_body(), "rows", *self.clock))
        for number, role in enumerate(ROLES):
            await self.join(role, f"token-{number}")
        self.state.start_members()
        self.journal.decided(MembersStarted())
        view = self.state.group.form([0, 1])
        self.journal.decided(GroupFormed(view))
        self.state.lifecycle.begin_training({"reader-0": 1.5})
        await self.journal.decided(TrainingBegan({"reader-0": 1.5}))

    async def join(self, role: str, token: str) -> None:
        await self.request(token, Hello(role, token, JOB.digest, f"ipc://{token}", 7, "here"))
        await self.request(token, Ready(NodeFacts(rows=100, dense_elements=10, weights_digest="same")))

    def _alive(self, role: str) -> list[str]:
        return [member.info.token for member in self.state.members.alive(role)]

    async def step(self, what: str) -> None:
        await {
            "grant": self._grant,
            "cut": self._cut,
            "train": self._train,
            "leave out": self._train,
            "die": self._die,
            "join": self._join,
            "read again": self._read_again,
            "score": self._score,
            "save": self._save,
        }[what](what)

    async def _grant(self, what: str) -> None:  # noqa: ARG002
        for token in self._alive("reader"):
            reply = await self.request(token, NextSpan())
            assert isinstance(reply, NextSpanReply)
            if reply.grant is None:
                continue
            self._uncut.append((token, reply.grant))
            skipped = {n for start, stop in reply.grant.skip for n in range(start, stop)}
            for number in set(range(BATCHES)) - skipped:
                trainers = self._alive("trainer")
                if trainers:
                    batch = BatchId(reply.grant.epoch, reply.grant.span.number, number, 1)
                    self.held.append((token, self._random.choice(trainers), batch))

    async def _cut(self, what: str) -> None:  # noqa: ARG002
        for token, grant in self._uncut:
            if token in self._alive("reader"):
                read = SpanRead(
                    grant.epoch, grant.span.number, BATCHES, BATCHES * EXAMPLES, 1, replay=grant.replay
                )
                await self.request(token, read)
        self._uncut.clear()

    async def _train(self, what: str) -> None:
        for trainer in self._alive("trainer"):
            mine = [one for one in self.held if one[1] == trainer][:3]
            self.held = [one for one in self.held if one not in mine]
            if what == "train":
                trained = tuple(
                    TrainedBatch(one[2], EXAMPLES, 0.5, 3.0, 10.0, 0.1, delivery=self._delivery(one[0]))
                    for one in mine
                )
                await self.request(trainer, TrainedBatches(trained, (), len(mine)))
            else:
                left = tuple(LeftOutBatch(one[2], EXAMPLES, "why", self._delivery(one[0])) for one in mine)
                await self.request(trainer, TrainedBatches((), left, len(mine)))
        self.state.ledger.take_wrong_deliveries()

    def _delivery(self, reader: str) -> DeliveryKey:
        """The next one of a reader to any trainer."""
        self._deliveries += 1
        return reader, self._random.randrange(2), self._deliveries

    async def _die(self, what: str) -> None:  # noqa: ARG002
        members = self.state.members.alive()
        member = self._random.choice(members)
        if len(self.state.members.alive(member.info.role)) < 2:
            return
        member.record_heartbeat({"cpu_seconds": 2.5})
        token = member.info.token
        self.state.mark_dead(token, "was silent")
        await self.journal.decided(NodeDied(token, "was silent", dict(member.metrics)))
        held, self.held = self.held, [one for one in self.held if one[1] != token]
        for reader in self._alive("reader"):
            lost = tuple(HeldBatch(one[2], EXAMPLES) for one in held if one[:2] == (reader, token))
            if lost:
                await self.request(reader, ReturnBatches(token, lost))

    async def _join(self, what: str) -> None:  # noqa: ARG002
        for role in ("reader", "embedding"):
            if not self.state.can_join(role):
                continue
            self._numbers += 1
            token = f"late-{self._numbers}"
            await self.join(role, token)
            member = self.state.members.require(token)
            member.begin()
            self.journal.decided(NodeBegan(token))
            if role == "embedding":
                lacking = tuple(self.state.ledger.trained_ranges()[:2])
                self.state.ledger.owed.restore_shard(member.info.index, lacking)
                self.journal.decided(ShardRestored(member.info.index, lacking))

    async def _read_again(self, what: str) -> None:  # noqa: ARG002
        for member in self.state.members.everyone("reader"):
            if not member.alive:
                self.held = [one for one in self.held if one[0] != member.info.token]
                self.state.ledger.read_again(member.info.name)
                self.journal.decided(SpansReadAgain(member.info.name))

    async def _save(self, what: str) -> None:  # noqa: ARG002
        if self.state.ledger.owed.is_idle:
            self.journal._save()

    async def _score(self, what: str) -> None:  # noqa: ARG002
        self.state.checkpointing.count_written()
        self.journal.decided(CheckpointWritten())
        if self.state.checkpointing.best_before is None:
            self.state.checkpointing.begin_with(Scored(4, 0.0, 0.4))
            self.journal.decided(BestTakenOver(Scored(4, 0.0, 0.4)))
        self.state.checkpointing.scored.append(Scored(5, 1.0, 0.5))
        self.journal.decided(CheckpointScored(Scored(5, 1.0, 0.5)))


def everything(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """Plain values of an object and of all that it has, to be compared; clocks and iterators have none."""
    if callable(value) or isinstance(value, Iterator) or id(value) in seen:
        return None
    below = (*seen, id(value))
    if isinstance(value, dict):
        return {repr(key): everything(one, below) for key, one in value.items()}
    if isinstance(value, list | tuple | deque):
        return [everything(one, below) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        names = vars(value) if hasattr(value, "__dict__") else [f.name for f in dataclasses.fields(value)]
        return {name: everything(getattr(value, name), below) for name in names}
    return value


STEPS = ["grant", "cut", "train", "train", "leave out", "die", "join", "read again", "score"]


async def play(
    folder: Path,
    seed: int,
    steps: list[str],
    restored: SavedLedger | None = None,
    clock: tuple[Any, ...] = (),
) -> Coordinator:
    """Play these steps from the begin of a job."""
    coordinator = Coordinator(folder, seed, restored, clock)
    await coordinator.begin()
    for step in steps:
        await coordinator.step(step)
    await coordinator.store.flush()
    return coordinator


def taken_over(folder: Path, restored: SavedLedger | None = None) -> tuple[JobState, Takeover]:
    """The state of another coordinator, and what it was read from; its store is to be closed."""
    takeover = Takeover.open(folder, "ledger.sqlite")
    state = new_state(folder, takeover.clock, restored)
    takeover.replay(state)
    state.ledger.take_wrong_deliveries()
    return state, takeover


def in_folder(work: Callable[[Path], Awaitable[None]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run work in a folder of its own."""
    folder = tmp_path_factory.mktemp("run")

    async def main() -> None:
        await work(folder)

    try:
        asyncio.run(main())
    finally:
        shutil.rmtree(folder)
