"""A coordinator that is told what cannot be: it costs the one who said it, and changes no account."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.control.divergence import CHUNK_ELEMENTS, divergence_of
from shadowsync.nodes.control.replica_sampler import ReplicaSampler
from shadowsync.nodes.coordinator.evaluation import Evaluator, read_progressive, sum_scores
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.nodes.coordinator.monitoring.status import build_status
from shadowsync.nodes.coordinator.requests import RequestHandler
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.nodes.coordinator.shutdown import JobFinalizer
from shadowsync.nodes.coordinator.state.outcome import FinalModel, Outcome
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.errors import ClusterError, ProtocolError
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.base import Reply, Request, encode_body
from shadowsync.pipeline.wire.control.messages import (
    UNKNOWN_DELIVERY,
    HeldBatch,
    LeftOutBatch,
    NodeFacts,
    NodeFailed,
    Ready,
    ReportSlowPeer,
    ReturnBatches,
    SpanRead,
    StatusReply,
    TrainedBatch,
    TrainedBatches,
)
from shadowsync.pipeline.wire.control.orders import (
    Drain,
    DrainReply,
    EvalSums,
    Evaluate,
    EvaluateReply,
    FindLacking,
    GetEvalSums,
    LackingBatches,
    PrepareEval,
    PrepareEvalReply,
    ReadReplica,
    ReplicaSample,
    ReplicaValues,
    SampleReplica,
)
from shadowsync.pipeline.wire.control.profile import MeasureReply, Trace, TraceReply
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.field_checks import MOST_COUNT
from shadowsync.pipeline.wire.frames import encode
from shadowsync.pipeline.wire.messages import IMPOSSIBLE, Heartbeat, ReplyMessage, RequestMessage
from shadowsync.pipeline.wire.schema import Message
from shadowsync.sync_algos.contract.model_origin import ModelOrigin
from shadowsync.tests.support.coordinator.fake_coordinator import member, state_of
from shadowsync.tests.support.coordinator.impossible import lies
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.expected import present

NODES = [("trainer", 0), ("trainer", 1), ("embedding", 0), ("reader", 0)]
LIAR = "token-trainer-1"
ELEMENTS = 64


def sums() -> bytes:
    """The scores of four examples."""
    found = QualitySums()
    found.add(np.zeros(4, np.float32), np.array([0, 1, 0, 1], np.float32))
    return found.to_bytes()


class Told(CoordinatorServer):
    """A coordinator whose nodes answer at once, from a table; one of them lies.

    Attributes:
        replies: by the type of a request.
        lie: what the liar's reply becomes: a body for a body.
        said: messages to the nodes.
        failures: what has ended one of its tasks.
    """

    def __init__(self, folder: Path, **sections: Any) -> None:
        state = state_of(folder, [member(*node, dense_elements=ELEMENTS) for node in NODES], **sections)
        state.start_members()
        state.lifecycle.begin_training({})
        self.ledger_of = LedgerWriter(LedgerStore(folder / "ledger.sqlite"))
        super().__init__(NodeSettings(job=state.job), state, self.ledger_of)
        self._handle = RequestHandler(self).handle
        self.replies: dict[type[Request[Any]], Reply] = {}
        self.lie: Callable[[list[Any]], list[Any]] = list
        self.said: list[Message] = []
        self.failures: list[BaseException] = []
        for one in state.members.alive():
            identity = one.info.token.encode()
            self.sessions.begin(identity, self._new_session(identity, one.info.token, {}))

    def _failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def _send(self, identity: bytes, message: Message) -> None:
        encode(message)
        self.said.append(message)
        if not isinstance(message, RequestMessage):
            return
        request = CONTROL_VERBS.decode_request(message.verb, message.body)
        if (reply := self.replies.get(type(request))) is not None:
            body = encode_body(reply)
            body = self.lie(body) if identity == LIAR.encode() else body
            session = present(self.sessions.of(identity))
            asyncio.get_running_loop().call_soon(session.receive, ReplyMessage(message.number, True, body))

    @property
    def accounts(self) -> dict[str, Any]:
        """The sums of the ledger."""
        return dict(vars(self.state.ledger.totals))

    async def told(self, token: str, request: Request[Any], body: list[Any]) -> ReplyMessage:
        """What it answers to a request of this body."""
        session = present(self.sessions.of(token.encode()))
        before = len(self.said)
        session.receive(RequestMessage(1, CONTROL_VERBS.name_of(request), body))
        while True:
            replies = [one for one in self.said[before:] if isinstance(one, ReplyMessage)]
            if replies:
                return replies[0]
            await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120.0))


TRAINED = TrainedBatch(batch_id(1), 8, 4.0, 3.0, 8.0, 0.1, delivery=("reader-0", 0, 1))
LEFT_OUT = LeftOutBatch(batch_id(2), 8, "why", ("reader-0", 0, 2))
REQUESTS = [
    ("token-trainer-1", TrainedBatches((TRAINED,), (LEFT_OUT,), 3)),
    ("token-reader-0", SpanRead(0, 0, 4, 40, 1, dropped_negatives=1)),
    ("token-reader-0", ReturnBatches("token-trainer-1", (HeldBatch(batch_id(3), 8),))),
    ("token-reader-0", NodeFailed("it failed", 6, 3)),  # type: ignore[arg-type]
    ("token-trainer-0", NodeFailed("it failed", 6, 0)),  # type: ignore[arg-type]
    ("token-trainer-1", ReportSlowPeer(1, 0)),
    ("token-trainer-1", Ready(NodeFacts(rows=1, pieces=((0, 0, 1),)))),
]


@pytest.mark.parametrize(("token", "request_"), REQUESTS, ids=lambda one: type(one).__name__)
@run_by(run)
async def test_a_request_that_cannot_be_changes_no_account(
    token: str, request_: Request[Any], tmp_path: Path
) -> None:
    for number, (place, body) in enumerate(lies(encode_body(request_))):
        folder = tmp_path / str(number)
        folder.mkdir()
        server = Told(folder)
        if isinstance(request_, ReturnBatches):
            server.state.mark_dead(LIAR, "died")
        before = server.accounts
        reply = await server.told(token, request_, body)
        text = str(reply.body)
        if not reply.ok:
            assert "' failed: " not in text, f"{place}: {text}"
            assert server.accounts == before, place
        else:
            # It may say something else in bounds; then it counts once, by what one batch has.
            assert server.state.ledger.totals.trained_examples <= before["trained_examples"] + 128, place
            assert all(0 <= value < 1 << 45 for value in server.accounts.values()), place
        assert not server.failures, f"{place}: {server.failures}"
        encode(ReplyMessage(1, True, encode_body(StatusReply(_status(server)))))
        await server.store.close()


def _status(server: CoordinatorServer) -> dict[str, Any]:
    return build_status(server.state, {}, 0).model_dump(mode="json")


COUNTED = (
    "iterations", "rounds", "gap_open", "cpu_seconds", "retained_bytes",
    "read_spans", "read_examples", "applied_batches", "repeated_pushes", "in_flight", "memory_bytes",
)  # fmt: skip


@run_by(run)
async def test_counts_that_cannot_be_stop_nobody_who_takes_heartbeats(tmp_path: Path) -> None:
    now = [0.0]
    server = Told(tmp_path, clock=lambda: now[0], trainer={"count": 2})
    before = server.accounts
    for value in (MOST_COUNT, 0, 0.5, float(MOST_COUNT), 1):
        for name in (None, *COUNTED):
            counts: dict[str, int | float] = dict.fromkeys(COUNTED, 1) if name is None else {name: value}
            for token in ("token-trainer-0", LIAR, "token-reader-0", "token-embedding-0"):
                now[0] += 0.7
                server.beat(token.encode(), token, Heartbeat(counts))
            encode(ReplyMessage(1, True, encode_body(StatusReply(_status(server)))))
    await server.run_periodic_checks(now[0])
    assert server.accounts == before
    assert not server.failures
    await server.close()
    await server.store.close()


VALUES = np.zeros(ELEMENTS, np.float32).tobytes()


async def _evaluate(server: Told) -> None:
    model = FinalModel(ModelOrigin.REPLICAS, "none", ELEMENTS, needs_peers=False)
    # Of another count than the readers' nobody knows whose is wrong.
    with contextlib.suppress(ClusterError):
        await Evaluator(server, model, [], list[str]().append).run()


async def _diverge(server: Told) -> None:
    model = FinalModel(ModelOrigin.REPLICAS, "none", ELEMENTS, needs_peers=False)
    divergence = await JobFinalizer(server, Outcome(), model, list[str]().append).measure_divergence()
    assert divergence is None or math.isfinite(divergence)


async def _sample(server: Told) -> None:
    sampler = ReplicaSampler(server)
    divergence = divergence_of(await sampler.sample(ELEMENTS))
    assert divergence is None or math.isfinite(divergence)


async def _drain(server: Told) -> None:
    drain = Drain({}, batches=(batch_id(7),))
    replies = await server.call_all(server.state.members.alive("trainer"), drain, 5.0)
    sum_scores((await read_progressive(server, replies)).values())


def _call(request: Request[Any]) -> Callable[[Told], Awaitable[object]]:
    return lambda server: server.call_all(server.state.members.alive("trainer"), request, 5.0)


LACKING = FindLacking(((0, 0, 0, 9), (0, 1, 0, 9)))
REPLIES: dict[str, tuple[Callable[[Told], Awaitable[object]], dict[type[Request[Any]], Reply]]] = {
    "eval_sums": (
        _evaluate,
        {
            PrepareEval: PrepareEvalReply(True),
            Evaluate: EvaluateReply(4, 0),
            GetEvalSums: EvalSums(sums()),
        },
    ),
    "read_replica": (_diverge, {ReadReplica: ReplicaValues(VALUES)}),
    "sample_replica": (_sample, {SampleReplica: ReplicaSample(VALUES)}),
    "drain": (_drain, {Drain: DrainReply({"a": 1}, {"w": 1}, 4, sums(), (batch_id(7),))}),
    "find_lacking": (_call(LACKING), {FindLacking: LackingBatches(((0, 0, 1, 3), (0, 1, 0, 9)), 2)}),
    "trace": (
        _call(Trace(1.0)),
        {Trace: TraceReply(("step",), ("main",), ((0, 0, 5, 1),))},
    ),
}


@pytest.mark.parametrize("what", REPLIES)
@run_by(run)
async def test_a_reply_that_cannot_be_costs_its_sender_and_no_account(what: str, tmp_path: Path) -> None:
    work_of, replies = REPLIES[what]
    bodies = {verb: encode_body(reply) for verb, reply in replies.items()}
    died: list[str] = []

    async def one(number: int, verb: type[Request[Any]], place: str, wrong: list[Any]) -> None:
        folder = tmp_path / f"{number}-{verb.__name__}"
        folder.mkdir()
        server = Told(folder)
        server.replies = dict(replies)
        server.lie = lambda body: wrong if body == bodies[verb] else body
        before = server.accounts
        await work_of(server)
        assert not server.failures, f"{place}: {server.failures}"
        assert server.accounts == before
        liar, honest = (present(server.state.members.find(one)) for one in (LIAR, "token-trainer-0"))
        assert honest.alive, place
        if not liar.alive:
            assert liar.lost_because.startswith(f"{IMPOSSIBLE}: "), place
            died.append(place)
        await server.close()
        await server.store.close()

    for kind, body in bodies.items():
        for number, (place, wrong) in enumerate(lies(body)):
            await one(number, kind, place, wrong)
    assert died


@pytest.mark.parametrize(
    "wrong",
    [
        LackingBatches(((0, 0, 1, 10),), 2),
        LackingBatches(((0, 2, 0, 9),), 2),
        LackingBatches(((1, 0, 0, 9),), 2),
        LackingBatches(((0, 1, 0, 9),), 1),
        LackingBatches(((0, 0, 3, 3),), 2),
        LackingBatches((), 3),
    ],
)
def test_a_shard_lacks_only_what_it_was_asked_for(wrong: LackingBatches) -> None:
    LACKING.require(LackingBatches(((0, 0, 0, 9), (0, 1, 2, 3)), 2))
    with pytest.raises(ValueError, match=r"asked for|examined"):
        LACKING.require(wrong)


def test_chunks_are_of_the_length_that_was_asked_for() -> None:
    ReadReplica(0, CHUNK_ELEMENTS).require(ReplicaValues(bytes(4 * CHUNK_ELEMENTS)))
    with pytest.raises(ValueError, match="bytes for"):
        ReadReplica(0, CHUNK_ELEMENTS).require(ReplicaValues(bytes(4 * CHUNK_ELEMENTS + 1)))


def test_a_measure_of_a_clock_that_cannot_be_is_refused() -> None:
    body = encode_body(MeasureReply(1.0, "m", 1, {}, {"main": (1.0, 1.0)}, {}))
    CONTROL_VERBS.decode_reply("measure", body)
    with pytest.raises(Exception, match="clock"):
        CONTROL_VERBS.decode_reply("measure", [1e300, *body[1:]])


@run_by(run)
async def test_a_batch_beyond_the_rows_of_its_span_is_refused(tmp_path: Path) -> None:
    """Its reader would be refused otherwise, once it says how many batches the span has."""
    server = Told(tmp_path)
    first = batch_id(1)
    far = BatchId(first.epoch, first.span, 100, first.seed)
    request = TrainedBatches((TrainedBatch(far, 8, 4.0, 3.0, 8.0, 0.1),), (), 1)
    reply = await server.told(LIAR, request, encode_body(request))
    assert not reply.ok
    assert "is not in its span" in str(reply.body)
    await server.store.close()


@run_by(run)
async def test_acknowledgements_of_no_delivery_and_of_one_twice_cost_the_trainer(tmp_path: Path) -> None:
    server = Told(tmp_path)
    await server.answer(LIAR, TrainedBatches((TRAINED,), (), 1), 1)
    before = server.accounts
    again = dataclasses.replace(TRAINED, id=batch_id(3))
    with pytest.raises(ProtocolError, match="delivery 1 of reader-0 to worker 0 is acknowledged twice"):
        await server.answer(LIAR, TrainedBatches((again,), (), 1), 2)
    with pytest.raises(ProtocolError, match="delivery 2 of reader-0 to worker 0 is acknowledged twice"):
        await server.answer(LIAR, TrainedBatches((), (LEFT_OUT, LEFT_OUT), 1), 3)
    assert server.accounts == before
    unnamed = dataclasses.replace(again, delivery=UNKNOWN_DELIVERY)
    await server.answer(LIAR, TrainedBatches((unnamed,), (), 1), 4)
    liar = present(server.state.members.find(LIAR))
    assert "an acknowledgement that names no delivery" in liar.lost_because
    assert server.state.members.require("token-reader-0").alive
    await server.store.close()


@run_by(run)
async def test_a_weight_that_no_example_has_is_refused(tmp_path: Path) -> None:
    """It would outweigh what all others say of the loss."""
    server = Told(tmp_path)
    before = server.accounts
    for weight in (7.0, 8.5, 1e40):
        heavy = dataclasses.replace(TRAINED, weight=weight, positives=3.0)
        with pytest.raises(ProtocolError, match="and the job has no sample weights"):
            await server.answer(LIAR, TrainedBatches((heavy,), (), 1), 1)
    assert server.accounts == before
    assert server.state.training.metrics.examples == 0
    await server.store.close()


@run_by(run)
async def test_a_span_has_no_more_malformed_rows_than_bytes(tmp_path: Path) -> None:
    """They would end the job, as data that is too bad."""
    server = Told(tmp_path)
    span = server.state.ledger.queue[0]
    assert span.kind == "bytes"
    rows = span.stop - span.start
    for bad_rows, dropped in ((rows, 0), (0, rows), (rows // 2, rows // 2), (1 << 40, 0)):
        read = SpanRead(0, 0, 4, 40, bad_rows, dropped_negatives=dropped)
        with pytest.raises(ProtocolError, match=f"rows, {bad_rows} malformed; it has at most {rows}"):
            await server.answer("token-reader-0", read, 1)
    assert server.state.ledger.totals.bad_rows == 0
    assert server.state.lifecycle.stop is None
    await server.answer("token-reader-0", SpanRead(0, 0, 4, 40, rows - 40), 1)
    await server.store.close()
