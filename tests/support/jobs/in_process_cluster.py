"""A whole job in the test's own process: the coordinator and every node as threads, killed at will.

A job of a second of training takes about that long; as processes it takes four or five. What needs
processes of its own stays with `cluster.Cluster` and `supervised.Supervised`.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import uuid4

import pytest
import zmq
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.nodes.sync_rules import check_sync, with_sync_nodes
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.wire.control.base import Reply, Request, encode_body
from shadowsync.pipeline.wire.control.messages import ChildExited, ChildExitedReply, GetStatus, StatusReply
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.messages import ReplyMessage, RequestMessage
from shadowsync.pipeline.wire.sockets import Connection

from .in_process_node import (
    InProcess,
    InProcessCoordinator,
    InProcessNode,
    nodes_can_stand_still,
    the_killed_write_nothing,
    threads_know_their_node,
)
from .node_faults import SLOW_SECONDS, Fault, Slowed
from .processes import ENOUGH_SECONDS, wait_until
from .runs import HasEnd, RunFolder, Settings, small_job, write_job

SWITCH_SECONDS = 0.0005
ONE_CORE = "SHADOWSYNC_TESTS_ON_ONE_CORE"
SUPERVISOR = "supervisor-of-a-cluster"
# Each belongs to the whole process, to its end: pyzmq's, that of what reads from URLs, and that of an ONNX
# export's bars. A dummy stands for a thread of a library, or for one that asks for itself as it ends; it
# cannot be waited for.
LASTING_THREADS = {"GarbageCollectorThread", "fsspecIO", "TMonitor", "_DummyThread"}


class InProcessCluster(HasEnd):
    """The coordinator and the nodes of one job.

    Attributes:
        endpoint: the coordinator's; "" before it listens.
        nodes: by role, the coordinator among them, in the order in which they were started.

    Args:
        supervised: whether the coordinator is told of every death at once, as a supervisor does; otherwise it
            has the silence to go by.
        replaces: whether the test does what a supervisor does, by `replace_dead`.
    """

    def __init__(self, job_file: Path, *, supervised: bool = False, replaces: bool = False) -> None:
        self.job = with_sync_nodes(load_job(job_file), may_import=True)
        self.endpoint = ""
        self.nodes: dict[str, list[InProcess]] = {}
        self._job_file = job_file
        self._supervised = supervised
        self._supervisor_name = SUPERVISOR if supervised or replaces else ""
        self._announce = job_file.with_name(f"coordinator-{uuid4().hex}.json")
        self.coordinator = self._make_coordinator(None)
        self._link: SupervisorLink | None = None
        self._started: list[InProcess] = []

    @property
    def run(self) -> RunFolder:
        """What this run leaves, or left."""
        return RunFolder(self._folder)

    @property
    def report(self) -> Report:
        """The report, once the job has ended."""
        assert self.coordinator.report is not None, self.coordinator.text()
        return self.coordinator.report

    def start(self) -> InProcessCluster:
        """Start the coordinator, and when it listens every node of the job."""
        self.start_coordinator()
        if self.endpoint:
            for role, count in self.job.expected.items():
                for _ in range(count):
                    self.join(role)
        return self

    def start_coordinator(self) -> InProcess:
        """Start the coordinator alone and wait for its address; it may have refused the job instead."""
        check_sync(self.job)
        coordinator = self.coordinator
        self._started.append(coordinator)
        self.nodes["coordinator"] = [coordinator]
        coordinator.start()
        wait_until(
            lambda: self._announce.exists() or coordinator.poll() is not None, "the coordinator listens"
        )
        if self._announce.exists():
            note = json.loads(self._announce.read_text(encoding="utf-8"))
            self._announce.unlink()
            self.endpoint, self._folder = str(note["endpoint"]), Path(note["folder"])
        return coordinator

    def take_over(self) -> InProcess:
        """Start a coordinator in the place of the one that died."""
        self.coordinator.wait(ENOUGH_SECONDS)
        self.coordinator = self._make_coordinator(self._folder)
        return self.start_coordinator()

    def _make_coordinator(self, recover: Path | None) -> InProcessCoordinator:
        settings = NodeSettings(
            self.job,
            supervised=True,
            supervisor=self._supervisor_name,
            announce=self._announce,
            metrics_port=0,
            recover=recover,
        )
        return InProcessCoordinator(settings)

    def join(self, role: str, *overrides: str, job_file: Path | None = None, token: str = "") -> InProcess:
        """Start one node that joins, with the cluster's job or another, and with `--set` of `overrides`."""
        job = with_sync_nodes(load_job(job_file or self._job_file, overrides), may_import=True)
        settings = NodeSettings(job, join=self.endpoint, supervised=True, metrics_port=0)
        if token:
            settings = dataclasses.replace(settings, token=token)
        node = InProcessNode(role, settings)
        if self._supervised:
            node.on_killed = self._report_death
        self.nodes.setdefault(role, []).append(node)
        self._started.append(node)
        node.start()
        return node

    def node(self, name: str) -> InProcess:
        """A node by the name that the coordinator gave it."""
        found = [node for node in self.everyone() if node.name == name]
        assert found, f"no {name} among {[node.name for node in self.everyone()]}"
        return found[0]

    def wait_for_batches(self, count: int) -> None:
        """Wait until the ledger's file has so many, and the job trains."""
        coordinator = self.coordinator
        wait_until(
            lambda: self.run.trains(count) or coordinator.poll() is not None,
            f"{count} batches are trained",
        )
        assert coordinator.poll() is None, coordinator.text()

    def status(self) -> dict[str, Any]:
        """What the coordinator answers to who asks for its status."""
        reply = self._supervisor().call(GetStatus({}, 0, False))
        assert isinstance(reply, StatusReply)
        return reply.status

    def wait(self, seconds: float = ENOUGH_SECONDS) -> int:
        """Wait for the end of everyone; gives the coordinator's exit code."""
        code = self.coordinator.wait(seconds)
        for node in self.everyone():
            # One that comes too late waits for the coordinator as long as for its start.
            node.wait(2.0 * ENOUGH_SECONDS)
        return code

    def everyone(self) -> list[InProcess]:
        return [node for nodes in self.nodes.values() for node in nodes]

    def close(self) -> None:
        """Kill what is left, and fail if any of it stays."""
        if self._link is not None:
            self._link.close()
        for node in self._started:
            node.on_killed = lambda _: None
            node.kill()
        for node in self._started:
            node.wait(ENOUGH_SECONDS)

    def replace_dead(self, node: InProcess, code: ExitCode = ExitCode.STOPPED_BY_DEATH) -> None:
        """Report a death as the supervisor does, and start another node if the job needs one."""
        successor = uuid4().hex
        exited = self._exited(node, successor, code)
        reply = self._supervisor().call(exited, lambda: self.coordinator.poll() is not None)
        assert reply is None or isinstance(reply, ChildExitedReply)
        if reply is not None and reply.replace:
            self.join(node.role, token=successor)

    def _report_death(self, node: InProcess) -> None:
        self._supervisor().call(self._exited(node), lambda: self.coordinator.poll() is not None)

    def _exited(
        self, node: InProcess, successor: str = "", code: ExitCode = ExitCode.STOPPED_BY_DEATH
    ) -> ChildExited:
        return ChildExited(node.settings.token, node.role, "killed by SIGKILL", code, successor=successor)

    def _supervisor(self) -> SupervisorLink:
        if self._link is None:
            self._link = SupervisorLink(self.endpoint)
        return self._link


