"""What a reader does once it has joined: spans, deaths of trainers, evaluation passes."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from ...pipeline.config.job import Job
from ...pipeline.config.trainer import MOST_CREDIT
from ...pipeline.data.span import from_runs
from ...pipeline.wire.control.messages import HeldBatch, NextSpan, ReturnBatches, SpanRead
from ...pipeline.wire.control.orders import DrainReply, Evaluate, EvaluateReply
from ...pipeline.wire.sockets import Listener
from ...pipeline.wire.tasks import TaskSet, post
from ..runtime.role import NodeContext
from .deliveries import DeliveryState
from .parser import Parser, ReadSpan, SpanTotals
from .sender import Sender
from .waiting_batches import TRAINING

JOIN_SECONDS = 3.0

log = logging.getLogger(__name__)


@dataclass
class EvalPass:
    """How far the parser is with this reader's spans of an evaluation pass."""

    spans_left: int
    examples: int = 0
    bad_rows: int = 0
    parsed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, totals: SpanTotals) -> None:
        self.examples += totals.examples
        self.bad_rows += totals.bad_rows
        self.spans_left -= 1
        if not self.spans_left:
            self.parsed.set()


class Reader:
    """A reader with its parsing thread; the sender is a task of this loop.

    Args:
        listener: the bound socket that workers connect to.
    """

    def __init__(self, job: Job, node: NodeContext, listener: Listener) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet(node.fail)
        self._parser = Parser(job, self._wake_sender, node.fail)
        trainer = job.trainer
        window = MOST_CREDIT if trainer.credit == "auto" else trainer.credit
        state = DeliveryState(job.data.retain_bytes, trainer.consecutive_batches, window)
        self._sender = Sender(listener, self._parser.out, state, self._on_totals)
        self._returning: list[asyncio.Task[None]] = []
        self._lost: set[str] = set()
        self._passes: dict[int, EvalPass] = {}
        self._span_read = asyncio.Event()
        self._more_spans = asyncio.Event()
        self._read_spans = 0

    def start(self) -> None:
        """Start parser and sender; no span is taken before `begin`."""
        self._tasks.start(self._sender.serve())
        self._tasks.start(self._sender.look_for_overdue())
        self._parser.start()

    def begin(self) -> None:
        """Take spans from now on."""
        self._tasks.start(self._take_spans())

    def more_spans(self) -> None:
        """Ask for spans again, though there was none before."""
        self._more_spans.set()

    def lose(self, token: str) -> None:
        """Take back a dead node's batches; repeated notices change nothing."""
        if token not in self._lost:
            self._lost.add(token)
            self._returning.append(self._tasks.start(self._return_batches(token)))

    def delivered_to(self, token: str) -> int:
        """Return how many examples to train this trainer was sent."""
        return self._sender.state.delivered_examples[token]

    def metrics(self) -> dict[str, Any]:
        """Return counts so far."""
        counts = {"bad_rows": self._parser.bad_rows.count, "read_spans": self._read_spans}
        return self._sender.metrics() | self._parser.metrics() | counts

    async def drain(self) -> DrainReply:
        """Read nothing more to train, and return what was delivered to each worker."""
        self._parser.drop_training()
        # A dead trainer's batches are in the ledger before it is closed.
        await asyncio.gather(*self._returning, return_exceptions=True)
        sequences = self._sender.state.drain()
        return DrainReply(self.metrics(), sequences)

    async def evaluate(self, request: Evaluate) -> EvaluateReply:
        """Deliver spans of an evaluation pass; return once every batch is confirmed."""
        number, spans = request.pass_number, request.spans
        current = self._passes[number] = EvalPass(len(spans))
        self._sender.state.open_pass(number, list(request.tokens))
        for span in spans:
            self._parser.submit(ReadSpan(number, 0, span))
        if spans:
            await current.parsed.wait()
        await self._sender.finished(number)
        return EvaluateReply(current.examples, current.bad_rows)

    async def close(self) -> None:
        """End the parser and the sender."""
        self._parser.stop()
        await self._tasks.close()
        await asyncio.to_thread(self._parser.join, JOIN_SECONDS)

    async def _take_spans(self) -> None:
        node = self._node
        while True:
            self._span_read.clear()
            self._more_spans.clear()
            reply = await node.coordinator.call(NextSpan(), timeout_seconds=node.patience_seconds)
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
        elif number in self._passes:
            for row in totals.first_bad_rows:
                log.warning("bad row, held out: %s", row)
            self._passes[number].add(totals)

    async def _report_span_read(self, totals: SpanTotals) -> None:
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

    async def _return_batches(self, token: str) -> None:
        state = self._sender.state
        lost = state.lose(token)
        self._sender.wake()
        held = tuple(HeldBatch(batch.id, len(batch), batch.replay) for batch in lost)
        request = ReturnBatches(token, held)
        reply = await self._node.coordinator.call(request, timeout_seconds=self._node.patience_seconds)
        state.resolve_lost(token, list(reply.again))
        self._sender.wake()

    def _wake_sender(self) -> None:
        """Wake the sender, from the parser's thread."""
        # The loop of an ending reader may close before its parser ends.
        post(self._loop, self._sender.wake)
