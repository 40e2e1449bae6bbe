"""Rounds and the sync gap."""

from __future__ import annotations

import threading

from shadowsync.nodes.shadow.rounds import RoundCounter
from shadowsync.pipeline.report.rendering.quality_warnings import FIRST_ITERATIONS


def test_gaps_are_iterations_between_completed_rounds() -> None:
    iterations = [0]
    rounds = RoundCounter(lambda: iterations[0])
    for now, started in ((5, 2), (25, 20), (30, 29)):
        iterations[0] = now
        rounds.completed(started, seconds=0.5, cpu_seconds=0.1)
    iterations[0] = 37
    reported = rounds.metrics()
    assert reported["rounds"] == 3
    assert reported["gap_sum"] == 5 + 20 + 5
    assert reported["gap_max"] == 20
    assert reported["gap_open"] == 7
    assert reported["synced_iterations"] == 29
    assert reported["round_seconds"] == 1.5
    assert abs(reported["round_cpu_seconds"] - 0.3) < 1e-12


def test_the_open_gap_grows_into_the_maximum_but_not_into_the_mean() -> None:
    iterations = [10]
    rounds = RoundCounter(lambda: iterations[0])
    rounds.completed(10, 0.1, 0.1)
    iterations[0] = 1000
    reported = rounds.metrics()
    assert (reported["gap_max"], reported["gap_open"], reported["gap_sum"]) == (990, 990, 10)


def test_an_incomplete_round_ends_no_gap() -> None:
    iterations = [10]
    rounds = RoundCounter(lambda: iterations[0])
    rounds.incomplete()
    reported = rounds.metrics()
    assert (reported["rounds"], reported["incomplete_rounds"], reported["gap_open"]) == (0, 1, 10)
    assert reported["synced_iterations"] == 0


def test_what_is_synced_never_goes_back() -> None:
    # Workers' rounds at a fixed rate overlap: one that began earlier may complete later.
    iterations = [30]
    rounds = RoundCounter(lambda: iterations[0])
    rounds.completed(20, 0.1, 0.1)
    rounds.completed(15, 0.1, 0.1)
    assert rounds.metrics()["synced_iterations"] == 20


def test_rounds_of_the_first_iterations_are_counted_apart() -> None:
    rounds = RoundCounter(lambda: 500)
    # At 0 there was nothing to synchronize.
    for started in (0, 1, 50, FIRST_ITERATIONS, FIRST_ITERATIONS + 1, 400):
        rounds.completed(started, 0.1, 0.1)
    rounds.incomplete()
    reported = rounds.metrics()
    assert (reported["rounds"], reported["first_rounds"]) == (6, 3)


def test_threads_lose_no_round() -> None:
    rounds = RoundCounter(lambda: 1)

    def many() -> None:
        for _ in range(2000):
            rounds.completed(1, 1.0, 0.0)
            rounds.incomplete()

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reported = rounds.metrics()
    assert (reported["rounds"], reported["incomplete_rounds"], reported["round_seconds"]) == (
        8000,
        8000,
        8000.0,
    )