# Makes one of changed settings, with faults; `start` it.
ClusterMaker: TypeAlias = Callable[..., InProcessCluster]


class Startable(Protocol):
    """A job of threads or of processes."""

    @property
    def run(self) -> RunFolder: ...

    def start(self) -> object: ...

    def wait_for_batches(self, count: int) -> None: ...

    def ended(self, code: int = 0, *, distinct: int | None = None) -> Report: ...


Own = TypeVar("Own", bound=Startable)


def finished(
    make: Callable[..., Startable], settings: Mapping[str, Any] | None = None, faults: Sequence[Fault] = ()
) -> RunFolder:
    """Run a job to its end, which is a good one; give its own folder: `latest` will point to the next one."""
    own = make(settings, faults=faults)
    own.start()
    own.ended()
    return RunFolder(own.run.folder.resolve())


def slowed_at(
    batches: int,
    make: Callable[..., Own],
    settings: Mapping[str, Any] | None = None,
    *,
    seconds: float = SLOW_SECONDS,
    faults: Sequence[Fault] = (),
    **more: Any,
) -> tuple[Own, Slowed]:
    """Start a job, and wait until it has trained so many batches; until `release` it goes on slowly."""
    slowed = Slowed(batches, seconds)
    own = make(settings, faults=(slowed, *faults), **more)
    own.start()
    own.wait_for_batches(batches)
    return own, slowed


