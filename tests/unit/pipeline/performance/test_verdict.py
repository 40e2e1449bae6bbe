"""Where the bottleneck is, from measurements with known answers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.performance.document import WAITS, judge
from shadowsync.pipeline.performance.measurements import ProfileMeasurements, depth_bounds
from shadowsync.pipeline.performance.reasons import ADVICE, MORE_CORES, PREPARE, deeper
from shadowsync.pipeline.performance.render import HEADLINES
from shadowsync.pipeline.performance.worker_time import worker_time
from shadowsync.tests.support.jobs.profile_measurements import measured, node, threads

DEPTH_SETTINGS = ["trainer.lookups_ahead", "trainer.credit"]
WAITING = {"compute_seconds": 8.0, "compute_cpu_seconds": 8.0}
BUSY_SHARD = node("embedding", {"busy_seconds": 9.5, "handled_messages": 1000.0})
WAITS_FOR_DISK = node(
    "embedding", {"busy_seconds": 9.5, "handled_messages": 1000.0, "disk_wait_seconds": 6.0}
)
FAST_DISK = node("embedding", {"busy_seconds": 9.5, "handled_messages": 1000.0, "disk_wait_seconds": 0.5})
STOPPED_SHARD = node("embedding", {"busy_seconds": 0.5}, stalled_share=0.9)
SHARD_WITHOUT_A_CORE = node("embedding", {"busy_seconds": 0.5}, threads=threads(lane_1=(1.0, 8.5)))
BEHIND = node("reader", {"parse_seconds": 9.8, "wait_for_credit_seconds": 0.1})
STOPPED_READER = node("reader", {"wait_for_credit_seconds": 9.0}, stalled_share=0.9)
LOCKED = {"locked_share": 0.95}

PLANTED = {
    "compute": measured(),
    "reader": measured(WAITING | {"wait_for_reader_seconds": 11.0}, reader=BEHIND),
    "reader, stopped": measured(WAITING | {"wait_for_reader_seconds": 11.0}, reader=STOPPED_READER),
    "embedding": measured(WAITING | {"wait_for_vectors_seconds": 11.0}, embedding=BUSY_SHARD),
    "embedding, of pushes": measured(WAITING | {"wait_for_pushes_seconds": 11.0}, embedding=BUSY_SHARD),
    "embedding, stopped": measured(WAITING | {"wait_for_vectors_seconds": 11.0}, embedding=STOPPED_SHARD),
    "embedding, no core": measured(
        WAITING | {"wait_for_vectors_seconds": 11.0}, embedding=SHARD_WITHOUT_A_CORE
    ),
    "disk": measured(WAITING | {"wait_for_vectors_seconds": 11.0}, embedding=WAITS_FOR_DISK),
    "embedding, with a fast disk": measured(
        WAITING | {"wait_for_vectors_seconds": 11.0}, embedding=FAST_DISK
    ),
    "network": measured(WAITING | {"wait_for_vectors_seconds": 11.0}),
    "network, of batches": measured(WAITING | {"wait_for_reader_seconds": 11.0}),
    "sync": measured(WAITING | {"wait_for_sync_seconds": 11.0}),
    "gil": measured({"compute_cpu_seconds": 9.0}, trainer_more=LOCKED),
    "balanced": measured(
        {"compute_seconds": 10.0, "compute_cpu_seconds": 10.0, "wait_for_reader_seconds": 5.0}
        | {"wait_for_sync_seconds": 5.0},
        reader=BEHIND,
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_each_bottleneck_is_found(planted: str) -> None:
    verdict = judge(PLANTED[planted])
    assert verdict.bottleneck == planted.partition(",")[0], verdict.reasons


def test_the_reason_of_the_verdict_comes_first_with_what_was_measured() -> None:
    verdict = judge(PLANTED["embedding"])
    assert verdict.reasons[0].startswith("embedding: ")
    assert "occupied 95%" in verdict.reasons[0]
    assert verdict.share == pytest.approx(11.0 / 20 * 0.95)
    assert {reason.partition(":")[0].partition(" ")[0] for reason in verdict.reasons} == {
        *("compute", "gil", "reader", "embedding", "network", "sync")
    }


def test_the_disk_is_named_with_how_long_it_was_waited_for() -> None:
    verdict = judge(PLANTED["disk"])
    assert "waited 60% of the time for its disk" in verdict.reasons[0]
    assert any("embedding.memory_bytes" in remedy for remedy in verdict.remedies)
    assert "for its disk" not in judge(PLANTED["embedding"]).reasons[0]


def test_a_wait_is_split_by_how_occupied_the_node_was() -> None:
    half = node("embedding", {"busy_seconds": 5.0})
    time = judge(measured(WAITING | {"wait_for_vectors_seconds": 10.0}, embedding=half)).time
    assert time.embedding == pytest.approx(0.25)
    assert time.network == pytest.approx(0.25 + 0.02 * 0.9)


def test_steps_without_a_core_are_not_the_interpreter_lock() -> None:
    """Where nine processes share two cores, steps are off their core too, and the lock is not why."""
    waiting = threads(worker_0=(5.0, 4.5), worker_1=(5.0, 4.5), shadow=(0.1, 8.0))
    few = {"locked_share": 0.3, "threads": waiting}
    verdict = judge(measured({"compute_cpu_seconds": 9.0}, trainer_more=few))
    assert verdict.bottleneck == "compute"
    assert verdict.time.core == pytest.approx(0.45)
    assert verdict.time.gil == pytest.approx(0.0)
    assert verdict.remedies[0] == MORE_CORES
    assert MORE_CORES not in judge(PLANTED["compute"]).remedies


def test_the_interpreter_lock_is_seen_where_there_is_no_core_either() -> None:
    """Threads that wait for it wake to ask for it, and wait for a core to do so."""
    waiting = threads(worker_0=(1.0, 8.0), worker_1=(1.0, 8.0))
    counts = {"compute_cpu_seconds": 2.0}
    verdict = judge(measured(counts, trainer_more=LOCKED | {"threads": waiting}))
    assert verdict.bottleneck == "gil"
    assert verdict.time.gil == pytest.approx(0.95 * 0.95 / 2)
    assert verdict.time.core == pytest.approx(0.85 - 0.95 * 0.95 / 2)


def test_a_lock_that_keeps_the_worker_s_own_python_counts() -> None:
    """Where other threads hold it, a worker waits for it in all that it does."""
    own = {"compute_seconds": 2.0, "compute_cpu_seconds": 2.0}
    on_core = threads(worker_0=(2.0, 0.0), worker_1=(2.0, 0.0))
    verdict = judge(measured(own, trainer_more=LOCKED | {"threads": on_core}))
    assert verdict.bottleneck == "gil"
    assert verdict.time.compute == pytest.approx(0.1)
    assert verdict.time.handling == pytest.approx(0.1)
    idle = judge(measured(own, trainer_more={"threads": on_core}))
    assert idle.time.gil == 0.0
    assert idle.time.handling == pytest.approx(0.85)


def test_steps_that_wait_for_a_device_are_not_the_interpreter_lock() -> None:
    assert judge(measured({"compute_cpu_seconds": 2.0})).time.gil == 0.0


def test_less_than_a_third_is_no_bottleneck() -> None:
    def waiting(seconds: float) -> ProfileMeasurements:
        counts = {"compute_seconds": 20.0 - seconds, "compute_cpu_seconds": 20.0 - seconds}
        none = {"wait_for_vectors_seconds": 0.0, "wait_for_reader_seconds": 0.0}
        return measured(counts | none | {"wait_for_sync_seconds": seconds})

    assert judge(waiting(6.5)).bottleneck == "compute"
    assert judge(waiting(6.8)).bottleneck == "sync"


SECONDS = st.floats(0.0, 20.0)


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_shares_are_of_a_whole(
    reader: float, vectors: float, sync: float, compute: float, cpu: float, stalled: float, locked: float
) -> None:
    counts = {
        "wait_for_reader_seconds": reader,
        "wait_for_vectors_seconds": vectors,
        "wait_for_sync_seconds": sync,
        "compute_seconds": compute,
        "compute_cpu_seconds": min(cpu, compute),
    }
    shard = node("embedding", {"busy_seconds": 4.0}, stalled_share=stalled)
    verdict = judge(measured(counts, trainer_more={"locked_share": locked}, embedding=shard))
    parts = verdict.time.model_dump()
    assert all(share >= -1e-9 for share in parts.values())
    assert sum(parts.values()) == pytest.approx(1.0)
    assert (verdict.bottleneck in WAITS) == (max(parts[cause] for cause in WAITS) >= 1 / 3)


def test_more_in_flight_is_advised_only_where_the_job_bounds_it_by_a_number() -> None:
    measures = PLANTED["network"]
    assert not any(key in remedy for remedy in judge(measures).remedies for key in DEPTH_SETTINGS)
    for bounds in (DEPTH_SETTINGS[:1], DEPTH_SETTINGS[1:], DEPTH_SETTINGS):
        bounded = judge(measures.model_copy(update={"depth_bounds": bounds}))
        assert bounded.bottleneck == "network"
        assert bounded.remedies[1:] == judge(measures).remedies
        assert [key for key in DEPTH_SETTINGS if key in bounded.remedies[0]] == bounds
    assert judge(PLANTED["compute"].model_copy(update={"depth_bounds": DEPTH_SETTINGS})).remedies == list(
        ADVICE["compute"]
    )


def test_a_job_bounds_what_is_in_flight_by_the_numbers_of_its_file() -> None:
    def bounds(*, deterministic: bool = False, **trainer: int | str) -> list[str]:
        sections = {"trainer": trainer, "run": {"deterministic": deterministic}, "sync": {"mode": "fixed"}}
        return depth_bounds(Job.model_validate(sections | {"data": {"format": "parquet", "path": ["/x"]}}))

    assert bounds() == bounds(lookups_ahead="auto", credit="auto") == []
    assert bounds(lookups_ahead=0) == DEPTH_SETTINGS[:1]
    assert bounds(credit=4) == DEPTH_SETTINGS[1:]
    assert bounds(lookups_ahead=2, credit=4) == DEPTH_SETTINGS
    assert bounds(lookups_ahead=2, credit=4, deterministic=True) == [], "a worker waits for each lookup"


def test_a_profile_of_an_earlier_version_bounds_nothing() -> None:
    earlier = PLANTED["network"].model_dump(exclude={"depth_bounds"})
    assert ProfileMeasurements.model_validate(earlier).depth_bounds == []


def test_every_setting_that_is_advised_exists() -> None:
    texts = [
        MORE_CORES,
        PREPARE,
        deeper(DEPTH_SETTINGS),
        *(text for remedies in ADVICE.values() for text in remedies),
    ]
    named = {name for text in texts for name in re.findall(r"`([a-z]+\.[a-z_]+)", text)}
    assert len(named) > 10
    for name in named:
        section, key = name.split(".")
        annotation = Job.model_fields[section].annotation
        assert annotation is not None
        assert key in annotation.model_fields, f"{name} is advised, and no setting"


def test_a_slow_reader_of_raw_files_is_told_how_to_prepare_them() -> None:
    raw = PLANTED["reader"]
    assert "`shadowsync prepare " in judge(raw).remedies[0]
    prepared = judge(raw.model_copy(update={"prepared": True}))
    assert prepared.bottleneck == "reader"
    assert not any("prepare" in remedy for remedy in prepared.remedies)
    assert PREPARE not in judge(PLANTED["network"]).remedies


def test_every_verdict_has_advice_and_a_headline() -> None:
    assert set(ADVICE) == set(HEADLINES) == {"compute", "balanced", "disk", *WAITS}


def test_steps_that_never_ran_have_no_negative_share() -> None:
    """However their seconds are rounded."""
    times = threads(worker_0=(0.0, 20.0), worker_1=(0.0, 20.0))
    for compute in (index / 97 for index in range(1, 97)):
        counts = {"compute_seconds": compute, "compute_cpu_seconds": compute, "wait_for_reader_seconds": 1.4}
        found = worker_time(measured(counts, trainer_more={"threads": times}))
        assert found.compute == pytest.approx(0.0, abs=1e-9)
        assert sum(found.model_dump().values()) == pytest.approx(1.0)
