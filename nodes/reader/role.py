"""The reader role: parses spans and delivers batches to trainers that have credit.

Imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import zmq

from ...pipeline.config.job import Job
from ...pipeline.data.span import from_runs
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import HeldBatch, NextSpan, NodeFacts, ReturnBatches, SpanRead
from ...pipeline.wire.control.orders import (
    Begin,
    ConnectPeers,
    Drain,
    DrainReply,
    Evaluate,
    EvaluateReply,
    MoreSpans,
    NodeLost,
    TrainerJoined,
)
from ...pipeline.wire.sockets import Listener
from ...pipeline.wire.tasks import TaskSet, post
from ..runtime.largest_messages import LARGEST_HEADER_BYTES
from ..runtime.role import NodeContext, Role, admit_trainers, listener_of_trainers, unexpected_request
from .deliveries import DeliveryState
from .parser import Parser, ReadSpan, SpanTotals
from .sender import Sender
from .waiting_batches import TRAINING

log = logging.getLogger(__name__)


class ReaderRole(Role):
    """A reader without its parsing thread; the sender is a task of this loop."""

    name: ClassVar[str] = "reader"

    def __init__(self, job: Job) -> None:
        self._job = job
        self._listener: Listener | None = None
        self._sender: Sender | None = None
        self._parser: Parser | None = None
        self._node: NodeContext | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet(self._failed)
        self._returning: list[asyncio.Task[None]] = []
        self._lost: set[str] = set()
        self._eval_spans_left: dict[int, int] = {}
        self._eval_totals: dict[int, list[int]] = {}
        self._eval_parsed: dict[int, asyncio.Event] = {}
        self._span_read = asyncio.Event()
        self._more_spans = asyncio.Event()
        self._read_spans = 0

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Bind the socket that workers connect to."""
        # Credits are small.
        self._listener = listener_of_trainers(context, address, LARGEST_HEADER_BYTES, LARGEST_HEADER_BYTES)
        return self._listener.endpoint

    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Start the parser and the sender; nothing is read before `begin`."""
        assert self._listener is not None
        self._node = node
        self._parser = Parser(self._job, self._wake_sender, node.fail)
        trainer = self._job.trainer
        state = DeliveryState(self._job.data.retain_bytes, trainer.consecutive_batches, trainer.credit)
        self._sender = Sender(self._listener, self._parser.out, state, self._on_totals)
        self._tasks.start(self._sender.serve())
        self._tasks.start(self._sender.look_for_overdue())
        self._parser.start()
        return NodeFacts()

    async def handle(self, request: Request[Any]) -> Reply:
        """Answer ConnectPeers, TrainerJoined, Begin, MoreSpans, NodeLost, Drain and Evaluate."""
        if isinstance(request, Drain):
            return await self._drain()
        if isinstance(request, Evaluate):
            return await self._evaluate(request)
        if isinstance(request, Begin):
            self._tasks.start(self._take_spans())
        elif isinstance(request, MoreSpans):
            self._more_spans.set()
        elif isinstance(request, NodeLost):
            self._lose(request.token)
        elif isinstance(request, TrainerJoined):
            assert self._listener is not None
            self._listener.admit_also(request.member.token)
        elif isinstance(request, ConnectPeers):
            assert self._listener is not None
            admit_trainers(self._listener, request)
        else:
            raise unexpected_request(self.name, request)
        return Done()

    def metrics(self) -> dict[str, Any]:
        """Return counts so far."""
        bad_rows = self._parser.bad_rows.count if self._parser else 0
        sent = self._sender.metrics() if self._sender else {}
        parsed = self._parser.metrics() if self._parser else {}
        return sent | parsed | {"bad_rows": bad_rows, "read_spans": self._read_spans}

    async def close(self) -> None:
        """End the parser and the sender."""
        if self._parser is not None:
            self._parser.stop()
        try:
            await self._tasks.close()
            if self._parser is not None:
                await asyncio.to_thread(self._parser.join, 3.0)
        finally:
            # Even if cancelled meanwhile: a context with an open socket cannot be terminated.
            if self._listener is not None:
                self._listener.close()

    async def _take_spans(self) -> None:
        assert self._node is not None
        assert self._parser is not None
        while True:
            self._span_read.clear()
            self._more_spans.clear()
            reply = await self._node.coordinator.call(NextSpan(), timeout_seconds=self._node.patience_seconds)
            if (grant := reply.grant) is None:
                # Wait: if another node dies, spans must be read again.
                await self._more_spans.wait()
                continue
            skip = from_runs(grant.skip)
            work = ReadSpan(TRAINING, grant.epoch, grant.span, skip, grant.replay, grant.proof)
            self._parser.submit(work)
            await self._span_read.wait()

    def _on_totals(self, totals: SpanTotals) -> None:
        number = totals.work.pass_number
        if number == TRAINING:
            self._read_spans += 1
            self._span_read.set()
            self._tasks.start(self._report_span_read(totals))
        elif number in self._eval_totals:
            for row in totals.first_bad_rows:
                log.warning("bad row, held out: %s", row)
            self._eval_totals[number][0] += totals.examples
            self._eval_totals[number][1] += totals.bad_rows
            self._eval_spans_left[number] -= 1
            if not self._eval_spans_left[number]:
                self._eval_parsed[number].set()

    async def _report_span_read(self, totals: SpanTotals) -> None:
        assert self._node is not None
        assert self._parser is not None
        work = totals.work
        read = SpanRead(
            work.epoch,
            work.span.number,
            totals.batches,
            totals.examples,
            totals.bad_rows,
            replay=work.replay,
            dropped_negatives=totals.dropped_negatives,
            first_bad_row=str(next(iter(self._parser.bad_rows.first), "")),
        )
        if totals.bad_rows:
            for row in self._parser.bad_rows.first:
                log.warning("bad row: %s", row)
        await self._node.coordinator.call(read, timeout_seconds=self._node.patience_seconds)

    def _lose(self, token: str) -> None:
        """Take back a dead node's batches; repeated notices change nothing."""
        if token not in self._lost:
            self._lost.add(token)
            self._returning.append(self._tasks.start(self._return_batches(token)))

    async def _return_batches(self, token: str) -> None:
        assert self._node is not None
        sender = self._sender
        assert sender is not None
        lost = sender.state.lose(token)
        sender.wake()
        held = tuple(HeldBatch(batch.id, len(batch), batch.replay) for batch in lost)
        request = ReturnBatches(token, held)
        reply = await self._node.coordinator.call(request, timeout_seconds=self._node.patience_seconds)
        again = list(reply.again)
        sender.state.resolve_lost(token, again)
        sender.wake()

    async def _drain(self) -> DrainReply:
        assert self._parser is not None
        sender = self._sender
        assert sender is not None
        self._parser.drop_training()
        # A dead trainer's batches are in the ledger before it is closed.
        await asyncio.gather(*self._returning, return_exceptions=True)
        sequences = sender.state.drain()
        return DrainReply(self.metrics(), sequences)

    async def _evaluate(self, request: Evaluate) -> EvaluateReply:
        assert self._parser is not None
        sender = self._sender
        assert sender is not None
        number, tokens, spans = request.pass_number, list(request.tokens), request.spans
        self._eval_totals[number] = [0, 0]
        self._eval_spans_left[number] = len(spans)
        self._eval_parsed[number] = asyncio.Event()
        sender.state.open_pass(number, tokens)
        for span in spans:
            self._parser.submit(ReadSpan(number, 0, span))
        if spans:
            await self._eval_parsed[number].wait()
        await sender.finished(number)
        examples, bad_rows = self._eval_totals[number]
        return EvaluateReply(examples, bad_rows)

    def _wake_sender(self) -> None:
        """Wake the sender, from the parser's thread."""
        # The loop of an ending reader may close before its parser ends.
        post(self._loop, self._wake)

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    def _failed(self, error: BaseException) -> None:
        if self._node is not None:
            self._node.fail(error)
