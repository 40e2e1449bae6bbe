"""When a job can no longer end by itself: what a stale heartbeat must not make it believe."""

from __future__ import annotations

from shadowsync.nodes.coordinator.audit import lost_batches
from shadowsync.nodes.coordinator.ledger import LedgerState
from shadowsync.nodes.coordinator.membership import Member
from shadowsync.pipeline.data.spans import Span
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control_orders import MemberInfo


def reader(kept_bytes: int, parsed_examples: int) -> Member:
    """A reader as its last heartbeat has it."""
    info = MemberInfo("reader-0", "reader", 0, "token", "tcp://127.0.0.1:1")
    return Member(info, metrics={"kept_bytes": kept_bytes, "parsed_examples": parsed_examples})


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
    assert lost_batches(ledger(2), [reader(0, 30)]) == 1
    assert lost_batches(ledger(0), [reader(0, 30)]) == 3


def test_batches_that_a_reader_keeps_are_not() -> None:
    assert lost_batches(ledger(2), [reader(640, 30)]) == 0
    assert lost_batches(ledger(2), [reader(0, 15), reader(640, 15)]) == 0


def test_an_old_heartbeat_tells_nothing() -> None:
    """It says that nothing is kept, since it was sent before the span was cut."""
    assert lost_batches(ledger(0), [reader(0, 0)]) == 0


def test_a_span_that_is_being_cut_is_not_lost() -> None:
    assert lost_batches(ledger(2, read=False), [reader(0, 0)]) == 0


def test_nothing_is_lost_of_a_whole_job_or_without_a_reader() -> None:
    assert lost_batches(ledger(3), [reader(0, 30)]) == 0
    assert lost_batches(ledger(2), []) == 0
    silent = reader(0, 30)
    silent.metrics = {}
    assert lost_batches(ledger(2), [silent]) == 0
