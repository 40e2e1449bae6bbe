"""The coordinator's side of a profile, with nodes that answer as they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from shadowsync.nodes.coordinator import Coordinator
from shadowsync.nodes.profiler import Profiler
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.profile.document import Profile

JOB = Job.model_validate({"data": {"format": "parquet", "path": ["none.parquet"]}})


def member(name: str) -> Any:
    role = name.partition("-")[0]
    return SimpleNamespace(info=SimpleNamespace(name=name, role=role))


@dataclass
class PlayedCoordinator:
    """A coordinator of one trainer and one reader, whose input ends after so many questions.

    Attributes:
        silent: who does not answer `measure`, but for the first question to all.
        asked: the questions so far, by verb.
    """

    ends_after: int
    silent: str = ""
    ending_verb: str = "measure"
    asked: list[str] = field(default_factory=list)
    ended: bool = False

    def __post_init__(self) -> None:
        self.job = JOB
        self.folder = Path("runs") / "tested"
        self.ledger = self
        self.members = self
        self.trained_batches_of = {"trainer-0": 1}
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def complete(self) -> bool:
        return self.ended

    def alive(self, role: str | None = None) -> list[Any]:
        return [m for m in (member("trainer-0"), member("reader-0")) if role in (None, m.info.role)]

    async def until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        del seconds
        await asyncio.sleep(0.002)
        return condition()

    async def notify(self) -> None:
        self.asked.append("notified")

    async def ask(self, member: Any, verb: str, body: dict[str, Any], seconds: float) -> Any:
        del seconds
        self.asked.append(f"{verb}, last" if body.get("last") else verb)
        self.ended = self.ended or self.asked.count(self.ending_verb) > self.ends_after
        now = asyncio.get_running_loop().time()
        if verb == "measure" and member.info.name == self.silent and self.asked.count("measure") > 2:
            return None
        if verb == "trace":
            begun = round(now * 1e6)
            marks = [[0, 0, begun, 100]]
            return {"names": ["compute"], "threads": ["worker-0"], "marks": marks, "processes": [], "pid": 1}
        counts = {"cpu_seconds": now, "trained_examples": 1000 * now, "compute_seconds": now}
        sampled = {"wakes": 1, "locked_wakes": 0, "stalled_seconds": 0.0}
        told = {"clock": now, "machine": "there", "cores": 2, "counts": counts, "threads": {}}
        return told | {"sampled": sampled}

    async def ask_all(
        self, members: Any, verb: str, body: dict[str, Any], seconds: float
    ) -> dict[str, dict[str, Any]]:
        return {m.info.name: await self.ask(m, verb, body, seconds) for m in members}


def profiled(job: Callable[[], PlayedCoordinator], seconds: float) -> tuple[PlayedCoordinator, Profiler, Any]:
    async def run() -> tuple[PlayedCoordinator, Profiler, Any]:
        played = job()
        profiler = Profiler(cast(Coordinator, played), seconds)
        await profiler.run()
        return played, profiler, profiler.profile()

    return asyncio.run(run())


def test_a_profile_measures_then_traces_then_ends_the_job() -> None:
    played, profiler, found = profiled(lambda: PlayedCoordinator(ends_after=10_000), 0.5)
    assert profiler.ended == "profiled for 0.5 s"
    assert played.asked[-3:] == ["measure, last", "measure, last", "notified"]
    assert played.asked.count("trace") == 2
    profile, events = found
    assert isinstance(profile, Profile)
    assert {node.name for node in profile.measured.nodes} == {"trainer-0", "reader-0", "coordinator"}
    # All of the time that was asked for, and not the trace after it.
    assert 0.49 <= profile.measured.seconds < 0.8
    assert profile.examples_per_second == pytest.approx(1000.0)
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        *("trainer-0", "reader-0", "coordinator")
    }
    # The other machine's clock is known up to half of the way there and back.
    assert profile.trace is not None
    assert 0.0 < profile.trace.clock_error_seconds < 0.2
    assert not any("input ended" in note for note in profile.notes)


def test_a_node_that_does_not_answer_is_named() -> None:
    _, _, (profile, _) = profiled(lambda: PlayedCoordinator(10_000, silent="reader-0"), 0.1)
    assert {node.name for node in profile.measured.nodes} == {"trainer-0", "coordinator"}
    assert profile.notes[0].startswith("reader-0 did not answer twice within 5 s")
    _, profiler, found = profiled(lambda: PlayedCoordinator(10_000, silent="trainer-0"), 0.1)
    assert found is None
    assert profiler.ended, "which is not the end of the input"


def test_what_comes_after_the_end_of_the_input_is_not_measured() -> None:
    played, profiler, found = profiled(lambda: PlayedCoordinator(ends_after=8), 60.0)
    assert profiler.ended
    assert played.asked.count("measure") == 10, "five times two nodes, the last of them too late to count"
    assert "trace" not in played.asked
    profile, events = found
    assert profile.trace is None
    assert events == []
    assert "The input ended after" in profile.notes[0]


def test_an_input_that_ends_at_once_gives_no_profile() -> None:
    def ended() -> PlayedCoordinator:
        played = PlayedCoordinator(ends_after=0)
        played.ended = True
        return played

    played, profiler, found = profiled(ended, 5.0)
    assert found is None
    assert not profiler.ended
    assert "measure" not in played.asked
