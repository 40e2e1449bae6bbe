"""A worker's requests where it has copies of hot rows."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.nodes.reader_line import ReaderLine
from shadowsync.nodes.shard_line import ShardLines, ShardRefused
from shadowsync.nodes.slot import Slot
from shadowsync.pipeline.embedding.plan import TablePlan
from shadowsync.pipeline.embedding.routing import ShardRouter
from shadowsync.pipeline.embedding.row_cache import make_caches
from shadowsync.pipeline.wire.codecs.registry import LinkCodecs, make_codec
from shadowsync.pipeline.wire.messages import Delivery, Lookup, Push, Pushed, Vectors
from shadowsync.pipeline.wire.retransmission import LOOKUP
from shadowsync.tests.support.batches import batch_id
from shadowsync.tests.support.outbox import Outbox
from shadowsync.tests.support.tables import make_tables

DIM, STALENESS = 2, 3
PLAN = TablePlan.make(make_tables([40], DIM), 1)
ROUTER = ShardRouter(PLAN, distinct=True)


@pytest.fixture
def box() -> Outbox:
    return Outbox()


@pytest.fixture
def lines(box: Outbox) -> ShardLines:
    return ShardLines([box.connection], ["embedding-0"], caches=make_caches(PLAN, 100, STALENESS))


def look_up(lines: ShardLines, *rows: int, pass_number: int = 0, at: float = 0.0) -> Slot:
    nothing = np.zeros((len(rows), 1), np.float32)
    own = np.array([rows], np.int32)
    delivery = Delivery(1, pass_number, batch_id(0), nothing[:, 0], nothing, own)
    slot = Slot(ReaderLine("reader-0", Outbox().connection, 4), delivery)
    lines.look_up(slot, ROUTER.requests(own), at)
    return slot


def answer(lines: ShardLines, box: Outbox, value: float, version: int, at: float = 0.0) -> list[int]:
    """The node answers what was asked last, all with this value; gives the rows."""
    asked = box.take()[-1]
    assert isinstance(asked, Lookup)
    values = np.full(len(asked.rows) * DIM, value, np.float32)
    assert lines.receive(0, Vectors(asked.request, version, values), at) is None
    return [int(row) for row in asked.rows]


def vectors(slot: Slot) -> list[float]:
    return [float(value) for value in slot.answers[0][::DIM]]


def test_a_row_that_a_copy_is_there_of_is_not_asked_for(lines: ShardLines, box: Outbox) -> None:
    first = look_up(lines, 7, 5, 7)
    assert answer(lines, box, 1.0, 0) == [5, 7]
    assert (first.unanswered, vectors(first)) == (0, [1.0, 1.0])
    second = look_up(lines, 5, 9)
    assert second.unanswered == 1
    assert answer(lines, box, 2.0, 1) == [9]
    assert (second.unanswered, vectors(second)) == (0, [1.0, 2.0])
    # A batch that has copies of all its rows asks for the count of pushes.
    third = look_up(lines, 5, 7, 9)
    assert answer(lines, box, 3.0, 2) == []
    assert (third.unanswered, vectors(third)) == (0, [1.0, 1.0, 2.0])
    assert (lines.caches[0].hits, lines.caches[0].misses) == (4, 3)


def test_a_push_has_all_rows_and_the_count_of_its_oldest_copy(lines: ShardLines, box: Outbox) -> None:
    look_up(lines, 5)
    answer(lines, box, 1.0, 4)
    slot = look_up(lines, 5, 9)
    answer(lines, box, 2.0, 6)
    lines.push(slot, [np.ones(2 * DIM, np.float32)], 0.0)
    (push,) = box.take()
    assert isinstance(push, Push)
    assert (push.version, push.rows.tolist()) == (4, [5, 9])
    assert lines.receive(0, Pushed(push.request, repeated=False), 0.0) is slot


def test_a_copy_that_turns_out_too_old_is_asked_for_again_first(lines: ShardLines, box: Outbox) -> None:
    look_up(lines, 5)
    answer(lines, box, 1.0, 0)
    slot = look_up(lines, 5, 9, at=10.0)
    assert answer(lines, box, 2.0, STALENESS + 1, at=12.0) == [9]
    assert slot.unanswered == 1
    (again,) = (request for request in lines._open.values())
    # It is a trip of its own, and has its own time to be answered.
    assert again.sent_at == 12.0
    sent = len(box.sent)
    lines.resend_overdue(10.5 + LOOKUP.interval_seconds)
    assert len(box.sent) == sent
    lines.resend_overdue(12.5 + LOOKUP.interval_seconds)
    assert len(box.sent) == sent + 1
    assert answer(lines, box, 3.0, STALENESS + 2) == [5]
    assert (slot.unanswered, vectors(slot), slot.versions) == (0, [3.0, 2.0], [STALENESS + 1])
    assert lines.outstanding == 0
    assert lines.lookups == 3


def test_scores_are_of_rows_as_they_are(lines: ShardLines, box: Outbox) -> None:
    look_up(lines, 5)
    answer(lines, box, 1.0, 0)
    scored = look_up(lines, 5, 9, pass_number=2)
    assert answer(lines, box, 2.0, 0) == [5, 9]
    assert vectors(scored) == [2.0, 2.0]
    # Nor do they count, or are kept.
    trained = look_up(lines, 5)
    assert answer(lines, box, 9.0, 0) == []
    assert vectors(trained) == [1.0]
    assert (lines.caches[0].hits, lines.caches[0].misses) == (1, 1)


def test_an_answer_of_other_floats_is_refused(lines: ShardLines, box: Outbox) -> None:
    look_up(lines, 5)
    answer(lines, box, 1.0, 0)
    look_up(lines, 5, 9)
    asked = box.take()[-1]
    assert isinstance(asked, Lookup)
    with pytest.raises(ShardRefused, match="embedding-0: answered 4 floats, not 2"):
        lines.receive(0, Vectors(asked.request, 1, np.zeros(2 * DIM, np.float32)), 0.0)


@pytest.mark.parametrize(("codec", "size"), [("float32", 4.0), ("bfloat16", 2.0)])
def test_what_a_float_takes_on_the_wire_is_known_from_the_last_answer(
    box: Outbox, codec: str, size: float
) -> None:
    codecs = LinkCodecs(make_codec(codec), make_codec(codec))
    lines = ShardLines([box.connection], ["embedding-0"], codecs, make_caches(PLAN, 100, 1))
    look_up(lines, 5, 6)
    asked = box.take()[-1]
    assert isinstance(asked, Lookup)
    answered = lines._coding.outgoing(Vectors(asked.request, 0, np.ones(2 * DIM, np.float32)))
    lines.receive(0, answered, 0.0)
    assert lines.bytes_per_float == size
