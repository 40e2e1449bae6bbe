"""Writing that yields to training: when it rests, for how long, and when it does not."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from shadowsync.pipeline.checkpoint.store import yielding
from shadowsync.pipeline.checkpoint.store.addresses import part_target
from shadowsync.pipeline.checkpoint.store.yielding import (
    MOST_REST_SECONDS,
    SHARE,
    ThreadTimes,
    Yielding,
    own_times,
)
from shadowsync.tests.support.jobs.processes import wait_until

PIECES = [b"one", b"two", b"three"]


def counted(steps: Sequence[tuple[float, float]], threads: Sequence[int] = ()) -> Callable[[], ThreadTimes]:
    """The times of a thread: at first none, after each piece so many seconds more (ran, waited)."""
    sums, number = [0.0, 0.0], -1

    def times() -> ThreadTimes:
        nonlocal number
        if number >= 0:
            ran, waited = steps[min(number, len(steps) - 1)]
            sums[0] += ran
            sums[1] += waited
        number += 1
        return ThreadTimes(threads[number] if threads else 1, *sums)

    return times


def rests(*steps: tuple[float, float], threads: Sequence[int] = ()) -> list[float]:
    """How long it rests after the pieces that took so long."""
    slept: list[float] = []
    own = Yielding(counted(steps, threads), slept.append)
    assert list(own.between(PIECES)) == PIECES
    return slept


def test_it_takes_a_small_share_of_the_time_while_processors_are_scarce() -> None:
    slept = rests((0.010, 0.005), (0.020, 0.020), (0.010, 0.002))
    assert slept == pytest.approx([0.010 / SHARE - 0.010, 0.020 / SHARE - 0.020, 0.010 / SHARE - 0.010])
    assert 0.010 / (0.010 + slept[0]) == pytest.approx(SHARE)


def test_it_rests_only_while_they_are_scarce() -> None:
    assert rests((0.010, 0.0)) == []
    assert rests((0.010, 0.0009)) == []
    assert len(rests((0.010, 0.0009), (0.010, 0.0011), (0.010, 0.0))) == 1


def test_small_pieces_count_together() -> None:
    """A thousandth of a second says nothing; two of them do."""
    slept = rests((0.001, 0.001))
    assert slept == pytest.approx([0.002 / SHARE - 0.002])


def test_another_threads_times_say_nothing() -> None:
    assert rests((0.010, 0.010), threads=[1, 2, 3, 4]) == []
    assert len(rests((0.010, 0.010), threads=[1, 2, 2, 3])) == 1


def test_it_does_not_rest_for_ever() -> None:
    slept: list[float] = []
    own = Yielding(counted([(10.0, 10.0)]), slept.append)
    list(own.between(PIECES))
    assert sum(slept) == MOST_REST_SECONDS
    # Of the next file nothing is left.
    slept.clear()
    list(own.between(PIECES))
    assert slept == []


def test_it_does_not_rest_where_nobody_counts_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(yielding, "TIMES", tmp_path / "none")
    yielding._say_uncounted.cache_clear()
    caplog.set_level(logging.INFO, yielding.log.name)
    slept: list[float] = []
    for _ in range(2):
        assert list(Yielding(rest=slept.append).between(PIECES)) == PIECES
    assert slept == []
    assert caplog.text.count("the system counts no waiting threads") == 1
    yielding._say_uncounted.cache_clear()


@pytest.mark.skipif(not yielding.TIMES.exists(), reason="this system does not count them")
def test_times_are_those_of_the_thread_that_asks() -> None:
    before = own_times()
    assert before is not None

    def has_run() -> bool:
        hashlib.sha256(bytes(1 << 20)).digest()
        now = own_times()
        return now is not None and now.ran > before.ran

    # The system counts by ticks of its clock.
    wait_until(has_run, "it is counted")
    after = own_times()
    assert after is not None
    assert before.thread == after.thread == threading.get_native_id()
    assert after.ran > before.ran
    assert after.waited >= before.waited
    others: list[ThreadTimes | None] = []
    thread = threading.Thread(target=lambda: others.append(own_times()))
    thread.start()
    thread.join()
    (other,) = others
    assert other is not None
    assert other.ran < after.ran, "a new thread has hardly run"


def test_a_part_that_yields_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(
        "shadowsync.pipeline.checkpoint.store.addresses.Yielding",
        lambda: Yielding(counted([(0.010, 0.010)]), slept.append),
    )
    for name, yields in (("whole", False), ("yielding", True)):
        part_target(str(tmp_path), yields=yields).put(name, PIECES)
        assert (tmp_path / name).read_bytes() == b"".join(PIECES)
        assert len(slept) == (len(PIECES) if yields else 0)
