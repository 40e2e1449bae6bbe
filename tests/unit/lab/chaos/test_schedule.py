"""Which role gets a fault when: a function of the seed, in which every role has its share."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from click.testing import CliRunner
from shadowsync import cli
from shadowsync.lab.chaos import run
from shadowsync.lab.chaos.schedule import (
    FAULT_KINDS,
    FIRST_SHARE,
    JITTER_SHARE,
    LAST_SHARE,
    ScheduledFault,
    schedule,
    soak_faults,
)
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ClusterError
from shadowsync.tests.support.jobs.runs import JobMaker

COUNTS = {"reader": 1, "trainer": 2, "embedding": 2, "sync": 0, "coordinator": 1}
PROCESSES = ("kill", "stop")


def test_the_same_seed_injects_alike_and_another_does_not() -> None:
    assert schedule(40, 7, COUNTS, PROCESSES, 5.0) == schedule(40, 7, COUNTS, PROCESSES, 5.0)
    assert schedule(40, 7, COUNTS, PROCESSES, 5.0) != schedule(40, 8, COUNTS, PROCESSES, 5.0)


@pytest.mark.parametrize("kills", [1, 2, 37, 200])
def test_as_many_as_are_wanted_and_each_role_in_turn(kills: int) -> None:
    jobs = schedule(kills, 1, COUNTS, PROCESSES, 5.0)
    faults = [fault for job in jobs for fault in job]
    assert len(faults) == kills
    assert all(1 <= len(job) <= 2 for job in jobs)
    roles = Counter(fault.role for fault in faults)
    assert set(roles) <= set(COUNTS) - {"sync"}
    assert max(roles.values()) - min(roles.get(role, 0) for role in COUNTS if COUNTS[role]) <= 1
    assert all(FIRST_SHARE <= (fault.after or 0.0) <= LAST_SHARE for fault in faults)


@pytest.mark.parametrize(("algorithm", "syncs"), [("bmuf", 0), ("easgd", 1)])
def test_only_a_job_with_a_center_has_faults_of_sync_nodes(
    job_file: JobMaker, monkeypatch: pytest.MonkeyPatch, algorithm: str, syncs: int
) -> None:
    jobs = list[Job]()

    def take(job: Job, *_: Any) -> None:
        jobs.append(job)
        raise ClusterError("enough")

    monkeypatch.setattr(run, "run_chaos", take)
    CliRunner().invoke(cli.main, ["chaos", str(job_file({"sync": {"algorithm": algorithm}}))])
    assert [job.expected["sync"] for job in jobs] == [syncs]


def test_some_come_two_at_once_and_some_only_stop() -> None:
    jobs = schedule(200, 1, COUNTS, PROCESSES, 5.0)
    assert any(len(job) == 2 for job in jobs)
    assert all(job[0].after == job[1].after for job in jobs if len(job) == 2)
    stops = [fault.seconds for job in jobs for fault in job if fault.seconds]
    assert stops
    assert all(1.0 <= seconds <= 5.0 for seconds in stops)
    assert not any(fault.seconds for job in schedule(200, 1, COUNTS, PROCESSES, 0.0) for fault in job)


def test_all_kinds_come_and_only_some_of_them_last() -> None:
    faults = [fault for job in schedule(400, 1, COUNTS, tuple(FAULT_KINDS), 5.0) for fault in job]
    assert {fault.kind for fault in faults} == set(FAULT_KINDS)
    assert all((fault.seconds > 0) == FAULT_KINDS[fault.kind].lasts for fault in faults)
    stalled = next(fault for fault in faults if fault.kind == "stall")
    assert str(stalled).startswith(f"{stalled.role} link stalled for ")
    jumps = {fault.jump_seconds for fault in faults if fault.kind == "clock"}
    assert jumps == {-86_400.0, -600.0, 600.0, 86_400.0}
    assert not any(fault.jump_seconds for fault in faults if fault.kind != "clock")


def test_a_soak_has_a_fault_in_each_time_and_each_role_in_turn() -> None:
    faults = list(islice(soak_faults(15.0, 3, COUNTS, PROCESSES, 5.0), 80))
    assert faults == list(islice(soak_faults(15.0, 3, COUNTS, PROCESSES, 5.0), 80))
    assert faults != list(islice(soak_faults(15.0, 4, COUNTS, PROCESSES, 5.0), 80))
    early = [fault.soak_seconds - 15.0 * (number + 1) for number, fault in enumerate(faults)]
    assert max(abs(one) for one in early) <= 15.0 * JITTER_SHARE
    assert min(early) < -1.0
    assert max(early) > 1.0
    assert Counter(fault.role for fault in faults) == dict.fromkeys(set(COUNTS) - {"sync"}, 20)
    assert {fault.kind for fault in faults} == set(PROCESSES)
    assert {fault.after for fault in faults} == {None}
    short = islice(soak_faults(15.0, 3, COUNTS, PROCESSES, 0.0), 80)
    assert {fault.kind for fault in short} == {"kill"}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (ScheduledFault("kill", "reader", 0, 0.5), "reader killed after 50%"),
        (
            ScheduledFault("clock", "trainer", 0, 0.4, 2.0, -600.0),
            "trainer clock jumped by -10 min for 2 s after 40%",
        ),
        (ScheduledFault("kill", "sync", 0, None, soak_seconds=90.0), "sync killed after 1 min 30 s"),
    ],
)
def test_a_fault_is_said_in_words(fault: ScheduledFault, said: str) -> None:
    assert str(fault) == said
