"""What the supervisor asks of a launcher, whatever the engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.supervisor.launcher import LocalLauncher, NodeStart, end_all
from shadowsync.nodes.supervisor.starter import SpawnStarter, StartedProcess
from shadowsync.nodes.supervisor.supervisor import STOP_SECONDS, Supervisor
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ClusterError, ExitCode
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.jobs.check_in_process import CheckStarter


def a_job(**more: dict[str, object]) -> Job:
    data = {"format": "criteo_tsv", "path": ["part.tsv"]}
    return Job.model_validate({"data": data, "sync": {"nodes": 1}, **more})


class Ended:
    """A node that ended as soon as it started."""

    def __init__(self, start: NodeStart, code: int) -> None:
        self.role, self.index, self.token = start.role, start.index, start.token
        self.code: int | None = code
        self.ended = asyncio.Event()
        self.ended.set()
        self.exit_code = ExitCode(code)
        self.how = f"exit code {code}"
        self.closed = False

    def signal(self, number: int) -> None:
        raise AssertionError(f"{self.role} has ended, and gets {number}")

    def last_line(self) -> str:
        return f"the last words of the {self.role}"

    async def close(self) -> None:
        self.closed = True


class Engine:
    """A launcher on which every node ends at once; records what it was asked."""

    def __init__(self, *, trainers_here: bool = True, too_small: bool = False) -> None:
        self.trainers_here = trainers_here
        self.asked: list[str] = []
        self.starts: list[NodeStart] = []
        self.nodes: list[Ended] = []
        self._too_small = too_small

    async def open(self, job: Job) -> None:
        self.asked.append(f"open for {job.trainer.count}")
        if self._too_small:
            raise ClusterError("the cluster is too small")

    async def start(self, node: NodeStart) -> Ended:
        self.asked.append(f"start {node.role}-{node.index}")
        self.starts.append(node)
        self.nodes.append(Ended(node, 3))
        return self.nodes[-1]

    async def close(self) -> None:
        assert all(node.closed for node in self.nodes)
        self.asked.append("close")


def supervise(job: Job, engine: Engine) -> tuple[ExitCode, str]:
    async def main() -> tuple[ExitCode, str]:
        supervisor = Supervisor(job, lambda _: None, CheckStarter(), launcher=engine)
        return (await supervisor.run())[:2]

    return asyncio.run(main())


def test_the_engine_is_opened_before_the_coordinator_starts() -> None:
    engine = Engine()
    assert supervise(a_job(trainer={"count": 2}), engine) == (
        ExitCode.DATA,
        "the last words of the coordinator",
    )
    assert engine.asked == ["open for 2", "start coordinator-0", "close"]


def test_without_room_nothing_is_started() -> None:
    engine = Engine(too_small=True)
    with pytest.raises(ClusterError, match="too small"):
        supervise(a_job(), engine)
    assert engine.asked == ["open for 1", "close"]


class Announcing(Engine):
    """An engine whose coordinators say where they are after some seconds."""

    seconds = 0.0

    async def start(self, node: NodeStart) -> Ended:
        started = await super().start(node)
        started.ended.clear()
        announce = Path(node.options[node.options.index("--announce") + 1])
        note = json.dumps({"folder": "/run", "endpoint": "tcp://x:1"})
        asyncio.get_running_loop().call_later(self.seconds, announce.write_text, note)
        return started


@run_by(run_in_virtual_time)
async def test_a_coordinator_that_takes_over_has_as_long_as_its_nodes_wait_for_it() -> None:
    """It has a journal to read first. The control: one that begins."""
    engine, job = Announcing(), a_job(run={"start_timeout_seconds": 1.0, "node_timeout_seconds": 5.0})
    supervisor = Supervisor(job, lambda _: None, CheckStarter(), launcher=engine)
    engine.seconds = 30.0
    with pytest.raises(ClusterError, match="did not start"):
        await supervisor._start_coordinator()
    engine.seconds = 0.0
    assert await supervisor._start_coordinator() == "tcp://x:1"
    engine.seconds = 30.0
    assert await supervisor._start_coordinator("--recover", "/run") == "tcp://x:1"


class Deaf(Ended):
    """A node that only SIGKILL ends."""

    def __init__(self, start: NodeStart) -> None:
        super().__init__(start, 0)
        self.ended.clear()
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.ended.set()


class Slow(Engine):
    """An engine that is starting a node until it may end that."""

    def __init__(self) -> None:
        super().__init__()
        self.starting, self.may_start, self.started = (asyncio.Event() for _ in range(3))
        self.node: Deaf | None = None

    async def start(self, node: NodeStart) -> Deaf:
        self.starting.set()
        await self.may_start.wait()
        self.node = Deaf(node)
        self.started.set()
        return self.node


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize(
    ("interrupts", "signals", "seconds"),
    [(1, [signal.SIGTERM, signal.SIGKILL], STOP_SECONDS), (2, [signal.SIGKILL], 0.0)],
)
def test_a_coordinator_that_is_being_started_at_an_interrupt_ends_as_one_that_runs(
    interrupts: int, signals: list[int], seconds: float, started: bool
) -> None:
    async def main() -> None:
        engine, loop = Slow(), asyncio.get_running_loop()
        supervisor = Supervisor(a_job(), lambda _: None, CheckStarter(), launcher=engine)
        start = asyncio.create_task(supervisor._start_coordinator())
        await engine.starting.wait()
        if started:
            engine.may_start.set()
            await engine.started.wait()
        for _ in range(interrupts):
            supervisor.interrupt()
        engine.may_start.set()
        since = loop.time()
        assert await start is None
        assert loop.time() - since == pytest.approx(seconds, abs=0.1)
        assert engine.node is not None
        assert engine.node.signals[-len(signals) :] == signals

    run_in_virtual_time(main())


def test_a_device_is_looked_for_where_the_trainers_run() -> None:
    """Here there is no such GPU: an engine whose trainers run elsewhere does not mind."""
    job = a_job(trainer={"device": "cuda:77"})
    with pytest.raises(Exception, match="cuda:77"):
        supervise(job, Engine())
    assert supervise(job, Engine(trainers_here=False))[0] == ExitCode.DATA


def test_the_arguments_of_a_node() -> None:
    start = NodeStart("trainer", 1, "abc", Path("/run/job.json"), ("--bind", "::1"), ("--join", "tcp://x:1"))
    assert start.arguments() == [
        *("-m", "shadowsync.cli", "trainer", "/run/job.json", "--supervised", "--token", "abc"),
        *("--bind", "::1", "--join", "tcp://x:1"),
    ]
    assert start.needs_torch
    assert not NodeStart("reader", 0, "abc", Path("job.json")).needs_torch


class Script(SpawnStarter):
    """A starter that runs the same script, whatever it is told to run."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def start(self, arguments: Sequence[str], *, torch: bool) -> StartedProcess:
        del arguments
        return await super().start(["-c", self._text], torch=torch)


