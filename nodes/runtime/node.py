"""The life of every node but the coordinator: join, prepare, handle requests, leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import zmq

from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import ClusterError, ExitCode, ProtocolError, ShadowSyncError, describe
from ...pipeline.open_files import too_many_files
from ...pipeline.text.format import duration
from ...pipeline.wire.control.base import Reply, Request
from ...pipeline.wire.control.messages import Hello, Interrupt, Leave, NodeFailed, Ready
from ...pipeline.wire.control.orders import Begin, ConnectPeers, Finish, FinishReply
from ...pipeline.wire.control.profile import Measure, Trace
from ...pipeline.wire.endpoints import advertised
from ...pipeline.wire.frames import decode, encode
from ...pipeline.wire.keys.curve import ZapAuthenticator, start_authenticator
from ...pipeline.wire.messages import IMPOSSIBLE, Failure, Heartbeat, HeartbeatReply
from ...pipeline.wire.refusals import UNSENT, CountedLog, Refusals
from ...pipeline.wire.rpc.channel import MAX_ERROR_CHARACTERS, ConnectionLost, RemoteError, RpcChannel
from ...pipeline.wire.schema import Message
from ...pipeline.wire.socket_events import SocketTurns
from ...pipeline.wire.sockets import SERVED_AT_ONCE, configure_socket, connect, send_or_drop
from ...pipeline.wire.tasks import TaskSet, post, race
from .connection_watch import OTHER_KEY, ConnectionWatch
from .health import Health, node_health, serve_health
from .process import ProcessHooks
from .process_figures import NodeProfile, process_metrics, serve_metrics
from .role import GONE_TIMEOUTS, SILENT_TIMEOUTS, NodeContext, Role
from .settings import NodeSettings, resolve_advertised_host

if TYPE_CHECKING:
    from ...watch.exporters.metrics_server import MetricsServer


ORPHAN_SECONDS = 9.0

log = logging.getLogger(__name__)


class Node:
    """A node of a job, run on the control thread.

    Args:
        process: hooks into the process around it; by default the node has a process of its own.
        former: the node that it was before it was declared dead, which has ended but for its context.
    """

    _context: zmq.Context[zmq.Socket[bytes]]

    def __init__(
        self,
        role: Role,
        settings: NodeSettings,
        process: ProcessHooks | None = None,
        former: Node | None = None,
    ) -> None:
        self.role = role
        self.settings = settings
        self._process = process or ProcessHooks()
        self.exit_code = ExitCode.OK
        self.exit_text = ""
        self._finished = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._former = former
        self._heir: Node | None = None
        self._context = former._context if former else self._process.zmq_context(settings.job)
        self._received_at = self._loop.time()
        self._dead_because = ""
        self._used_before = process_metrics()["cpu_seconds"] if former is not None else 0.0
        self._joined = False
        self._ready = False
        self._is_leaving = False
        self._refusals = Refusals(log)
        self._refused = partial(self._refusals.add, "refused a message from the coordinator: %s")
        self._unsent = CountedLog(log)
        self._handled_once: dict[type[Request[Any]], asyncio.Future[Reply]] = {}
        self._counts: dict[str, Any] = {}
        self._metrics_server: MetricsServer | None = None
        self._authenticator: ZapAuthenticator | None = None
        self._watch: ConnectionWatch | None = None
        self._turns: SocketTurns | None = None
        self._channel = RpcChannel("the coordinator", self._send, self._handle, refused=self._refused)
        self._profile = NodeProfile(self._metrics)
        self._tasks = TaskSet(self._fail)

    async def run(self) -> ExitCode:
        """Join, work until told to finish, and return the exit code.

        A node that was declared dead and lives joins again, as another one. `exit_text` says why the code
        isn't 0.
        """
        await self._live()
        if not self._dead_because:
            return self.exit_code
        settings = replace(self.settings, token=uuid4().hex)
        heir = self._heir = Node(self.role, settings, self._process, former=self)
        code = await heir.run()
        self.exit_text = heir.exit_text
        return code

    async def _live(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        configure_socket(self._socket)
        self._socket.setsockopt_string(zmq.IDENTITY, self.settings.token)
        try:
            self._watch = ConnectionWatch(self._socket)
            former = self._former
            self._authenticator = former._authenticator if former else start_authenticator(self._context)
            self._connect()
            self._turns = SocketTurns(self._take_turn, self._socket, self._watch.events)
            self._install_signals()
            if (path := self._process.health_path(supervised=self.settings.supervised)) is not None:
                self._tasks.start(serve_health(path, self._health))
            await race(self._work(), self._finished.wait())
            await self._finished.wait()
        except ShadowSyncError as error:
            self._end(error.exit_code, str(error))
            await self._report_failure(error)
        except Exception as error:
            # Without this, the others would wait until this node has been silent for too long.
            if (named := too_many_files(error)) is None:
                log.exception("the node failed")
            await self._report_failure(named or error)
            raise
        finally:
            await self._close()

    def fail(self, error: BaseException) -> None:
        """End the node because of an error in one of its threads.

        Any thread may call.
        """
        post(self._loop, lambda: self._fail(error))

    def end(self, text: str) -> None:
        """End the node, which nobody will tell to; any thread may call."""
        post(self._loop, lambda: self._end_or_heir(text))

    def _end_or_heir(self, text: str) -> None:
        if self._heir is not None:
            self._heir._end_or_heir(text)
        else:
            self._end(ExitCode.OK, text)

    def _fail(self, error: BaseException) -> None:
        if self._heir is not None:
            # Threads that outlive this node still report to it.
            self._heir._fail(error)
        elif not self._finished.is_set():
            error = too_many_files(error) or error
            if not isinstance(error, ShadowSyncError):
                log.error("a thread failed", exc_info=error)
            self._tasks.start(self._fail_and_end(error))

    async def _fail_and_end(self, error: BaseException) -> None:
        code = error.exit_code if isinstance(error, ShadowSyncError) else ExitCode.INTERNAL
        try:
            await self._report_failure(error)
        finally:
            self._end(code, describe(error))

    def _connect(self) -> None:
        try:
            connect(self._socket, self.settings.join)
        except zmq.ZMQError as error:
            raise ClusterError(
                f"is not an address to join ({zmq.strerror(error.errno or 0)})",
                where=self.settings.join or "--join",
                remedy="write tcp://HOST:PORT, as the coordinator printed it",
            ) from error

    async def _work(self) -> None:
        settings, job = self.settings, self.settings.job
        endpoint = self.role.listen(self._context, settings.listen_at())
        hello = Hello(
            role=self.role.name,
            token=settings.token,
            digest=job.digest,
            endpoint=advertised(endpoint, settings.bind, await resolve_advertised_host(settings))
            if endpoint
            else "",
            pid=os.getpid(),
            host=socket.gethostname(),
            former=self._former.settings.token if self._former else "",
        )
        try:
            welcome = await self._channel.call(hello, timeout_seconds=job.run.start_timeout_seconds)
        except ConnectionLost as error:
            raise ClusterError(
                f"no {self.role.host} answered within {duration(job.run.start_timeout_seconds)}",
                where=settings.join,
                remedy=f"start the {self.role.host} first and give the address that it prints",
            ) from error
        except RemoteError as error:
            if self._former is not None:
                text = f"this node was declared dead: it {self._former._dead_because}; {error.what}"
                self._end(ExitCode.STOPPED_BY_DEATH, text)
                return
            raise ClusterError(error.what, where=error.where, remedy=error.remedy) from error
        self._joined = True
        name = welcome.name
        self._process.log_to(welcome.folder, name)
        log.info("joined as %s", name)
        context = NodeContext(
            job=job,
            name=name,
            index=welcome.index,
            token=settings.token,
            folder=welcome.folder,
            zmq_context=self._context,
            coordinator=self._channel,
            plan=TablePlan.from_body(job.tables, job.embedding.nodes, welcome.plan),
            fail=self.fail,
            late=welcome.late,
            label_rates=welcome.label_rates,
            grant_key=welcome.grant_key,
        )
        # From here on, so that its death is noticed while it prepares.
        self._tasks.start(self._heartbeat())
        facts = await self.role.prepare(context)
        run = Path(welcome.folder).name
        self._metrics_server = await serve_metrics(
            settings, self.role.name, name, run, lambda: self._counts, self._health
        )
        self._ready = True
        try:
            await self._channel.call(Ready(facts), timeout_seconds=job.run.start_timeout_seconds)
        except (ConnectionLost, RemoteError) as error:
            raise ClusterError(str(error)) from error
        self._send(Heartbeat(self._metrics()))

    def _take_turn(self) -> None:
        """Handle changes of the connection to the coordinator, and its messages."""
        assert self._watch is not None
        assert self._turns is not None
        try:
            if self._watch.take() and not self._joined:
                self._end(ExitCode.CLUSTER, f"{self.settings.join}: {OTHER_KEY % self.role.host}")
            self._turns.receive(self._socket, self._receive, SERVED_AT_ONCE)
        except Exception as error:  # noqa: BLE001 - whatever it is, the node fails with it
            self._fail(error)

    def _receive(self) -> None:
        parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        try:
            message = decode([part.buffer for part in parts])
        except ProtocolError as error:
            if self._joined:
                self._refused(str(error))
            else:
                self._end(error.exit_code, f"{self.settings.join}: {error}")
            return
        self._received_at = self._loop.time()
        if isinstance(message, Failure):
            if self._joined:
                log.error("the coordinator refused a message: %s", message.what)
            else:
                self._end(ExitCode.CLUSTER, f"{self.settings.join}: refused: {message.what}")
        elif not isinstance(message, HeartbeatReply):
            self._channel.receive(message)
        elif why := message.declared_dead:
            # Mostly it was paused or cut off for too long; others do its work now.
            if not self._finished.is_set():
                may_return = self._ready and self.role.renew is not None and not why.startswith(IMPOSSIBLE)
                self._dead_because = why if may_return else ""
            self._end(ExitCode.STOPPED_BY_DEATH, f"this node was declared dead: it {why}")
        else:
            self.role.progress(message.examples)

    async def _heartbeat(self) -> None:
        run = self.settings.job.run
        silent_limit = SILENT_TIMEOUTS * run.node_timeout_seconds
        gone_limit = run.coordinator_wait_seconds or GONE_TIMEOUTS * run.node_timeout_seconds
        while True:
            self._counts = self._metrics() if self._ready else {}
            self._send(Heartbeat(self._counts))
            await asyncio.sleep(self._process.heartbeat_seconds)
            is_connected = self._watch is not None and self._watch.connected
            limit = silent_limit if is_connected else gone_limit
            if self._loop.time() - self._received_at > limit:
                how = "silent" if is_connected else "gone"
                self._end(
                    ExitCode.STOPPED_BY_DEATH,
                    f"{self.settings.join}: the {self.role.host} was {how} for {duration(limit)}",
                )

    def _metrics(self) -> dict[str, Any]:
        figures = process_metrics()
        # What this process used before it was declared dead counts for the dead node.
        figures["cpu_seconds"] -= self._used_before
        total = figures | self.role.metrics()
        total["refused_messages"] = total.get("refused_messages", 0) + self._refusals.count
        total["refused_connections"] = (
            self._authenticator.refusals.count if self._authenticator is not None else 0
        )
        return total

    def _health(self) -> Health:
        return node_health(
            self.role.name,
            joined=self._joined,
            ready=self._ready,
            silence_seconds=self._loop.time() - self._received_at,
            limit_seconds=self.settings.job.run.node_timeout_seconds,
        )

    async def _handle(self, request: Request[Any], number: int) -> Reply:  # noqa: ARG002
        if isinstance(request, Measure):
            return self._profile.measure(last=request.last)
        if isinstance(request, Trace):
            return await self._profile.trace(request.seconds)
        if isinstance(request, ConnectPeers | Begin):
            return await self._handle_once(request)
        if not isinstance(request, Finish):
            return await self.role.handle(request)
        # The reply is sent before this runs, and the socket lingers. It ends even if there is nothing to
        # measure yet.
        self._loop.call_soon(self._end, request.exit_code, request.why)
        return FinishReply(self._metrics())

    async def _handle_once(self, request: Request[Any]) -> Reply:
        """Handle an order once, since a new coordinator may repeat it."""
        kind = type(request)
        if kind not in self._handled_once:
            work = self.role.handle(request)
            # A node that cannot begin fails: it would live and take no part, and nobody would miss it.
            begins = isinstance(request, Begin)
            self._handled_once[kind] = self._tasks.start(work) if begins else asyncio.ensure_future(work)
        return await asyncio.shield(self._handled_once[kind])

    def _send(self, message: Message) -> None:
        if not send_or_drop(self._socket, encode(message)):
            self._unsent.add(UNSENT, message.KIND, "the coordinator")
        if self._turns is not None:
            self._turns.wake()

    async def _report_failure(self, error: BaseException) -> None:
        code = error.exit_code if isinstance(error, ShadowSyncError) else ExitCode.INTERNAL
        if self._joined:
            with contextlib.suppress(ConnectionLost, RemoteError):
                # Of the role alone: those of the process are read from a file, and too many may be open.
                bad_rows = int(self.role.metrics().get("bad_rows", 0))
                failed = NodeFailed(describe(error)[:MAX_ERROR_CHARACTERS], code, bad_rows)
                await self._channel.call(failed, timeout_seconds=2.0)

    def _install_signals(self) -> None:
        self._process.on_interrupt(self._loop, partial(self._on_signal, Interrupt), self._on_terminated)
        if self.settings.supervised:
            self._process.on_orphaned(self._loop, self._end_as_orphan)

    def _on_terminated(self) -> None:
        # At the second signal there is no time to leave properly.
        self._on_signal(Interrupt if self._is_leaving else Leave)
        self._is_leaving = True

    def _on_signal(self, request: type[Interrupt | Leave]) -> None:
        if not self._joined:
            self._end(ExitCode.INTERRUPTED, "interrupted before the job started")
        else:
            self._tasks.start(self._request_end(request()))

    async def _request_end(self, request: Interrupt | Leave) -> None:
        with contextlib.suppress(ConnectionLost, RemoteError):
            await self._channel.call(request, timeout_seconds=5.0)

    def _end_as_orphan(self) -> None:
        # The coordinator notices it too, and needs its nodes for a checkpoint.
        patience = ORPHAN_SECONDS if self._joined else 0.0
        self._loop.call_later(patience, self._end, ExitCode.STOPPED_BY_DEATH, "the supervisor died")

    def _end(self, code: ExitCode, text: str) -> None:
        if not self._finished.is_set():
            self.exit_code, self.exit_text = code, text
            self._finished.set()

    async def _close(self) -> None:
        self._profile.close()
        try:
            if self._metrics_server is not None:
                await asyncio.to_thread(self._metrics_server.close)
            if self._dead_because:
                log.warning("was declared dead, since it %s, and joins again", self._dead_because)
                self.role = await self.role.come_back()
            else:
                await self.role.close()
        except BaseException:
            self._dead_because = ""
            raise
        finally:
            if self._turns is not None:
                self._turns.close()
            self._channel.close("this node is ending")
            try:
                await self._tasks.close()
            finally:
                # Even if cancelled meanwhile: a context with an open socket cannot be terminated.
                if self._watch is not None:
                    self._watch.close()
                self._socket.close()
                # A node that was declared dead comes back in this process, on the same context and listeners.
                if not self._dead_because:
                    if self._authenticator is not None:
                        self._authenticator.close()
                    self._context.term()
