"""A worker says when all that it had pushed is in the ledger."""

from __future__ import annotations

from shadowsync.nodes.worker.batches import UnconfirmedBatches


def test_it_waits_for_what_was_pushed_before_and_for_nothing_else() -> None:
    batches, said = UnconfirmedBatches(), list[str]()
    batches.pushed("reader-0", 1)
    batches.pushed("reader-1", 1)
    batches.when_confirmed(lambda: said.append("first"))
    batches.pushed("reader-0", 2)
    batches.confirmed("reader-0", 1)
    batches.call_due_replies()
    assert said == []
    batches.when_confirmed(lambda: said.append("second"))
    batches.confirmed("reader-1", 1)
    batches.call_due_replies()
    assert said == ["first"], "the batch that was pushed later is not waited for"
    batches.confirmed("reader-0", 2)
    batches.call_due_replies()
    batches.call_due_replies()
    assert said == ["first", "second"]


def test_with_nothing_pushed_it_is_said_at_once() -> None:
    batches, said = UnconfirmedBatches(), list[str]()
    batches.when_confirmed(lambda: said.append("now"))
    batches.call_due_replies()
    assert said == ["now"]
