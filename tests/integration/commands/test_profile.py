"""`shadowsync profile` on whole jobs: what it leaves, and figures that no other load of the machine can turn.

Verdicts are tested on measures that are given (`tests/unit/pipeline/performance/test_verdict.py`);
`benchmarks/speed/machines/bottlenecks.py` plants each bottleneck in a job that runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.performance.document import Profile, read_profile
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs import short_profile
from shadowsync.tests.support.jobs.processes import Process, Starter
from shadowsync.tests.support.jobs.runs import JobMaker, RunFolder, Settings

SECONDS = 2
LEAST_SECONDS = 5
"""That a user may ask for."""
SHORT = Path(short_profile.__file__)
# Steps of some milliseconds, so that on slow cores, too, they are most of the time.
NEUTRAL: Settings = {
    "run": {"start_timeout_seconds": 120.0},
    "data": {"epochs": 500},
    "model": {"embedding_dim": 8, "table_rows": 2000, "bottom": [384, 128], "top": [512, 384]},
    # Little is under way, so that a worker soon feels what stops.
    "trainer": {"count": 1, "workers": 2, "batch": 256, "credit": 2},
}
SLOW = {"network": {"delay": "50ms", "delay_links": "all"}}
Profiled = Callable[..., Process]


def merged(*all_changes: Settings) -> dict[str, dict[str, Any]]:
    """Settings upon settings."""
    sections: dict[str, dict[str, Any]] = {}
    for changes in all_changes:
        for name, keys in changes.items():
            sections[name] = {**sections.get(name, {}), **keys}
    return sections


@pytest.fixture
def profiled(starter: Starter, job_file: JobMaker) -> Profiled:
    """Starts a profile of the neutral job with changes; rounds that none ask for are left out, and with them
    the start of a process."""

    def start(*changes: Settings) -> Process:
        job = str(job_file(merged(NEUTRAL, {"sync": {"algorithm": "none"}}, *changes)))
        return starter.fork(str(SECONDS), job, script=SHORT)

    return start


@pytest.fixture
def found(tmp_path: Path) -> Callable[[Process], Profile]:
    """Waits for the end of a profile and reads it."""

    def read(process: Process) -> Profile:
        assert process.wait() == 0, process.text()
        return read_profile(tmp_path / "runs" / "latest" / "profile.json")

    return read


def test_a_profile_of_a_whole_job(
    starter: Starter, job_file: JobMaker, found: Callable[[Process], Profile], tmp_path: Path
) -> None:
    job = str(job_file(NEUTRAL))
    process = starter.fork("profile", job, "--seconds", str(LEAST_SECONDS), "--quiet")
    profile = found(process)
    parts = profile.verdict.time.model_dump()
    assert sum(parts.values()) == pytest.approx(1.0, abs=0.05)
    assert profile.measured.seconds > 0
    assert profile.examples_per_second > 0
    folder = tmp_path / "runs" / "latest"
    said = process.text()
    assert f"The bottleneck is {profile.verdict.bottleneck}" in said
    assert "What would help" in said
    _check_the_run(folder, profile)
    trace = json.loads((folder / "trace.json").read_text("utf-8"))
    _check_the_trace(trace, RunFolder(folder).report.wall_seconds)


def _check_the_run(folder: Path, profile: Profile) -> None:
    report = RunFolder(folder).report
    assert report.outcome == f"finished early: profiled for {LEAST_SECONDS} s"
    assert (report.exit_code, report.ledger.adds_up) == (0, True)
    assert report.eval is None
    assert not (folder / "checkpoint").exists()
    text = (folder / "profile.md").read_text("utf-8")
    assert f"**The bottleneck is {profile.verdict.bottleneck}" in text
    assert all(node.name in text for node in profile.measured.nodes)
    assert (folder / "profile.png").stat().st_size > 10_000


def _check_the_trace(trace: Mapping[str, Any], wall_seconds: float) -> None:
    events = trace["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(processes.values()) == {"coordinator", "reader-0", "trainer-0", "embedding-0", "sync-0"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    done = {(processes[e["pid"]], threads[e["pid"], e["tid"]], e["name"]) for e in events if e["ph"] == "X"}
    # A reader that is ahead may parse nothing in that second.
    assert {
        ("trainer-0", "worker-0", "compute"),
        ("trainer-0", "worker-1", "compute"),
        ("trainer-0", "worker-0", "push gradients"),
        ("coordinator", "MainThread", "trained"),
    } <= done
    assert any(process == "embedding-0" and name == "lookup" for process, _, name in done)
    length = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") / 1e6
    assert 0 < length < wall_seconds, "all nodes are on one clock"


@pytest.mark.matrix
def test_lookups_over_a_slow_network_are_measured_on_their_way_through_the_relay(
    profiled: Profiled, found: Callable[[Process], Profile], tmp_path: Path
) -> None:
    """How long a link takes is tested by a clock that stands still, as is what the worker counts of it."""
    trainer = found(profiled(SLOW)).measured.of("trainer")[0]
    assert trainer.count("round_trips") > 0
    network = present(RunFolder(tmp_path / "runs" / "latest").report.network)
    assert (network.links, network.delay_seconds) == ("all", 0.05)
    assert network.relay_bytes is not None
    # Of the whole job, and so more than of the part of it that was measured.
    assert network.relay_bytes > trainer.count("to/embedding-0") + trainer.count("from/embedding-0") > 0