class SupervisorLink:
    """The supervisor's link to the coordinator: it tells of deaths and asks for the status."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connection = Connection(self._context, endpoint, SUPERVISOR)
        self._requested = 0
        self._lock = threading.Lock()

    def call(self, request: Request[Any], ended: Callable[[], bool] = lambda: False) -> Reply | None:
        """One question, one answer; None once `ended` says that nobody is left. Any thread may call."""
        with self._lock:
            self._requested += 1
            verb = CONTROL_VERBS.name_of(request)
            self._connection.send(
                RequestMessage(number=self._requested, verb=verb, body=encode_body(request))
            )
            found: list[ReplyMessage] = []

            def replied() -> bool:
                self._connection.socket.poll(20)
                message = self._connection.receive()
                if isinstance(message, ReplyMessage) and message.number == self._requested:
                    found.append(message)
                return bool(found) or ended()

            wait_until(replied, f"the coordinator answers {verb!r}")
        if not found:
            return None
        assert found[0].ok, found[0].body
        return CONTROL_VERBS.decode_reply(verb, found[0].body)

    def close(self) -> None:
        self._connection.socket.close(linger=0)
        self._context.term()


def start_lasting_threads() -> None:
    """Start what pyzmq starts when something is first sent without a copy; it has descriptors of its own."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://lasting")
        other.connect("inproc://lasting")
        sent = one.send(bytes(zmq.COPY_THRESHOLD), copy=False, track=True)
        other.recv()
        sent.wait(ENOUGH_SECONDS)


@contextmanager
def one_core() -> Iterator[None]:
    """Keep what this thread starts on one core, where the environment has ONE_CORE.

    Most of the time one thread of a cluster runs, and the others wait for the interpreter's lock. On several
    cores handing it over takes as much CPU time again as the job.
    """
    if not os.environ.get(ONE_CORE) or not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {cores[worker % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def in_process_clusters() -> Iterator[Callable[..., InProcessCluster]]:
    """Makes clusters of job files, with `faults` of `node_faults`; with the block all of them end.

    It fails if they leave a thread behind. A context of ZeroMQ that has a socket open cannot be terminated,
    and every node terminates its own, so no socket is left either.
    """
    before = set(threading.enumerate())
    root = logging.getLogger()
    with ExitStack() as stack:
        stack.enter_context(one_core())
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        # Threads hand work to each other that processes would do at the same time.
        sys.setswitchinterval(SWITCH_SECONDS)
        stack.callback(root.setLevel, root.level)
        root.setLevel(logging.INFO)
        stack.enter_context(threads_know_their_node())
        stack.enter_context(nodes_can_stand_still())
        stack.enter_context(the_killed_write_nothing())
        patch = stack.enter_context(pytest.MonkeyPatch.context())

        def make(job_file: Path, faults: Sequence[Fault] = (), **more: Any) -> InProcessCluster:
            for fault in faults:
                fault(patch)
            cluster = InProcessCluster(job_file, **more)
            stack.callback(cluster.close)
            return cluster

        yield make
    for thread in set(threading.enumerate()) - before:
        if not {thread.name, type(thread).__name__} & LASTING_THREADS:
            thread.join(ENOUGH_SECONDS)
            assert not thread.is_alive(), f"a thread is left: {thread}"
    # What was not closed is told here, and not in whichever test the garbage is collected in.
    gc.collect()


def shared_run(folder: Path, log: Path, changes: Settings, faults: Sequence[Fault] = ()) -> RunFolder:
    """Run the small job with changes in a folder to its good end, once for the tests that look at it."""
    job = write_job(folder / "job.toml", small_job(log, folder / "runs"), changes)
    with in_process_clusters() as make:
        return finished(lambda *_, **more: make(job, **more), faults=faults)
