"""The coordinator: one address for everyone, the membership, the ledger's door, heartbeats, deaths.

Imports no torch. Training goes on without it, up to the readers' retention.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from ..pipeline.data.id_classes import IdClass
from ..pipeline.errors import ClusterError, ExitCode, ProtocolError, ShadowSyncError
from ..pipeline.types import BatchId
from ..pipeline.wire.aio import send_now
from ..pipeline.wire.conversation import Conversation, Gone, Refused
from ..pipeline.wire.endpoints import advertised
from ..pipeline.wire.frames import decode, encode
from ..pipeline.wire.messages import Ask, Failure, Pulse
from ..pipeline.wire.own_address import AUTO, own_address
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import bind, prepare
from .bad_batches import BadBatches
from .desk import Desk
from .health import Health, health_path, serve_health
from .health_words import coordinator_health
from .input_size import InputSize
from .ledger_state import LedgerState
from .ledger_store import LedgerStore
from .lost_batches import lost_batches
from .membership_state import Member, Membership
from .placement import Placement
from .process_hooks import ProcessHooks
from .rates import Rates
from .settings import NodeSettings
from .stop import Stop
from .sync_group import GroupView, SyncGroup
from .talks import Talks
from .tally import Tally
from .tracing import TRACER
from .watching import Watching

log = logging.getLogger(__name__)

SUPERVISOR = "supervisor"
FAREWELL_SECONDS = 1.0


class Coordinator:
    """The sockets and the memory of a job; `conductor` decides what happens when.

    All of it runs on one asyncio loop.
    """

    def __init__(
        self,
        settings: NodeSettings,
        folder: Path,
        ledger: LedgerState,
        store: LedgerStore,
        placement: Placement,
        process: ProcessHooks | None = None,
    ) -> None:
        self.settings = settings
        self._process = process or ProcessHooks()
        self.job = settings.job
        self.folder = folder
        self.ledger = ledger
        self.store = store
        self.placement = placement
        self.members = Membership(self.job.expected, self.job.digest)
        self.group = SyncGroup()
        self.tally = Tally()
        self.bad_batches = BadBatches(settings.job.trainer.max_bad_batches)
        self.rates = Rates()
        self.input_size = InputSize.unknown()
        self.divergence_points: list[tuple[float, float]] = []
        self.divergence_period_seconds = 1.0
        self.resumed_from = ""
        # Which checkpoint a run that goes on was read from.
        self.start_digest = ""
        self.progressive: frozenset[int] = frozenset()
        self.id_classes: Mapping[str, IdClass] = {}
        # Of a run that goes on: the batches that each shard had applied and the saved ledger has not.
        self.applied_before: dict[str, frozenset[BatchId]] = {}
        # (examples trained, metric of `[validation]`), in the order in which they were scored.
        self.validation_points: list[tuple[int, float]] = []
        self.page = ""
        self.ended_as = "ended"
        self._watching = Watching(self)
        # Host and process by token, for those who watch.
        self.places: dict[str, tuple[str, int]] = {}
        self.events: list[tuple[float, str, str]] = []
        self.stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Condition()
        self.lost_dense_updates = 0
        self.started_at = time.monotonic()
        self.refused_messages = 0
        self.exits: dict[str, str] = {}
        # Why a node did not do what it was asked last, by its name.
        self.refusals: dict[str, ShadowSyncError] = {}
        self.phase = "waiting for nodes"
        self.finishing = False
        self._desk = Desk(self)
        self.talks = Talks()
        self.synced_iterations: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context = self._process.zmq_context()
        self._socket = zmq.asyncio.Context(self._context).socket(zmq.ROUTER)
        prepare(self._socket)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started_at

    def listen(self) -> str:
        """Binds, and gives the endpoint that nodes join at; raises ClusterError."""
        bound = bind(self._socket, self.settings.listen_at())
        told = own_address() if self.settings.advertise == AUTO else self.settings.advertise
        self.endpoint = advertised(bound, self.settings.bind, told)
        self._watching.open()
        return self.endpoint

    def start(self) -> None:
        """Begins to receive, to watch heartbeats, and to heed signals."""
        loop = asyncio.get_running_loop()
        self.spawn(self._receive())
        self.spawn(self._watch())
        self.spawn(self._watching.run())
        if (path := health_path(supervised=False)) is not None:
            self.spawn(serve_health(path, self.health))
        interrupted = Stop("interrupted", "interrupted", ExitCode.INTERRUPTED)
        self._process.on_interrupt(loop, lambda: self.request_stop(interrupted))
        if self.settings.supervised:
            self._process.on_orphaned(loop, lambda: self.request_stop(interrupted))

    def health(self) -> Health:
        """What the socket of `nodes.health` answers."""
        expected = self.job.expected
        there = {role: len(self.members.alive(role)) for role in expected}
        return coordinator_health(self.phase, self.tally.examples, expected, there)

    async def close(self) -> None:
        """Tells who watches that the job has ended; ends the tasks and the socket."""
        watchers = self.talks.watchers(time.monotonic())
        end = {"outcome": self.ended_as}
        told = [talk.ask("ended", end, timeout_seconds=FAREWELL_SECONDS) for talk in watchers]
        await asyncio.gather(*told, return_exceptions=True)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._watching.close()
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
        talk = self.talks.of(member.info.token.encode())
        if talk is None or not member.alive:
            return None
        self.refusals.pop(member.info.name, None)
        try:
            return await talk.ask(verb, body, timeout_seconds=seconds)
        except (Gone, Refused) as error:
            log.warning("%s did not do %r: %s", member.info.name, verb, error)
            if isinstance(error, Refused):
                self.refusals[member.info.name] = error
            return None

    async def demand(self, member: Member, verb: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Asks one node that must answer; raises ClusterError, with its reason, if it is gone or refuses."""
        talk = self.talks.of(member.info.token.encode())
        if talk is None or not member.alive:
            raise ClusterError(f"{member.info.name} is gone")
        try:
            return await talk.ask(verb, body, timeout_seconds=seconds)
        except (Gone, Refused) as error:
            unmet = ClusterError(f"{member.info.name}: {error}")
            unmet.exit_code = error.exit_code if isinstance(error, Refused) else unmet.exit_code
            raise unmet from error

    async def ask_all(
        self, members: Iterable[Member], verb: str, body: dict[str, Any], seconds: float
    ) -> dict[str, dict[str, Any]]:
        """Asks several at once; the answers by name, without those that did not answer."""
        asked = list(members)
        answers = await asyncio.gather(*(self.ask(member, verb, body, seconds) for member in asked))
        return {m.info.name: a for m, a in zip(asked, answers, strict=True) if a is not None}

    async def until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits for a condition, a stop, or the timeout; whether the condition holds."""

        async def wait() -> None:
            async with self.changed:
                await self.changed.wait_for(condition)

        waiter = asyncio.ensure_future(wait())
        try:
            watched: set[asyncio.Future[Any]] = {waiter, self.stop}
            await asyncio.wait(watched, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        return condition()

    async def notify(self) -> None:
        """Wakes whoever waits for a change of members or ledger."""
        async with self.changed:
            self.changed.notify_all()

    def lose(self, token: str, why: str) -> None:
        """A node died: its batches go back, what it alone knew is counted as lost."""
        member = None if self.finishing else self.members.lose(token, why)
        if self.finishing or member:
            self.talks.end(token.encode(), why)
        if member is None:
            return
        name, role = member.info.name, member.info.role
        self.event(name, why)
        if role == "trainer":
            updates = self.ledger.trained_batches_of.get(name, 0)
            self.lost_dense_updates += max(0, updates - self.synced_iterations.get(token, 0))
        self._judge_death(member)
        body = {"token": token, "role": role, "name": name, "generation": self.members.generation}
        for other in self.members.alive():
            self.spawn(self.ask(other, "gone", body, 60.0))
        if role == "trainer":
            self.tell_group(self.group.lose(member.info.index))
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
            self.talks.hear(identity, time.monotonic())
            if isinstance(message, Pulse):
                self._pulse(identity, token, message)
                continue
            talk = self.talks.of(identity)
            if talk is None:
                if not isinstance(message, Ask):
                    continue
                talk = self._new_talk(identity, token)
                self.talks.begin(identity, talk)
            talk.receive(message)

    def _new_talk(self, identity: bytes, token: str) -> Conversation:
        async def handle(verb: str, body: dict[str, Any]) -> dict[str, Any]:
            began = time.monotonic()
            try:
                return await self._desk.handle(token, verb, body)
            finally:
                if TRACER.on:
                    TRACER.note(verb, began, time.monotonic() - began)

        return Conversation(
            token, lambda message: self._send(identity, message), handle, repeatable=("status",)
        )

    def _send(self, identity: bytes, message: Message) -> None:
        send_now(self._socket, [identity, *encode(message)])

    def _pulse(self, identity: bytes, token: str, message: Pulse) -> None:
        member = self.members.find(token)
        dead = member is not None and not member.alive
        body = {"declared_dead": member.lost_because} if member and dead else {}
        self._send(identity, Pulse(body=body | {"examples": self.ledger.examples_so_far}))
        if member is not None and member.alive:
            member.metrics = message.body
            self.rates.beat(member.info.name, self.seconds(), message.body)
            if member.info.role == "trainer":
                self.tally.pulse(member.info.name, self.seconds(), message.body)

    async def _watch(self) -> None:
        limit = self.job.run.node_timeout_seconds
        while True:
            await asyncio.sleep(min(0.5, limit / 4))
            now = time.monotonic()
            for member in self.members.alive():
                heard = self.talks.heard_at(member.info.token)
                if member.ready and heard is not None and now - heard > limit:
                    self.lose(member.info.token, f"was silent for {limit:g} s")
            self.talks.forget_silent(now, lambda token: self.members.find(token) is not None)
            if self.phase == "training" and (lost := lost_batches(self.ledger, self.members.alive("reader"))):
                text = (
                    f"batches delivered and neither trained nor on their way: {lost}; report.md has the books"
                )
                self.request_stop(Stop("failed", text, ExitCode.LEDGER))

    def tell_group(self, view: GroupView | None) -> None:
        """A new generation, to all trainers: those that are not in it should know that too."""
        if view is not None and self.members.started:
            for trainer in self.members.alive("trainer"):
                self.spawn(self.ask(trainer, "group", view.to_body(), 60.0))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a coroutine beside the others; an exception of it stops the job."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the coordinator failed", exc_info=error)
            text = f"the coordinator failed: {type(error).__name__}: {error}"
            self.request_stop(Stop("failed", text, getattr(error, "exit_code", ExitCode.INTERNAL)))
