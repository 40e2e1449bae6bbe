"""Supervisor of `shadowsync run`: starts the nodes of a job and replaces dead ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from ...pipeline.atomic_file import write_text
from ...pipeline.config.job import Job
from ...pipeline.data.files.kafka_client import require_topics_usable
from ...pipeline.errors import ClusterError, ExitCode, ProtocolError, ResourceError, ShadowSyncError
from ...pipeline.open_files import require_files
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import ChildExited, ChildExitedReply, GetStatus
from ...pipeline.wire.control.orders import StartNode
from ...pipeline.wire.control.verbs import CONTROL_VERBS
from ...pipeline.wire.refusals import Refusals
from ...pipeline.wire.rpc.channel import ConnectionLost, RemoteError, RpcChannel
from ...pipeline.wire.rpc.client import open_channel
from ...pipeline.wire.tasks import background, race
from ..runtime.process import exit_status_text, exit_when_parent_dies, files_of
from ..runtime.role import SILENT_TIMEOUTS
from ..runtime.settings import metrics_ports
from .emulation import Emulation
from .job_check import have_checked
from .job_exit import JobExit, job_exit
from .launcher import COORDINATOR, Launcher, LocalLauncher, NodeKey, NodeStart, RunningNode, end_all
from .silent_nodes import SilentNodes
from .starter import Starter

STOP_SECONDS = 9.0
PROGRESS_SECONDS = 5.0

ShowStatus = Callable[[dict[str, Any]], None]

log = logging.getLogger(__name__)


class Supervisor:
    """Start the nodes of a job, report deaths to the coordinator, end all.

    The coordinator starts first. Runs on one asyncio loop, in the process of the command line, or of the
    caller of `shadowsync.run`. A launcher starts the nodes; what a death means is decided here.

    Args:
        starter: of the job's check, of the relay and, without a launcher, of the nodes.
        progress: called every `progress_seconds` with what the coordinator's `status` answers.
        supervised: whether the end of this process's standard input interrupts the job.
        began: called with the run folder once the coordinator has made it.
        profile_seconds: time to measure, for a profile.
        launcher: of the nodes; by default they are processes of this machine.
    """

    def __init__(
        self,
        job: Job,
        progress: ShowStatus,
        starter: Starter,
        *,
        supervised: bool = False,
        progress_seconds: float = PROGRESS_SECONDS,
        began: Callable[[Path], None] | None = None,
        profile_seconds: float | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self._job = job
        self._progress_seconds = progress_seconds
        self._metrics_ports = metrics_ports(job)
        self._progress = progress
        self._began = began
        self._supervised = supervised
        self._profile_seconds = profile_seconds
        self._emulation = Emulation(job)
        self._children: list[RunningNode] = []
        self._coordinator: RunningNode | None = None
        # Set once the coordinator has ended, and no other takes over.
        self._over = asyncio.Event()
        self._restarts: Counter[NodeKey] = Counter()
        self._silent = SilentNodes(job.run)
        self._starting: list[asyncio.Task[RunningNode]] = []
        self._scratch = Path(tempfile.mkdtemp(prefix="shadowsync-"))
        # For the coordinator; the others read the copy that it puts into the run's folder.
        self._job_file = self._scratch / "job.json"
        self._announce = self._scratch / "coordinator.json"
        # Whoever knows it may report deaths: it is in a file of this user alone, and in no command line.
        self._identity = f"supervisor-{uuid4().hex}"
        self._identity_file = self._scratch / "supervisor"
        self._starter = starter
        self._launcher = launcher or LocalLauncher(starter)
        self._interrupts = 0
        # Set by an interrupt and by the relay's end.
        self._stopping = asyncio.Event()
        self.folder: Path | None = None

    async def run(self) -> JobExit:
        """Run the whole job.

        Return the exit code, one line for the user if it isn't 0, and any report.
        """
        loop = asyncio.get_running_loop()
        # Python handles signals on the main thread only; on another one the caller calls `interrupt`.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.interrupt)
        if self._supervised:
            exit_when_parent_dies(loop, self.interrupt)
        try:
            require_files(files_of(self._job))
            write_text(self._job_file, self._job.model_dump_json())
            await self._check()
            await race(self._launcher.open(self._job), self._stopping.wait())
            if self._stopping.is_set():
                return ExitCode.INTERRUPTED, "interrupted", None
            await self._emulation.start(self._starter)
            endpoint = await self._start_coordinator()
            while endpoint is None and self._may_replace_coordinator():
                # The ended coordinator had not begun: no node knows of it.
                endpoint = await self._start_coordinator()
            if endpoint is None:
                return self._outcome()
            self._report_start()
            for role, count in self._job.expected.items():
                for index in range(count):
                    await self._spawn(role, index, ["--join", endpoint])
            async with background(self._watch_job(endpoint), self._watch_relay()):
                await self._follow_coordinator()
                await self._wait_for_others()
                await self._emulation.stop()
            return self._outcome()
        finally:
            await asyncio.gather(*self._starting, return_exceptions=True)
            await end_all(self._children)
            await self._launcher.close()
            await self._emulation.stop()
            self._clear_scratch()

    async def _check(self) -> None:
        """Check the job; returns early at an interrupt.

        Raises JobFileError for a job that cannot be run, DataError as `require_topics_usable`.
        """
        await asyncio.to_thread(require_topics_usable, self._job.data)
        devices = self._launcher.trainers_here
        await race(have_checked(self._starter, self._job_file, devices=devices), self._stopping.wait())

    async def _start_coordinator(self, *more: str) -> str | None:
        """Start a coordinator; return its endpoint, or None if it ended."""
        self._scratch.mkdir(exist_ok=True, mode=0o700)
        write_text(self._identity_file, self._identity)
        if self.folder is None:
            write_text(self._job_file, self._job.model_dump_json())
        options = ["--announce", str(self._announce), "--supervisor-file", str(self._identity_file)]
        if self._profile_seconds is not None:
            options += ["--profile-seconds", str(self._profile_seconds)]
        coordinator = self._coordinator = await self._spawn(COORDINATOR, 0, [*options, *more])
        if self._stopping.is_set():
            self._end(coordinator)
        try:
            return await self._endpoint(coordinator)
        finally:
            # Early, so that nothing is left of it when this process is killed.
            self._clear_scratch()

    def _may_replace_coordinator(self) -> bool:
        """Decide whether to replace an ended coordinator."""
        coordinator = self._coordinator
        left = self._job.run.restarts - self._restarts[COORDINATOR, 0]
        if coordinator is None or (coordinator.code or 0) >= 0 or left <= 0 or self._stopping.is_set():
            return False
        self._restarts[COORDINATOR, 0] += 1
        log.warning("the coordinator was %s; another one takes over", exit_status_text(coordinator.code))
        return True

    async def _follow_coordinator(self) -> None:
        """Wait for the coordinator's end; if it died, another one takes over."""
        assert self.folder is not None
        while self._coordinator is not None:
            await self._coordinator.ended.wait()
            if (self.folder / "report.json").exists() or not self._may_replace_coordinator():
                break
            before = self._coordinator
            try:
                await self._start_coordinator("--recover", str(self.folder))
            except (ClusterError, OSError) as error:
                log.error("no other coordinator can be started: %s", error)
                # The job ends with what the dead one left.
                self._coordinator = before
                break
        self._over.set()

    def _report_start(self) -> None:
        if self._began is None or self.folder is None:
            return
        try:
            self._began(self.folder)
        except Exception:
            # The job continues, as if its progress could not be shown.
            log.exception("the plan of the tables cannot be shown")

    def _clear_scratch(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def _spawn(self, role: str, index: int, extra: list[str], token: str = "") -> RunningNode:
        if port := self._metrics_ports.get((role, index), 0):
            extra = [*extra, "--metrics-port", str(port)]
        node = NodeStart(
            role,
            index,
            token or self._emulation.token(role, index),
            self._job_file,
            tuple(self._emulation.options(role, index)),
            tuple(extra),
        )
        child = await self._launcher.start(node)
        self._children.append(child)
        return child

    async def _endpoint(self, coordinator: RunningNode) -> str | None:
        loop, run = asyncio.get_running_loop(), self._job.run
        # One that takes over reads a journal first, and the nodes wait for it as long.
        takes_over = SILENT_TIMEOUTS * run.node_timeout_seconds if self.folder is not None else 0.0
        deadline = loop.time() + max(run.start_timeout_seconds, takes_over)
        while not coordinator.ended.is_set():
            if self._announce.exists():
                note = json.loads(self._announce.read_text(encoding="utf-8"))
                self.folder = Path(note["folder"])
                self._job_file = self.folder / "job.json"
                return str(note["endpoint"])
            if loop.time() > deadline:
                raise ClusterError("the coordinator did not start", remedy="raise run.start_timeout_seconds")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(coordinator.ended.wait(), 0.02)
        return None

    async def _watch_job(self, endpoint: str) -> None:
        """Connect to the coordinator: report deaths, request its progress, start what it orders."""
        refusals = Refusals(log)

        def refuse(error: ProtocolError) -> None:
            refusals.add("refused a message from the coordinator: %s", error)

        async def handle(request: Request[Any], number: int) -> Reply:  # noqa: ARG001
            if not isinstance(request, StartNode):
                raise ProtocolError(f"a supervisor does not answer {CONTROL_VERBS.name_of(request)!r}")
            if (child := await self._start_ordered(request, endpoint)) is not None:
                start(self._keep(channel, endpoint, child))
            return Done()

        nodes = [child for child in self._children if child.role != COORDINATOR]
        async with open_channel(endpoint, handle, identity=self._identity, refused=refuse) as channel:
            kept = [self._keep(channel, endpoint, node) for node in nodes]
            async with background(*kept, self._show_progress(channel)) as start:
                await self._over.wait()

    async def _start_ordered(self, order: StartNode, endpoint: str) -> RunningNode | None:
        """Start a node as the coordinator orders; None if it was started before.

        Raises ClusterError if the node cannot be started.
        """
        if self._stopping.is_set():
            raise ClusterError("the job is being interrupted")
        if self._emulation.has(order.role, 0):
            raise ClusterError(
                "the emulated network has no link for another node",
                remedy="scale a job without [network] delay or bandwidth",
            )
        if any(child.token == order.token for child in self._children):
            return None
        index = 1 + max(child.index for child in self._children if child.role == order.role)
        try:
            return await self._start_late(order.role, index, endpoint, order.token)
        except (ResourceError, OSError) as error:
            raise ClusterError(f"a process cannot be started ({error})") from error

    async def _start_late(self, role: str, index: int, endpoint: str, token: str) -> RunningNode:
        """Start a node that joins the running job."""
        start = asyncio.create_task(self._spawn(role, index, ["--join", endpoint], token))
        self._starting.append(start)
        # A node that is being started when the job ends is ended like the others.
        return await asyncio.shield(start)

    async def _keep(self, channel: RpcChannel, endpoint: str, child: RunningNode) -> None:
        """Report a child's end, and replace it if needed."""
        while True:
            await child.ended.wait()
            left = self._job.run.restarts - self._restarts[child.role, child.index]
            replaceable = left > 0 and not self._emulation.has(child.role, child.index)
            successor = uuid4().hex if replaceable else ""
            exited = ChildExited(
                child.token,
                child.role,
                child.how,
                child.exit_code,
                successor=successor,
            )
            reply = await self._report_exit(channel, exited)
            if reply is None or not reply.replace or self._stopping.is_set():
                return
            self._restarts[child.role, child.index] += 1
            try:
                child = await self._start_late(child.role, child.index, endpoint, successor)
            except (ShadowSyncError, OSError) as error:
                log.warning("no other %s can be started: %s", child.role, error)
                return

    async def _report_exit(self, channel: RpcChannel, exited: ChildExited) -> ChildExitedReply | None:
        """Repeat the report of an exit until confirmed."""
        while not self._over.is_set():
            try:
                return await channel.call(exited, timeout_seconds=10.0)
            except ConnectionLost:
                continue
            except RemoteError as error:
                log.warning(
                    "the coordinator refused the report that a %s process ended: %s", exited.role, error
                )
                return None
        return None

    async def _show_progress(self, channel: RpcChannel) -> None:
        logged = False
        while True:
            await asyncio.sleep(self._progress_seconds)
            try:
                reply = await channel.call(GetStatus(), timeout_seconds=5.0)
            except (ConnectionLost, RemoteError):
                continue
            self._silent.end(reply.dead, self._children, asyncio.get_running_loop().time())
            try:
                self._progress(reply.status)
            except Exception:
                # Any error: the job continues, and the next status may be shown again.
                if not logged:
                    log.exception("the progress cannot be shown")
                logged = True

    async def _watch_relay(self) -> None:
        """Stop the job if its relay ends, since it cannot continue without one.

        `job_exit` reports the reason.
        """
        if self._emulation.relay is not None:
            await self._emulation.relay.ended.wait()
            self._stop()

    def interrupt(self) -> None:
        """Interrupt the job, as Ctrl-C does; on the loop.

        The first call allows for a checkpoint and a report; the second ends the job at once.
        """
        self._interrupts += 1
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        if self._coordinator is not None:
            self._end(self._coordinator)

    def _end(self, coordinator: RunningNode) -> None:
        """Have a coordinator end the job within STOP_SECONDS, with a checkpoint and a report.

        After a second interrupt it ends at once.
        """
        coordinator.signal(signal.SIGKILL if self._interrupts > 1 else signal.SIGTERM)
        asyncio.get_running_loop().call_later(STOP_SECONDS, coordinator.signal, signal.SIGKILL)

    async def _wait_for_others(self) -> None:
        # If the coordinator died, nobody tells the others to end.
        code = self._coordinator.code if self._coordinator is not None else None
        others_know = (code or 0) >= 0 and (code == 0 or self.folder is not None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(4.0 if others_know else 0.5):
                for child in self._children:
                    await child.ended.wait()

    def _outcome(self) -> JobExit:
        assert self._coordinator is not None
        return job_exit(self._coordinator, self.folder, self._emulation, interrupted=self._interrupts > 0)
