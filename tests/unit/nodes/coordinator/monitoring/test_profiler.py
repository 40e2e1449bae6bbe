"""The coordinator's side of a profile, with nodes that answer as they are told to. Time is virtual."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.coordinator.monitoring import profiler as profiler_module
from shadowsync.nodes.coordinator.monitoring.profiler import Profiler
from shadowsync.pipeline.performance.document import Profile
from shadowsync.pipeline.wire.control.base import Reply, ReplyType, Request
from shadowsync.pipeline.wire.control.profile import Measure, MeasureReply, Trace, TraceReply
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.tests.support.coordinator.fake_coordinator import FakeServer, member
from shadowsync.tests.support.data.batches import batch_id

ONE_WAY_SECONDS = 0.002


@pytest.fixture(autouse=True)
def profiler_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler's clock is the loop's, as it is outside of tests."""

    def now() -> float:
        return asyncio.get_running_loop().time()

    monkeypatch.setattr(
        profiler_module, "time", SimpleNamespace(monotonic=now, process_time=time.process_time)
    )


class PlayedServer(FakeServer):
    """The server of one trainer and one reader, whose input ends after so many requests.

    Attributes:
        silent: who does not answer `measure`, but for the first request to all.
        verbs: the requests so far.
    """

    def __init__(self, folder: Path, ends_after: int, silent: str = "", **sections: Any) -> None:
        trainer = {"credit": 4} | sections.pop("trainer", {})
        nodes = [member("trainer", 0), member("reader", 0)]
        super().__init__(folder, nodes, sync={"algorithm": "none"}, trainer=trainer, **sections)
        self.ends_after = ends_after
        self.silent = silent
        self.verbs: list[str] = []
        if not ends_after:
            self.end_input()

    def end_input(self) -> None:
        """All of the only span is trained."""
        self.state.ledger.span_read(0, 0, batches=1, examples=10, bad_rows=0)
        assert self.state.ledger.complete

    async def wait_for(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """All of the time that is given passes."""
        await asyncio.sleep(seconds or 0.0)
        return condition()

    async def notify(self) -> None:
        self.verbs.append("notified")

    async def call(self, member: Member, request: Request[ReplyType], seconds: float) -> ReplyType | None:
        """What a node that trains 1,000 examples a second answers, as far away as ONE_WAY_SECONDS."""
        del seconds
        await asyncio.sleep(ONE_WAY_SECONDS)
        verb = CONTROL_VERBS.name_of(request)
        self.verbs.append(f"{verb}, last" if isinstance(request, Measure) and request.last else verb)
        if self.verbs.count("measure") > self.ends_after and not self.state.ledger.complete:
            self.end_input()
        if verb == "measure" and member.info.name == self.silent and self.verbs.count("measure") > 2:
            return None
        reply = reply_of(request)
        await asyncio.sleep(ONE_WAY_SECONDS)
        return cast(ReplyType, reply)


def reply_of(request: Request[Any]) -> Reply:
    """What such a node measures, or traces, now."""
    now = asyncio.get_running_loop().time()
    if isinstance(request, Trace):
        marks = ((0, 0, round(now * 1e6), 100),)
        return TraceReply(("compute",), ("worker-0",), marks)
    counts = {"cpu_seconds": now, "trained_examples": 1000 * now, "compute_seconds": now}
    sampled = {"wakes": 1, "locked_wakes": 0, "stalled_seconds": 0.0}
    return MeasureReply(now, "there", 2, counts, {}, sampled)


def profiled(
    folder: Path, seconds: float, ends_after: int, silent: str = ""
) -> tuple[PlayedServer, Profiler, Any]:
    async def run() -> tuple[PlayedServer, Profiler, Any]:
        played = PlayedServer(folder, ends_after, silent)
        profiler = Profiler(played, seconds)
        await profiler.run()
        return played, profiler, profiler.profile()

    return run_in_virtual_time(run())


def test_a_profile_measures_then_traces_then_ends_the_job(tmp_path: Path) -> None:
    played, profiler, found = profiled(tmp_path, 0.5, ends_after=10_000)
    assert profiler.ended == "profiled for 500 ms"
    assert played.verbs[-3:] == ["measure, last", "measure, last", "notified"]
    assert played.verbs.count("trace") == 2
    profile, events = found
    assert isinstance(profile, Profile)
    assert {node.name for node in profile.measured.nodes} == {"trainer-0", "reader-0", "coordinator"}
    assert profile.measured.depth_bounds == ["trainer.credit"]
    # All of the time that was asked for, and not the trace after it.
    assert profile.measured.seconds == pytest.approx(0.5 + 2 * ONE_WAY_SECONDS)
    assert profile.examples_per_second == pytest.approx(1000.0)
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        *("trainer-0", "reader-0", "coordinator")
    }
    # The other machine's clock is known up to half of the way there and back.
    assert profile.trace is not None
    assert profile.trace.clock_error_seconds == pytest.approx(ONE_WAY_SECONDS)
    assert not any("input ended" in note for note in profile.notes)


