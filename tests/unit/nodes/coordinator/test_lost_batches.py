"""When a job can no longer end by itself: what a stale heartbeat must not make it believe."""

from __future__ import annotations

from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.coordinator.audit import lost_batches
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.orders import MemberInfo


def reader(retained_bytes: int, read_spans: int, index: int = 0) -> Member:
    """A reader as its last heartbeat has it."""
    info = MemberInfo(f"reader-{index}", "reader", index, "token", "tcp://127.0.0.1:1")
    return Member(info, metrics={"retained_bytes": retained_bytes, "read_spans": read_spans})


def ledger(trained: int, *, read: bool = True) -> LedgerState:
    """One span of three batches of ten examples, of which the first `trained` are acknowledged."""
    state = LedgerState([Span(0, "log.tsv", "bytes", 0, 100)], epochs=1, seed=1, shuffled=False)
    state.grant("reader-0")
    if read:
        state.span_read(0, 0, batches=3, examples=30, bad_rows=0)
    for number in range(trained):
        state.acknowledge("trainer-0", BatchId(0, 0, number, 1), 10)
    return state


def test_batches_that_nobody_has_are_lost() -> None:
    assert lost_batches(ledger(2), [reader(0, 1)]) == 1
    assert lost_batches(ledger(0), [reader(0, 1)]) == 3


def test_batches_that_a_reader_keeps_are_not() -> None:
    assert lost_batches(ledger(2), [reader(640, 1)]) == 0
    assert lost_batches(ledger(2), [reader(0, 1), reader(640, 0, index=1)]) == 0


def test_an_old_heartbeat_tells_nothing() -> None:
    """It says that nothing is kept, since it was sent before the span was cut."""
    assert lost_batches(ledger(0), [reader(0, 0)]) == 0


def test_a_span_that_is_being_cut_is_not_lost() -> None:
    assert lost_batches(ledger(2, read=False), [reader(0, 0)]) == 0


def test_nothing_is_lost_of_a_whole_job_or_without_a_reader() -> None:
    assert lost_batches(ledger(3), [reader(0, 1)]) == 0
    assert lost_batches(ledger(2), []) == 0
    silent = reader(0, 1)
    silent.metrics = {}
    assert lost_batches(ledger(2), [silent]) == 0


def test_what_a_dead_reader_had_cut_is_read_again_and_not_lost() -> None:
    state = ledger(2)
    state.lose_reader("reader-0")
    assert lost_batches(state, [reader(0, 0, index=1)]) == 0
    state.read_again("reader-0")
    assert lost_batches(state, [reader(0, 0, index=1)]) == 0
    state.grant("reader-1")
    assert lost_batches(state, [reader(0, 0, index=1)]) == 0
    state.span_read(0, 0, batches=3, examples=30, bad_rows=0)
    assert lost_batches(state, [reader(0, 0, index=1)]) == 0
    assert lost_batches(state, [reader(0, 1, index=1)]) == 1
