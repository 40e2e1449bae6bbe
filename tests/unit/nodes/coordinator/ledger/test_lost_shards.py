"""What the ledger does when an embedding node dies: the next one gets every batch, and each counts once."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.types import BatchId
from shadowsync.tests.support.data.batches import batch_id

EXAMPLES = 10
SHARDS = 2


class _Job:
    """A ledger, a reader, a trainer and shards, of which each is the set of what it has applied.

    The trainer holds a batch until it has pushed it to all shards; while one is missing it trains nothing.
    The reader asks for spans until it is told that there are none, and then waits to be woken. With `forgets`
    nobody asks a new shard what it lacks, with `sleeps` nobody wakes the reader.
    """

    def __init__(self, sizes: list[int], *, forgets: bool = False, sleeps: bool = False) -> None:
        self.sizes = sizes
        self.forgets = forgets
        self.sleeps = sleeps
        self.idle = False
        plan = [Span(number, f"part-{number}.tsv", "bytes", 0, 100) for number in range(len(sizes))]
        self.state = LedgerState(plan, epochs=1, seed=1, shuffled=False)
        self.shards: list[set[BatchId]] = [set() for _ in range(SHARDS)]
        self.saved: list[set[BatchId]] = [set() for _ in range(SHARDS)]
        self.missing: set[int] = set()
        self.to_send: list[BatchId] = []
        self.held: list[BatchId] = []
        self.readers = 0

    @property
    def reader(self) -> str:
        return f"reader-{self.readers}"

    def grant(self) -> None:
        if self.idle:
            return
        if (replay := self.state.grant_replay(self.reader)) is not None:
            numbers = (n for n in range(self.sizes[replay.span.number]) if n not in replay.skip)
            self.to_send += [batch_id(n, span=replay.span.number) for n in numbers]
            self.state.replay_read(self.reader, replay.epoch, replay.span.number)
            self.wake()
        elif (granted := self.state.grant(self.reader)) is not None:
            number = granted[1].number
            skip = self.state.skip_of(0, number)
            self.to_send += [batch_id(n, span=number) for n in range(self.sizes[number]) if n not in skip]
            examples = EXAMPLES * self.sizes[number]
            self.state.span_read(0, number, batches=self.sizes[number], examples=examples, bad_rows=0)
            self.wake()
        else:
            self.idle = True

    def wake(self) -> None:
        """Wake the reader where something has become free, as the coordinator does."""
        if self.state.has_replays and not self.sleeps:
            self.idle = False

    def deliver(self) -> None:
        if self.to_send:
            self.held.append(self.to_send.pop(0))

    def train(self) -> None:
        if self.held and not self.missing:
            batch = self.held.pop(0)
            for shard in self.shards:
                shard.add(batch)
            self.state.acknowledge("trainer-0", batch, EXAMPLES)
            self.wake()

    def save(self) -> None:
        if self.state.owed.has_all_shards:
            self.saved = [set(shard) for shard in self.shards]

    def lose_shard(self, number: int) -> None:
        self.missing.add(number)
        self.state.owed.lose_shard(number)

    def replace_shard(self, number: int) -> None:
        if number in self.missing:
            self.missing.discard(number)
            self.shards[number] = set(self.saved[number])
            self.settle(number)

    def settle(self, number: int) -> None:
        shard = self.shards[number]
        lacking = [
            (epoch, span, n, n + 1)
            for epoch, span, start, stop in self.state.trained_ranges()
            for n in range(start, stop)
            if batch_id(n, span=span) not in shard and not self.forgets
        ]
        self.state.owed.restore_shard(number, lacking)
        self.idle = False

    def lose_reader(self) -> None:
        if self.missing:
            return
        self.state.lose_reader(self.reader)
        while self.held:
            self.train()
        self.state.read_again(self.reader)
        self.to_send.clear()
        self.readers += 1
        self.idle = False

    def finish(self) -> None:
        for number in range(SHARDS):
            self.replace_shard(number)
        while self.to_send or self.held or not self.idle:
            self.deliver()
            self.train()
            self.grant()

    def play(self, steps: Iterable[str]) -> None:
        for step in steps:
            name, _, number = step.partition(" ")
            getattr(self, name)(*([int(number)] if number else []))
        self.finish()


_STEPS = ["grant", "deliver", "deliver", "train", "train", "save", "lose_reader"]
_STEPS += [f"{what} {number}" for what in ("lose_shard", "replace_shard") for number in range(SHARDS)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.lists(st.sampled_from(_STEPS), max_size=60))
@settings(max_examples=300)
def test_however_often_shards_die_each_has_every_batch_once(sizes: list[int], steps: list[str]) -> None:
    job = _Job(sizes)
    job.play(steps)
    everything = {batch_id(n, span=span) for span, size in enumerate(sizes) for n in range(size)}
    assert job.shards == [everything, everything]
    assert job.state.complete
    totals = job.state.totals
    assert totals.distinct_batches == len(everything)
    assert totals.trained_examples == totals.distinct_examples + totals.replayed_examples
    assert totals.parsed_examples == totals.distinct_examples
    assert job.state.missing_batches() == 0


_DEATH = ["grant", "deliver", "deliver", "train", "lose_shard 0"]


def test_without_what_it_lacks_a_shard_stays_short() -> None:
    """The control: the batch that the dead one had applied is not trained again."""
    job = _Job([2], forgets=True)
    job.play(_DEATH)
    assert job.state.complete
    assert job.shards == [{batch_id(1)}, {batch_id(0), batch_id(1)}]


def test_a_reader_that_nobody_wakes_leaves_owed_batches() -> None:
    """The control: it was told that there are no more spans while the last one was not complete."""
    for sleeps in (False, True):
        job = _Job([2], sleeps=sleeps)
        job.play([*_DEATH, "replace_shard 0", "grant"])
        assert job.state.complete is not sleeps


def test_a_replay_is_a_delivery_of_the_reader_that_has_it() -> None:
    job = _Job([1])
    job.play(["grant", "deliver", "train"])
    job.lose_reader()
    job.lose_shard(0)
    job.replace_shard(0)
    assert job.state.grant_replay("reader-1") is not None
    job.state.acknowledge("trainer-1", batch_id(0), EXAMPLES)
    assert job.state.known_deliveries("reader-0", "trainer-0") == EXAMPLES
    assert job.state.known_deliveries("reader-0", "trainer-1") == 0
    assert job.state.known_deliveries("reader-1", "trainer-1") == EXAMPLES


def test_while_a_shard_is_missing_the_job_is_not_complete() -> None:
    job = _Job([1])
    for _ in ("the span", "its batch"):
        job.grant()
        job.deliver()
        job.train()
    assert job.state.complete
    job.lose_shard(0)
    assert not job.state.complete
    assert not job.state.owed.has_all_shards
    assert job.state.missing_batches() is None, "nobody knows"
    job.replace_shard(0)
    assert job.state.owed.has_all_shards
    assert not job.state.owed.is_settled
    job.finish()
    assert job.state.complete
    assert job.state.totals.replayed_examples == EXAMPLES


def test_what_is_owed_is_not_in_a_checkpoint() -> None:
    """A run that resumes trains it again: no shard of the checkpoint may lack what its ledger has."""
    job = _Job([2])
    job.grant()
    for _ in range(2):
        job.deliver()
        job.train()
    assert job.state.saved().complete.keys() == {(0, 0)}
    job.lose_shard(1)
    job.saved[1] = {batch_id(1)}
    job.replace_shard(1)
    saved = job.state.saved()
    assert (saved.complete, saved.partial) == ({}, {(0, 0): {1: EXAMPLES}})
    job.finish()
    assert job.state.saved().complete.keys() == {(0, 0)}


def test_a_dead_trainers_replay_goes_on_while_it_is_owed() -> None:
    job = _Job([1])
    job.play(["grant", "deliver", "train"])
    job.lose_shard(0)
    job.replace_shard(0)
    state, first = job.state, batch_id(0)
    assert state.grant_replay("reader-0") is not None
    # The first delivery may not be forgotten yet; it is trained.
    assert state.return_batches("trainer-0", [(first, EXAMPLES)]) == []
    assert state.return_batches("trainer-0", [(first, EXAMPLES)], {first}) == [first]
    state.acknowledge("trainer-1", first, EXAMPLES)
    assert state.return_batches("trainer-1", [(first, EXAMPLES)], {first}) == []
    # It updated no dense parameter.
    assert state.trained_batches_of == {"trainer-0": 1, "trainer-1": 0}


def test_an_owed_batch_waits_until_its_span_is_complete() -> None:
    """Its first delivery may be in flight yet, and the two would be one to the reader."""
    job = _Job([2])
    job.grant()
    job.deliver()
    job.train()
    job.lose_shard(0)
    job.replace_shard(0)
    assert job.state.grant_replay("reader-0") is None
    job.deliver()
    job.train()
    replay = job.state.grant_replay("reader-0")
    assert replay is not None
    assert replay.skip == [1]
    assert job.state.grant_replay("reader-1") is None, "one reader has it"


def test_one_that_is_left_out_the_second_time_is_known() -> None:
    job = _Job([1])
    job.play(["grant", "deliver", "train"])
    job.lose_shard(0)
    job.replace_shard(0)
    job.grant()
    job.state.leave_out("trainer-0", batch_id(0), EXAMPLES, "why")
    assert job.state.complete
    assert job.state.owed.left_out == {batch_id(0)}
    assert job.state.left_out_again() == [batch_id(0)]
    assert job.state.saved().examples == 0, "a run that resumes trains it, or leaves it out"
    assert job.state.totals.untrained_examples == 0