@pytest.mark.parametrize(
    ("text", "code", "exit_code", "how"),
    [
        ("print('shadowsync reader: no input'); raise SystemExit(3)", 3, ExitCode.DATA, "exit code 3"),
        ("raise SystemExit(99)", 99, ExitCode.INTERNAL, "exit code 99"),
        ("import os; os.kill(os.getpid(), 9)", -9, ExitCode.STOPPED_BY_DEATH, "killed by SIGKILL"),
    ],
)
def test_how_a_local_node_ends(text: str, code: int, exit_code: ExitCode, how: str) -> None:
    async def main() -> tuple[int | None, ExitCode, str, str]:
        node = await LocalLauncher(Script(text)).start(NodeStart("reader", 0, "abc", Path("job.json")))
        await node.ended.wait()
        await node.close()
        return node.code, node.exit_code, node.how, node.last_line()

    said = "no input" if code == 3 else ""
    assert asyncio.run(main()) == (code, exit_code, how, said)


class SlowLoop(asyncio.SelectorEventLoop):
    """A second passes in a minute."""

    def time(self) -> float:
        return super().time() / 60.0


@pytest.mark.parametrize(
    ("heeds", "code"), [(True, -signal.SIGTERM), (False, -signal.SIGKILL)], ids=["heeds", "does not"]
)
def test_a_node_is_asked_to_end_before_it_is_killed(tmp_path: Path, heeds: bool, code: int) -> None:
    ready = tmp_path / "ready"
    how = "SIG_DFL" if heeds else "SIG_IGN"
    text = (
        f"import pathlib, signal, sys; signal.signal(signal.SIGTERM, signal.{how});"
        f"pathlib.Path({json.dumps(str(ready))}).touch(); sys.stdin.read()"
    )

    async def main() -> int | None:
        node = await LocalLauncher(Script(text)).start(NodeStart("reader", 0, "abc", Path("job.json")))
        while not ready.exists():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(node.ended.wait(), 0.002)
            assert not node.ended.is_set(), node.last_line()
        await end_all([node])
        return node.code

    # One that heeds is not killed, however busy the machine is.
    with asyncio.Runner(loop_factory=SlowLoop if heeds else asyncio.SelectorEventLoop) as runner:
        assert runner.run(main()) == code
