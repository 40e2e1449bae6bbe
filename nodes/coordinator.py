"""The coordinator: one address for everyone, the membership, the ledger's door, heartbeats, deaths.

Imports no torch. Training goes on without it, up to the readers' retention.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from ..pipeline.data.batch import BatchId
from ..pipeline.errors import ClusterError, ExitCode, ProtocolError
from ..pipeline.wire.aio import send_now
from ..pipeline.wire.conversation import Conversation, Gone, Refused
from ..pipeline.wire.endpoints import advertised
from ..pipeline.wire.frames import decode, encode
from ..pipeline.wire.messages import Ask, Failure, Pulse
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import bind, prepare
from .ledger_state import LedgerState
from .ledger_store import LedgerStore
from .lost_batches import lost_batches
from .membership_state import Member, Membership
from .orphan import watch_supervisor
from .settings import NodeSettings
from .span_body import span_to_body
from .stop import Stop
from .tally import Tally

log = logging.getLogger(__name__)

SUPERVISOR = "supervisor"


class Coordinator:
    """The sockets and the memory of a job; `conductor` decides what happens when.

    All of it runs on one asyncio loop.
    """

    def __init__(self, settings: NodeSettings, folder: Path, ledger: LedgerState, store: LedgerStore) -> None:
        self.settings = settings
        self.job = settings.job
        self.folder = folder
        self.ledger = ledger
        self.store = store
        self.members = Membership(self.job.expected, self.job.digest)
        self.tally = Tally()
        self.events: list[tuple[float, str, str]] = []
        self.stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Condition()
        self.lost_dense_updates = 0
        self.started_at = time.monotonic()
        self.refused_messages = 0
        self.exits: dict[str, str] = {}
        self.phase = "waiting for nodes"
        self.finishing = False
        self._talks: dict[bytes, Conversation] = {}
        self._heard: dict[str, float] = {}
        self._synced: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        prepare(self._socket)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started_at

    def listen(self) -> str:
        """Binds, and gives the endpoint that nodes join at; raises ClusterError."""
        bound = bind(self._socket, self.settings.listen_at())
        self.endpoint = advertised(bound, self.settings.bind, self.settings.advertise)
        return self.endpoint

    def start(self) -> None:
        """Begins to receive, to watch heartbeats, and to heed signals."""
        loop = asyncio.get_running_loop()
        self.spawn(self._receive())
        self.spawn(self._watch())
        interrupted = Stop("interrupted", "interrupted", ExitCode.INTERRUPTED)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request_stop, interrupted)
        if self.settings.supervised:
            watch_supervisor(loop, lambda: self.request_stop(interrupted))

    async def close(self) -> None:
        """Ends the tasks and the socket."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        self._context.term()

    def request_stop(self, stop: Stop) -> None:
        """The job stops; the first reason counts."""
        if not self.stop.done():
            log.info("stopping: %s", stop.text)
            self.stop.set_result(stop)

    def event(self, node: str, what: str) -> None:
        """Notes what happened to a node."""
        seconds = self.seconds()
        log.warning("%s: %s", node, what)
        self.events.append((seconds, node, what))
        self.store.event(seconds, node, what)

    async def ask(
        self, member: Member, verb: str, body: dict[str, Any], seconds: float
    ) -> dict[str, Any] | None:
        """Asks one node; None if it is gone or refused, which is logged."""
        talk = self._talks.get(member.info.token.encode())
        if talk is None or not member.alive:
            return None
        try:
            return await talk.ask(verb, body, timeout_seconds=seconds)
        except (Gone, Refused) as error:
            log.warning("%s did not do %r: %s", member.info.name, verb, error)
            return None

    async def ask_all(
        self, members: Iterable[Member], verb: str, body: dict[str, Any], seconds: float
    ) -> dict[str, dict[str, Any]]:
        """Asks several at once; the answers by name, without those that did not answer."""
        asked = list(members)
        answers = await asyncio.gather(*(self.ask(member, verb, body, seconds) for member in asked))
        return {m.info.name: a for m, a in zip(asked, answers, strict=True) if a is not None}

    async def notify(self) -> None:
        """Wakes whoever waits for a change of members or ledger."""
        async with self.changed:
            self.changed.notify_all()

    def lose(self, token: str, why: str) -> None:
        """A node died: its batches go back, what it alone knew is counted as lost."""
        member = None if self.finishing else self.members.lose(token, why)
        talk = self._talks.pop(token.encode(), None) if self.finishing or member else None
        if talk is not None:
            talk.close(why)
        if member is None:
            return
        name, role = member.info.name, member.info.role
        self.event(name, why)
        if role == "trainer":
            updates = self.ledger.trained_batches_of.get(name, 0)
            self.lost_dense_updates += max(0, updates - self._synced.get(token, 0))
        self._judge_death(member)
        body = {"token": token, "role": role, "name": name, "generation": self.members.generation}
        for other in self.members.alive():
            self.spawn(self.ask(other, "gone", body, 60.0))
        self.spawn(self.notify())

    def _judge_death(self, member: Member) -> None:
        name, role = member.info.name, member.info.role
        if not self.members.started:
            text = f"{name} died before the job started ({member.lost_because})"
            self.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH))
        elif role == "embedding":
            rows = member.facts.get("rows", 0)
            text = f"{name} died and its {rows:,} rows with it"
            self.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH, lost_shard=True))
        elif role == "reader":
            text = f"{name} died; what it had not delivered is untrained"
            self.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH))
        elif role == "trainer" and not self.members.alive("trainer"):
            text = "the last trainer died"
            self.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH))

    async def _receive(self) -> None:
        while True:
            parts = await self._socket.recv_multipart(copy=False)
            identity = parts[0].bytes
            try:
                message = decode([part.buffer for part in parts[1:]])
            except ProtocolError as error:
                self.refused_messages += 1
                log.error("refused a message from %r: %s", identity, error)
                self._send(identity, Failure(request=0, what=str(error)))
                continue
            token = identity.decode("ascii", "replace")
            self._heard[token] = time.monotonic()
            if isinstance(message, Pulse):
                self._pulse(identity, token, message)
                continue
            talk = self._talks.get(identity)
            if talk is None:
                if not isinstance(message, Ask):
                    continue
                talk = self._talks[identity] = self._new_talk(identity, token)
            talk.receive(message)

    def _new_talk(self, identity: bytes, token: str) -> Conversation:
        async def handle(verb: str, body: dict[str, Any]) -> dict[str, Any]:
            return await self._handle(token, verb, body)

        return Conversation(token, lambda message: self._send(identity, message), handle)

    def _send(self, identity: bytes, message: Message) -> None:
        send_now(self._socket, [identity, *encode(message)])

    def _pulse(self, identity: bytes, token: str, message: Pulse) -> None:
        self._send(identity, Pulse(body={}))
        member = self.members.find(token)
        if member is not None and member.alive:
            member.metrics = message.body
            if member.info.role == "trainer":
                self.tally.pulse(member.info.name, self.seconds(), message.body)

    async def _watch(self) -> None:
        limit = self.job.run.node_timeout_seconds
        while True:
            await asyncio.sleep(min(0.5, limit / 4))
            now = time.monotonic()
            for member in self.members.alive():
                if member.ready and now - self._heard.get(member.info.token, now) > limit:
                    self.lose(member.info.token, f"was silent for {limit:g} s")
            if self.phase == "training" and (lost := lost_batches(self.ledger, self.members.alive("reader"))):
                text = (
                    f"batches delivered and neither trained nor on their way: {lost}; report.md has the books"
                )
                self.request_stop(Stop("failed", text, ExitCode.LEDGER))

    async def _handle(self, token: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        if verb == "hello":
            return self._hello(token, body)
        if verb in ("exited", "status"):
            return self._supervisor(verb, body)
        member = self.members.require(token)
        if verb == "ready":
            self.members.ready(token, body)
            await self.notify()
            return {}
        if verb == "failed":
            code = ExitCode(int(body["exit_code"]))
            self.request_stop(Stop("failed", f"{member.info.name}: {body['what']}", code))
            # It ends once it has the answer, so nobody should wait for it.
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, self.lose, token, f"failed: {body['what']}")
            return {}
        if verb == "interrupt":
            text = f"{member.info.name} was asked to stop"
            self.request_stop(Stop("interrupted", text, ExitCode.INTERRUPTED))
            return {}
        work = {
            "trained": self._trained,
            "next_span": self._next_span,
            "span_read": self._span_read,
            "returned": self._returned,
        }
        if verb not in work:
            raise ProtocolError(f"a coordinator does not know {verb!r}")
        try:
            answer = work[verb](member, body)
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"{verb}: {error}") from error
        await self.notify()
        return answer

    def _hello(self, token: str, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("token") != token:
            raise ClusterError("the token is not the connection's")
        role = str(body.get("role"))
        member = self.members.join(role, token, str(body.get("digest")), str(body.get("endpoint")))
        log.info("%s joined (%s)", member.info.name, member.info.endpoint or "connects only")
        return {"name": member.info.name, "index": member.info.index, "folder": str(self.folder.resolve())}

    def _supervisor(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        if verb == "exited":
            token, how = str(body["token"]), str(body["how"])
            member = self.members.find(token)
            if member is not None:
                self.exits[member.info.name] = how
            if member is None:
                text = f"a {body['role']} ended before it joined ({how})"
                self.request_stop(Stop("death", text, ExitCode(int(body["code"]))))
            else:
                self.lose(token, f"died ({how})")
            return {}
        gaps = [m.metrics for m in self.members.alive("trainer")]
        return {
            "phase": self.phase,
            "seconds": self.seconds(),
            "trained": self.tally.examples,
            "examples_per_second": self.tally.examples_per_second(),
            "ne": self.tally.ne_progressive,
            "rounds": sum(int(metrics.get("rounds", 0)) for metrics in gaps),
            "gap_open": max((int(metrics.get("gap_open", 0)) for metrics in gaps), default=0),
        }

    def _trained(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:
        name, now = member.info.name, self.seconds()
        rows = []
        for wire_id, examples, loss_sum, positives, age in body["batches"]:
            batch = BatchId.from_wire(wire_id)
            rows.append(self.ledger.acknowledge(name, batch, int(examples)))
            self.tally.trained(name, now - float(age), int(examples), float(loss_sum), int(positives))
        self._synced[member.info.token] = int(body["synced_iterations"])
        self.store.acknowledge(rows)
        return {}

    def _next_span(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        granted = self.ledger.grant(member.info.name)
        if granted is None:
            return {"span": None}
        epoch, span = granted
        self.store.grant(epoch, span, member.info.name)
        return {"epoch": epoch, "span": span_to_body(span)}

    def _span_read(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        counts = {key: int(body[key]) for key in ("batches", "examples", "bad_rows")}
        epoch, span = int(body["epoch"]), int(body["span"])
        self.ledger.span_read(epoch, span, **counts)
        self.store.span_read(epoch, span, **counts)
        if self.ledger.totals.bad_rows > self.job.data.max_bad_rows:
            text = (
                f"{self.ledger.totals.bad_rows} malformed rows over all readers; the limit "
                f"data.max_bad_rows is {self.job.data.max_bad_rows}"
            )
            self.request_stop(Stop("failed", text, ExitCode.DATA))
        return {}

    def _returned(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        dead = self.members.find(str(body["token"]))
        if dead is None or dead.alive:
            raise ProtocolError("only a dead trainer's batches can be returned")
        batches = [(BatchId.from_wire(batch), int(examples)) for batch, examples in body["batches"]]
        again = self.ledger.return_batches(batches)
        sizes = dict(batches)
        self.store.returned((b.epoch, b.span, b.number, sizes[b], dead.info.name) for b in again)
        return {"again": [list(batch) for batch in again]}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs a coroutine beside the others; an exception of it stops the job."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the coordinator failed", exc_info=error)
            text = f"the coordinator failed: {type(error).__name__}: {error}"
            self.request_stop(Stop("failed", text, getattr(error, "exit_code", ExitCode.INTERNAL)))
