"""`shadowsync profile` on whole jobs: each bottleneck is planted from outside, and the profile asked.

The job without any plant is the control of all of them: none of those bottlenecks may be found in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.performance.document import Profile, bottleneck_of, read_profile
from shadowsync.tests.support import short_profile
from shadowsync.tests.support.processes import Process, Starter
from shadowsync.tests.support.pulsed import node_of, pulsed
from shadowsync.tests.support.runs import JobMaker, RunFolder, Settings

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
SMALL = {"bottom": [16], "top": [16], "embedding_dim": 8, "table_rows": 2000}
SLOW = {"network": {"delay": "50ms", "delay_links": "all", "emulation": "relay"}}
# A loop over Python numbers, as nobody should write it, in place of a product of matrices.
LOOP = """
import torch
from torch import nn

class Loop(nn.Module):
    def __init__(self, dense_features, embedding_dims):
        super().__init__()
        self.last = nn.Linear(dense_features + sum(embedding_dims), 1)

    def forward(self, dense, embeddings):
        sum(range(2_000_000))
        return self.last(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
"""

Profiled = Callable[..., Process]


def planted(profile: Profile) -> str:
    """The bottleneck, but for what steps waited for a core: beside other programs that may be the longest."""
    time = profile.verdict.time
    shares = {name: share / (1.0 - time.core) for name, share in time.model_dump().items()}
    return bottleneck_of(type(time)(**shares | {"core": 0.0}))[0]


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
        assert process.wait(100.0) == 0, process.text()
        return read_profile(tmp_path / "runs" / "latest" / "profile.json")

    return read


@pytest.fixture
def loop(tmp_path: Path) -> Settings:
    """A job of the model LOOP."""
    (tmp_path / "loop.py").write_text(LOOP, encoding="utf-8")
    return {"model": {"name": "./loop.py:Loop", "bottom": None, "top": None}}


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
    assert {
        ("reader-0", "parser", "parse"),
        ("trainer-0", "worker-0", "compute"),
        ("trainer-0", "worker-1", "compute"),
        ("trainer-0", "worker-0", "push gradients"),
        ("coordinator", "MainThread", "trained"),
    } <= done
    assert any(process == "embedding-0" and name == "lookup" for process, _, name in done)
    length = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") / 1e6
    assert 0 < length < wall_seconds, "all nodes are on one clock"


@pytest.mark.matrix
def test_without_a_plant_it_computes(profiled: Profiled, found: Callable[[Process], Profile]) -> None:
    """The control of all below; beside other programs steps wait for a core, which is no plant either."""
    profile = found(profiled())
    assert profile.verdict.bottleneck == "compute", profile.verdict


@pytest.mark.matrix
@pytest.mark.parametrize(("role", "bottleneck"), [("reader", "reader"), ("embedding", "embedding")])
def test_a_node_that_is_stopped_nine_tenths_of_the_time(
    role: str,
    bottleneck: str,
    profiled: Profiled,
    found: Callable[[Process], Profile],
    tmp_path: Path,
) -> None:
    process = profiled()
    run = RunFolder(tmp_path / "runs" / "latest")
    assert run.reaches(1, 60.0), process.text()
    # Several times in a profile: one stop at the edge of what is measured then decides nothing.
    with pulsed(node_of(process.pid, role), stopped_seconds=0.45, running_seconds=0.05):
        profile = found(process)
    assert planted(profile) == bottleneck, profile.verdict
    stood = {node.role: node.stalled_share for node in profile.measured.nodes}
    assert stood[role] > 1 / 3
    assert all(share < 0.3 for other, share in stood.items() if other != role)
    reasons = {reason.partition(":")[0]: reason for reason in profile.verdict.reasons}
    assert "was stopped" in reasons[role]


@pytest.mark.matrix
def test_a_network_whose_delay_every_lookup_waits_for(
    profiled: Profiled, found: Callable[[Process], Profile]
) -> None:
    profile = found(profiled({"model": SMALL}, SLOW))
    assert planted(profile) == "network", profile.verdict
    trainer = profile.measured.of("trainer")[0]
    trip = trainer.count("round_trip_seconds") / trainer.count("round_trips")
    assert trip > 0.100, "there and back, 50 ms each"


@pytest.mark.matrix
def test_layers_that_hide_the_same_delay(profiled: Profiled, found: Callable[[Process], Profile]) -> None:
    """Lookups are asked for ahead, and steps are longer than these are on their way."""
    bigger = {"model": {"bottom": [2048, 1024, 256], "top": [2048, 1024]}, "trainer": {"batch": 1024}}
    profile = found(profiled(bigger, SLOW))
    assert profile.verdict.bottleneck == "compute", profile.verdict


@pytest.mark.matrix
def test_rounds_that_every_step_waits_for(profiled: Profiled, found: Callable[[Process], Profile]) -> None:
    fixed = {"model": SMALL, "sync": {"algorithm": "easgd", "nodes": 1, "mode": "fixed", "every": 1}}
    slow = {"network": {"delay": "20ms", "delay_links": "sync", "emulation": "relay"}}
    profile = found(profiled(fixed, slow))
    assert planted(profile) == "sync", profile.verdict
    assert any("sync.mode" in remedy for remedy in profile.verdict.remedies)


@pytest.mark.matrix
def test_loops_under_one_interpreter_lock(
    profiled: Profiled, found: Callable[[Process], Profile], loop: Settings
) -> None:
    profile = found(profiled(loop))
    assert planted(profile) == "gil", profile.verdict
    assert any("worker_kind" in remedy for remedy in profile.verdict.remedies)


@pytest.mark.matrix
def test_the_same_loops_in_processes_as_the_profile_advises(
    profiled: Profiled, found: Callable[[Process], Profile], loop: Settings
) -> None:
    profile = found(profiled(merged(loop, {"trainer": {"worker_kind": "process"}})))
    assert profile.verdict.bottleneck == "compute", profile.verdict
    assert profile.verdict.time.gil == 0.0
    trainer = profile.measured.of("trainer")[0]
    # What kept them is known of the processes, not of the threads that talk to them.
    for worker in ("worker-0", "worker-1"):
        used = trainer.threads[worker]
        assert used.cpu_seconds + used.core_wait_seconds > 0.5 * trainer.seconds
        assert trainer.threads[f"{worker}-monitor"].cpu_seconds < 0.5 * used.cpu_seconds
    assert profile.trace is not None
