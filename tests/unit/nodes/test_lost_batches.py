"""Noticing that batches are lost for good."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.nodes.ledger_state import LedgerState
from shadowsync.nodes.lost_batches import lost_batches
from shadowsync.nodes.membership_state import Member
from shadowsync.nodes.role import MemberInfo
from shadowsync.pipeline.data.spans import Span
from shadowsync.tests.support.batches import batch_id


@pytest.fixture
def ledger() -> LedgerState:
    """Two spans of two batches of 10 examples, both handed out; three batches are trained."""
    spans = [Span(number, "part.tsv", "bytes", 0, 100) for number in range(2)]
    state = LedgerState(spans, epochs=1, seed=1, shuffled=False)
    for span in range(2):
        state.grant("reader-0")
        state.acknowledge("trainer-0", batch_id(0, span=span), 10)
    state.acknowledge("trainer-0", batch_id(1), 10)
    state.span_read(0, 0, batches=2, examples=20, bad_rows=0)
    return state


def reader(**metrics: Any) -> Member:
    return Member(MemberInfo("reader-0", "reader", 0, "r", ""), metrics=metrics)


def test_what_is_missing_is_known_when_all_is_read(ledger: LedgerState) -> None:
    assert ledger.missing_batches() is None
    ledger.span_read(0, 1, batches=2, examples=20, bad_rows=0)
    assert ledger.missing_batches() == 1
    ledger.acknowledge("trainer-0", batch_id(1, span=1), 10)
    assert ledger.missing_batches() == 0


def test_what_is_not_handed_out_is_not_missing() -> None:
    ledger = LedgerState([Span(0, "part.tsv", "bytes", 0, 100)], epochs=1, seed=1, shuffled=False)
    assert ledger.missing_batches() is None


def test_what_no_reader_keeps_and_nobody_trained_is_lost(ledger: LedgerState) -> None:
    ledger.span_read(0, 1, batches=2, examples=20, bad_rows=0)
    assert lost_batches(ledger, [reader(kept_bytes=0, parsed_examples=40)]) == 1
    two = [reader(kept_bytes=0, parsed_examples=10), reader(kept_bytes=0, parsed_examples=30)]
    assert lost_batches(ledger, two) == 1
    ledger.acknowledge("trainer-0", batch_id(1, span=1), 10)
    assert lost_batches(ledger, two) == 0


@pytest.mark.parametrize(
    "readers",
    [
        pytest.param([], id="no reader"),
        pytest.param([reader()], id="no heartbeat"),
        pytest.param([reader(kept_bytes=88, parsed_examples=40)], id="kept"),
        pytest.param([reader(kept_bytes=0, parsed_examples=20)], id="old heartbeat"),
        pytest.param(
            [reader(kept_bytes=0, parsed_examples=20), reader(kept_bytes=88, parsed_examples=20)],
            id="kept by another",
        ),
    ],
)
def test_what_may_still_come_is_not_lost(ledger: LedgerState, readers: list[Member]) -> None:
    ledger.span_read(0, 1, batches=2, examples=20, bad_rows=0)
    assert lost_batches(ledger, readers) == 0


def test_nothing_is_lost_while_a_span_is_being_read(ledger: LedgerState) -> None:
    assert lost_batches(ledger, [reader(kept_bytes=0, parsed_examples=20)]) == 0
