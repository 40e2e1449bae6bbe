"""Trainers' all-reduce protocols with a network in memory: any order, any loss, a simulated clock.

Nothing waits: when no message is under way, time goes on.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from shadowsync.nodes.allreduce.protocol import AllReduceState
from shadowsync.nodes.allreduce.round import Ended, Excluded, Late, Met, Result, RoundId
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.schema import Message
from shadowsync.sync_algos.base import Algorithm
from shadowsync.sync_algos.contract.grouping import Grouping, everyone
from shadowsync.sync_algos.none import NoSync

Values = NDArray[np.float32]
TIMEOUT_SECONDS = 16.0
TICK_SECONDS = 1.0


def plain_values(numel: int, index: int, number: int) -> Values:
    """A trainer's values in a round of its own; no two are alike."""
    return np.random.default_rng([index, number]).normal(size=numel).astype(np.float32)


class Lossy:
    """Loses a share of all messages until `most` are lost: fewer than the times that each is asked for."""

    def __init__(self, share: float, seed: int, most: int = 3) -> None:
        self._share = share
        self._random = random.Random(seed)
        self._left = most

    def __call__(self, sender: int, to: int, message: Message) -> bool:  # noqa: ARG002
        """Whether this one is lost."""
        lost = self._left > 0 and self._random.random() < self._share
        self._left -= lost
        return lost


@dataclass
class Trainer:
    """One trainer: its protocol, and an algorithm that wants round after round.

    Its values are new in each round, or, with `changes`, those of that number.
    """

    index: int
    state: AllReduceState
    numel: int
    grouping: Grouping = everyone
    weight: float = 1.0
    wants: int = 0
    changes: int | None = None
    alive: bool = True
    stalled: bool = False
    requested: bool = False
    given: list[Values] = field(default_factory=list)
    met: list[Met] = field(default_factory=list)
    results: dict[RoundId, Values] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    excluded: int = 0

    @property
    def runs(self) -> bool:
        """Whether it does anything at present."""
        return self.alive and not self.stalled

    def act(self, now: float) -> None:
        """Handles what happened, and begins the next round while it wants more."""
        while True:
            events = self.state.context.events
            while events:
                self._hear(events.popleft(), now)
            if self.requested or len(self.results) >= self.wants:
                return
            self.requested = True
            self.state.want(self.grouping, now)

    def _hear(self, event: object, now: float) -> None:
        if isinstance(event, Met):
            self.met.append(event)
            values = plain_values(
                self.numel, self.index, len(self.given) if self.changes is None else self.changes
            )
            self.given.append(values)
            self.state.start(event.round_id, values, self.weight, now)
        elif isinstance(event, Result):
            assert event.round_id not in self.results, "a round completed twice"
            self.results[event.round_id] = event.values.copy()
            self.requested = False
        elif isinstance(event, Ended):
            self.ended.append(event)
            self.requested = False
        elif isinstance(event, Late):
            self.late.append(event)
        elif isinstance(event, Excluded):
            self.excluded += 1


class Net:
    """Trainers and the messages between them.

    Args:
        lose: whether a message from one to another is lost; `repeat`: whether it arrives twice.
    """

    def __init__(
        self,
        count: int,
        numel: int,
        *,
        chunk_elements: int = 4,
        eager: bool = False,
        codecs: LinkCodecs | None = None,
        algorithms: Sequence[Algorithm] | None = None,
        seed: int = 0,
        lose: Callable[[int, int, Message], bool] = lambda sender, to, message: False,  # noqa: ARG005
        repeat: Callable[[Message], bool] = lambda message: False,  # noqa: ARG005
    ) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.lose, self.repeat = lose, repeat
        self.sent: list[tuple[int, int, Message]] = []
        self.generation = 0
        self.trainers = [
            Trainer(
                index,
                AllReduceState(
                    index,
                    numel=numel,
                    seed=7,
                    chunk_elements=chunk_elements,
                    timeout_seconds=TIMEOUT_SECONDS,
                    eager=eager,
                    codecs=codecs or LinkCodecs(),
                    algorithm=algorithms[index] if algorithms else NoSync(None),
                ),
                numel,
            )
            for index in range(count)
        ]
        self._words: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._lines: dict[tuple[int, int], deque[list[bytes]]] = {}
        self.after_send: Callable[[int, int, Message], None] = lambda sender, to, message: None  # noqa: ARG005

    def regroup(self, members: Sequence[int]) -> None:
        """The coordinator's word, heard at once by all that run."""
        self.regroup_slowly(members)
        for trainer in self.trainers:
            if trainer.runs:
                self._hear(trainer.index)

    def regroup_slowly(self, members: Sequence[int]) -> None:
        """The coordinator's word, which each hears when it gets round to it."""
        self.generation += 1
        for trainer in self.trainers:
            self._words[trainer.index] = (self.generation, tuple(members))

    def meeting(self, rounds: int = 1) -> Net:
        """The same, whose trainers are all of one group and want so many rounds."""
        self.regroup(range(len(self.trainers)))
        self.want(rounds)
        return self

    def want(self, rounds: int, indices: Sequence[int] | None = None) -> None:
        """So many more rounds are wanted of each."""
        for trainer in self.trainers:
            if indices is None or trainer.index in indices:
                trainer.wants = len(trainer.results) + rounds

    def run(self, until: Callable[[], bool], most_seconds: float = 10 * TIMEOUT_SECONDS) -> bool:
        """Goes on until something is so, or so much time has passed; gives which."""
        end = self.now + most_seconds
        while not until():
            if self.now >= end:
                return False
            self.step()
        return True

    def step(self) -> None:
        """One message sent, or delivered; or else time goes on."""
        for trainer in self.trainers:
            if trainer.runs:
                trainer.act(self.now)
        choices: list[tuple[str, int, int]] = []
        for trainer in self.trainers:
            if trainer.runs:
                choices += [("send", trainer.index, to) for to in trainer.state.context.send_queue.waiting()]
        choices += [("hear", 0, index) for index in self._words if self.trainers[index].runs]
        for (sender, to), line in self._lines.items():
            if line and self.trainers[to].runs:
                choices.append(("deliver", sender, to))
        if not choices:
            self._tick()
            return
        what, sender, to = self.random.choice(choices)
        if what == "send":
            self._send(sender, to)
        elif what == "hear":
            self._hear(to)
        else:
            frames = self._lines[sender, to].popleft()
            self.trainers[to].state.receive(sender, decode(frames), self.now)

    def _hear(self, index: int) -> None:
        generation, members = self._words.pop(index)
        self.trainers[index].state.regroup(generation, members, self.now)

    def _send(self, sender: int, to: int) -> None:
        message = self.trainers[sender].state.context.send_queue.take(to)
        if message is None:
            return
        self.sent.append((sender, to, message))
        frames = [bytes(memoryview(frame)) for frame in encode(message)]
        if self.trainers[to].alive and not self.lose(sender, to, message):
            for _ in range(2 if self.repeat(message) else 1):
                self._lines.setdefault((sender, to), deque()).append(frames)
        self.after_send(sender, to, message)

    def _tick(self) -> None:
        self.now += TICK_SECONDS
        for trainer in self.trainers:
            if trainer.runs:
                trainer.state.tick(self.now)
                trainer.act(self.now)

    def kill(self, index: int) -> None:
        """A trainer is gone, with what it had received; what it sent may still arrive."""
        self.trainers[index].alive = False
        for (_, to), line in self._lines.items():
            if to == index:
                line.clear()
