"""When a trainer tells what it has trained, and that each record is told and confirmed once."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.trainer import acknowledgements
from shadowsync.nodes.trainer.acknowledgements import FLUSH_RECORDS, FLUSH_SECONDS, AckSender
from shadowsync.nodes.worker.batches import BatchAck
from shadowsync.pipeline.wire.control.base import Done
from shadowsync.pipeline.wire.control.messages import TrainedBatches
from shadowsync.pipeline.wire.rpc.channel import RpcChannel
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.data.batches import batch_id


class Coordinator:
    """Takes what it is told."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []
        self.ages: list[float] = []

    async def call(self, request: TrainedBatches, *, timeout_seconds: float) -> Done:
        assert timeout_seconds > 0
        self.sent.append([tuple(batch.id) for batch in request.batches])
        self.ages += [batch.age_seconds for batch in request.batches]
        return Done()


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender's clock is the loop's, which stands still while there is anything to do."""
    monkeypatch.setattr(acknowledgements, "time", SimpleNamespace(monotonic=now))


def _record(number: int) -> BatchAck:
    return BatchAck(0, "reader-0", number, batch_id(number), 5, 0.1, 1.0, 5.0, now())


def _ack_sender(coordinator: Coordinator, confirmed: asyncio.Queue[BatchAck]) -> AckSender:
    return AckSender(cast("RpcChannel", coordinator), confirmed.put_nowait, lambda: 0, 60.0)


@run_by(run_in_virtual_time)
async def test_records_are_told_together() -> None:
    """The first at once; others once there are some, so that readers need not keep them, or after a while."""
    coordinator, confirmed = Coordinator(), asyncio.Queue[BatchAck]()
    sender = _ack_sender(coordinator, confirmed)
    assert not sender.due(now()), "nothing waits"
    sender.put(_record(1))
    assert sender.due(now())
    running = asyncio.ensure_future(sender.run())
    await confirmed.get()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    sent = now()
    for number in range(2, FLUSH_RECORDS + 1):
        sender.put(_record(number))
    assert not sender.due(sent - FLUSH_SECONDS)
    assert sender.due(sent + FLUSH_SECONDS)
    sender.put(_record(FLUSH_RECORDS + 1))
    assert sender.due(sent - FLUSH_SECONDS)


@run_by(run_in_virtual_time)
async def test_each_record_is_told_and_confirmed_once() -> None:
    coordinator, confirmed = Coordinator(), asyncio.Queue[BatchAck]()
    sender = _ack_sender(coordinator, confirmed)
    running = asyncio.ensure_future(sender.run())
    records = [_record(number) for number in range(1, 31)]
    for record in records:
        sender.put(record)
        await asyncio.sleep(0)
    assert [await confirmed.get() for _ in records] == records
    running.cancel()
    assert confirmed.empty()
    assert [id for sent in coordinator.sent for id in sent] == [tuple(record.id) for record in records]
    assert sender.confirmed_examples == 150


@run_by(run_in_virtual_time)
async def test_the_records_after_the_first_wait() -> None:
    """Fewer than are worth a message are told only when time has passed, and not each by itself."""

    coordinator, confirmed = Coordinator(), asyncio.Queue[BatchAck]()
    sender = _ack_sender(coordinator, confirmed)
    running = asyncio.ensure_future(sender.run())
    sender.put(_record(1))
    await confirmed.get()
    first = now()
    sender.put(_record(2))
    await confirmed.get()
    assert FLUSH_SECONDS <= now() - first < 2 * FLUSH_SECONDS
    running.cancel()


@run_by(run_in_virtual_time)
async def test_a_batch_that_ends_while_others_are_told_has_no_negative_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator would refuse it, and the trainer fail."""
    ticks = itertools.count()
    monkeypatch.setattr(acknowledgements, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))

    class Interrupted(AckSender):
        """A worker's thread runs as soon as it is due."""

        def due(self, now: float) -> bool:
            is_due = super().due(now)
            if is_due and self._records.qsize() == 1:
                self.put(replace(_record(2), finished_at=float(next(ticks))))
            return is_due

    coordinator, confirmed = Coordinator(), asyncio.Queue[BatchAck]()
    sender = Interrupted(cast("RpcChannel", coordinator), confirmed.put_nowait, lambda: 0, 60.0)
    running = asyncio.ensure_future(sender.run())
    sender.put(replace(_record(1), finished_at=float(next(ticks))))
    for _ in range(2):
        await confirmed.get()
    running.cancel()
    assert len(coordinator.ages) == 2
    assert min(coordinator.ages) > 0