def test_a_node_that_does_not_answer_is_named(tmp_path: Path) -> None:
    _, _, (profile, _) = profiled(tmp_path, 0.1, 10_000, silent="reader-0")
    assert {node.name for node in profile.measured.nodes} == {"trainer-0", "coordinator"}
    assert profile.notes[0].startswith("reader-0 did not answer twice within 5 s")
    _, profiler, found = profiled(tmp_path, 0.1, 10_000, silent="trainer-0")
    assert found is None
    assert profiler.ended, "which is not the end of the input"


def test_what_comes_after_the_end_of_the_input_is_not_measured(tmp_path: Path) -> None:
    played, profiler, found = profiled(tmp_path, 60.0, ends_after=8)
    assert profiler.ended
    assert played.verbs.count("measure") == 10, "five times two nodes, the last of them too late to count"
    assert "trace" not in played.verbs
    profile, events = found
    assert profile.trace is None
    assert events == []
    assert "The input ended after" in profile.notes[0]
    assert " of 1 min: give more input" in profile.notes[0]


class TrainingServer(PlayedServer):
    """A server whose trainer trains 25,000 examples while somebody waits without an end."""

    measured_after: int | None = None

    async def wait_for(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Time passes, or training goes on until the condition holds."""
        batch = 2
        while seconds is None and not condition():
            self.state.ledger.acknowledge("trainer-0", batch_id(batch), 25_000)
            batch += 1
        return await super().wait_for(condition, seconds)

    async def call(self, member: Member, request: Request[ReplyType], seconds: float) -> ReplyType | None:
        """Notes when the first measure was asked for."""
        if self.measured_after is None:
            self.measured_after = self.state.ledger.examples_so_far
        return await super().call(member, request, seconds)


@pytest.mark.parametrize(
    ("warmup_iterations", "least"), [(1, 100_000), (0, 0)], ids=["one after the other", "at once"]
)
def test_workers_that_have_not_begun_are_not_measured(
    tmp_path: Path, warmup_iterations: int, least: int
) -> None:
    warmup = {"warmup_iterations": warmup_iterations}
    settings: dict[str, Any] = {"trainer": {"workers": 3}, "embedding": warmup}

    async def run() -> TrainingServer:
        played = TrainingServer(tmp_path, 10_000, **settings)
        await Profiler(played, 0.1).run()
        return played

    measured_after = run_in_virtual_time(run()).measured_after
    assert measured_after is not None
    assert least <= measured_after <= least + 25_010


def test_an_input_that_ends_at_once_gives_no_profile(tmp_path: Path) -> None:
    played, profiler, found = profiled(tmp_path, 5.0, ends_after=0)
    assert found is None
    assert not profiler.ended
    assert "measure" not in played.verbs
