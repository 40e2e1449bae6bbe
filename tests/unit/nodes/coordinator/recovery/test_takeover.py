"""A coordinator that takes over: the journal gives it the state and the replies of the one that died."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.nodes.coordinator.recovery.takeover import Takeover
from shadowsync.nodes.coordinator.state.changes import RECORDS, SpansAdded
from shadowsync.nodes.coordinator.state.phases import JobPhase
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.control.orders import MAX_SPANS
from shadowsync.pipeline.wire.field_checks import values_of
from shadowsync.pipeline.wire.segment import running_kernel
from shadowsync.tests.support.coordinator.played_job import STEPS, everything, in_folder, play, taken_over
from shadowsync.tests.support.coroutines import run_by


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 16), steps=st.lists(st.sampled_from(STEPS), max_size=40))
def test_it_has_the_state_and_the_replies_of_the_one_that_died(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: list[str]
) -> None:
    async def work(folder: Path) -> None:
        before = await play(folder, seed, steps)
        state, takeover = taken_over(folder)
        assert state.lifecycle.phase is JobPhase.TRAINING
        assert everything(state) == everything(before.state)
        for token, replies in takeover.replies.items():
            for number, reply in replies.items():
                assert values_of(reply) == values_of(before.replies[token][number])
        takeover.store.close()
        await before.store.close()

    in_folder(work, tmp_path_factory)


HISTORY = ["grant", "train", "cut", "train", "grant", "die", "train", "join", "read again", "grant", "train"]


@pytest.mark.parametrize("kind", ["TrainedBatches", "SpanRead", "NextSpan", "NodeDied", "Hello"])
@run_by(asyncio.run)
async def test_a_change_that_is_not_in_the_journal_is_seen(tmp_path: Path, kind: str) -> None:
    """The control."""
    before = await play(tmp_path, 3, HISTORY)
    last = "DELETE FROM journal WHERE id = (SELECT max(id) FROM journal WHERE kind = ?)"
    await before.store.run(lambda store: store._write(last, [(kind,)]))
    await before.store.close()
    try:
        state, takeover = taken_over(tmp_path)
    except (ValueError, ClusterError):
        # What follows does not fit any more.
        return
    takeover.store.close()
    assert everything(state) != everything(before.state)


@run_by(asyncio.run)
async def test_a_journal_that_does_not_say_of_which_delivery_is_read(tmp_path: Path) -> None:
    before = await play(tmp_path, 3, [*HISTORY, "leave out"])
    await before.store.close()
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as database, database:
        shortened = 0
        select = "SELECT id, body FROM journal WHERE kind = 'TrainedBatches'"
        for number, body in database.execute(select).fetchall():
            batches, left_out, synced = msgpack.unpackb(body)
            older = msgpack.packb([[one[:-1] for one in batches], [one[:-1] for one in left_out], synced])
            shortened += len(batches) > 0
            shortened += len(left_out) > 0
            database.execute("UPDATE journal SET body = ? WHERE id = ?", (older, number))
    assert shortened > 1
    state, takeover = taken_over(tmp_path)
    takeover.store.close()
    ledger, ledger_before = state.ledger, before.state.ledger
    assert ledger.saved() == ledger_before.saved()
    assert ledger.totals == ledger_before.totals
    assert ledger.deliveries.saved() == []


@run_by(asyncio.run)
async def test_its_clock_goes_on(tmp_path: Path) -> None:
    before = await play(tmp_path, 3, HISTORY)
    await before.store.close()
    state, takeover = taken_over(tmp_path)
    takeover.store.close()
    assert state.seconds() > 1e9, "the journal says that the job began in 1970"


@pytest.mark.parametrize(("kernel", "counts"), [(running_kernel(), True), ("another", False)])
@run_by(asyncio.run)
async def test_on_its_machine_a_jump_of_the_wall_clock_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str, counts: bool
) -> None:
    """On another one there is nothing else to go by."""
    before = await play(tmp_path, 3, HISTORY, clock=((), kernel, time.monotonic()))
    await before.store.close()
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall + 86_400.0)
    state, takeover = taken_over(tmp_path)
    takeover.store.close()
    assert (state.seconds() < 86_400.0) is counts


@run_by(asyncio.run)
async def test_replies_to_the_dead_are_forgotten(tmp_path: Path) -> None:
    before = await play(tmp_path, 3, HISTORY)
    await before.store.close()
    state, takeover = taken_over(tmp_path)
    takeover.store.close()
    living = {member.info.token for member in [*state.members.alive(), *state.members.joining()]}
    assert set(takeover.replies) == living
    assert {member.info.token for member in state.members.everyone()} - living


def test_what_cannot_betaken_over(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"it has no ledger\.sqlite"):
        Takeover.open(tmp_path, "ledger.sqlite")
    LedgerStore(tmp_path / "ledger.sqlite").close()
    with pytest.raises(ClusterError, match="has no journal"):
        Takeover.open(tmp_path, "ledger.sqlite")


def test_more_spans_are_added_at_once_than_a_message_may_have() -> None:
    """All of a followed input, when it is resumed; each in the same transaction."""
    spans = tuple(Span(number, "x", "offsets", number, number + 1) for number in range(MAX_SPANS + 1))
    added = SpansAdded(spans, {"t": "text"})
    assert RECORDS.decode_values(RECORDS.name_of(added), values_of(added)) == added
