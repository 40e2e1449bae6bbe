"""When faults are due: by a job's batches, or by the seconds that the jobs of a soak have trained."""

from __future__ import annotations

from dataclasses import replace

from shadowsync.lab.chaos.due_faults import FaultsOfJob, SoakFaults
from shadowsync.lab.chaos.schedule import ScheduledFault

EARLY = ScheduledFault("kill", "trainer", 0, 0.25)
LATE = ScheduledFault("kill", "reader", 0, 0.75)


def _soak() -> SoakFaults:
    kill = ScheduledFault("kill", "trainer", 0, None)
    return SoakFaults(replace(kill, soak_seconds=10.0 * number) for number in range(1, 100))


def _moments(faults: list[ScheduledFault]) -> list[float]:
    return [fault.soak_seconds for fault in faults]


def test_faults_of_a_job_come_once_and_by_its_batches() -> None:
    faults = FaultsOfJob([EARLY, LATE], 100)
    assert faults.take(24, 1000.0) == []
    assert faults.take(25, 0.0) == [EARLY]
    assert faults.take(74, 0.0) == []
    assert faults.end_run() == [LATE]
    assert faults.take(100, 0.0) == [], "a resumption has none"


def test_faults_of_a_soak_go_on_from_job_to_job() -> None:
    faults = _soak()
    assert faults.take(5, 9.9) == []
    assert _moments(faults.take(5, 10.0)) == [10.0]
    assert faults.end_run() == []
    faults.soak_seconds += 15.0
    assert faults.take(5, 4.9) == []
    assert _moments(faults.take(5, 5.0)) == [20.0]


def test_faults_of_a_soak_wait_until_a_resumed_job_trains() -> None:
    faults = _soak()
    assert faults.take(0, 35.0) == []
    assert _moments(faults.take(1, 36.0)) == [30.0], "one of those that came meanwhile"
    assert _moments(faults.take(1, 40.0)) == [40.0]
