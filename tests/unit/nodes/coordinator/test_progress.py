"""What the coordinator measures while a job goes on."""

from __future__ import annotations

import math

import pytest
from shadowsync.nodes.coordinator.state.progress import TrainingMetrics, entropy, normalized_entropy

LN2 = math.log(2)


@pytest.mark.parametrize(
    ("mean", "wanted"), [(0.5, LN2), (0.25, 0.5623351446188083), (0.0, None), (1.0, None)]
)
def test_the_entropy_of_a_label(mean: float, wanted: float | None) -> None:
    found = entropy(mean)
    assert found == wanted if wanted is None else found == pytest.approx(wanted, rel=1e-12)


def test_guessing_the_mean_has_a_normalized_entropy_of_one() -> None:
    assert normalized_entropy(10, 10 * LN2, 5) == pytest.approx(1.0)
    assert normalized_entropy(10, 5 * LN2, 5) == pytest.approx(0.5)
    for nothing in ((0, 0.0, 0), (10, 1.0, 0), (10, 1.0, 10)):
        assert normalized_entropy(*nothing) is None


def test_without_a_batch_nothing_is_measured() -> None:
    tally = TrainingMetrics()
    assert tally.seconds == 0.0
    assert tally.ne_progressive is None
    assert tally.examples_per_second() is None
    assert tally.per_trainer() == {}
    assert tally.ne_curve() == []
    assert tally.throughput_curves() == tally.gap_curves() == {}


def test_speed_runs_from_the_first_to_the_last_batch() -> None:
    tally = TrainingMetrics()
    tally.trained("trainer-1", 12.0, 100, 50.0, 30)
    assert tally.examples_per_second() is None
    # They are told late and out of order.
    tally.trained("trainer-0", 10.0, 300, 150.0, 90)
    tally.trained("trainer-0", 14.0, 100, 50.0, 30)
    assert tally.seconds == 4.0
    assert tally.examples == 500
    assert tally.examples_per_second() == 125.0
    assert tally.per_trainer() == {"trainer-0": 100.0, "trainer-1": 25.0}
    assert list(tally.per_trainer()) == ["trainer-0", "trainer-1"]


def test_the_quality_so_far_is_of_all_examples() -> None:
    tally = TrainingMetrics()
    tally.trained("trainer-0", 0.0, 100, 100 * 0.6, 20)
    tally.trained("trainer-1", 1.0, 300, 300 * 0.4, 60)
    wanted = (60 + 120) / 400 / (-(0.2 * math.log(0.2) + 0.8 * math.log(0.8)))
    assert tally.ne_progressive == pytest.approx(wanted, rel=1e-12)


def test_the_quality_curve_is_of_the_examples_since_the_last_point() -> None:
    tally = TrainingMetrics()
    for _ in range(4):
        tally.trained("trainer-0", 0.0, 2048, 2048 * LN2, 1024)
    for _ in range(2):
        tally.trained("trainer-0", 1.0, 2048, 2048 * LN2 / 2, 1024)
    curve = tally.ne_curve()
    assert [examples for examples, _ in curve] == [4096, 8192, 12288]
    assert [ne for _, ne in curve] == pytest.approx([1.0, 1.0, 0.5])


def test_the_speed_curve_adds_up_to_the_examples() -> None:
    tally = TrainingMetrics()
    for step in range(40):
        tally.trained("trainer-0", step * 0.1, 50, 1.0, 1)
    ((name, curve),) = tally.throughput_curves().items()
    assert name == "trainer-0"
    assert sum(speed * 0.5 for _, speed in curve) == pytest.approx(2000)
    assert [seconds for seconds, _ in curve] == [0.5 * n for n in range(1, 9)]


def test_the_gap_curve_is_iterations_over_rounds() -> None:
    tally = TrainingMetrics()
    tally.heartbeat("trainer-0", 0.2, {"iterations": 10, "rounds": 2, "gap_open": 1})
    tally.heartbeat("trainer-0", 0.7, {"iterations": 40, "rounds": 5, "gap_open": 2})
    # Nothing was trained: no point, whatever else the heartbeat says.
    tally.heartbeat("trainer-0", 1.2, {"iterations": 40, "rounds": 6, "gap_open": 2})
    assert tally.gap_curves() == {"trainer-0": [(0.5, 5.0), (1.0, 10.0)]}


def test_a_gap_that_stays_open_grows_in_the_curve() -> None:
    tally = TrainingMetrics()
    tally.heartbeat("trainer-0", 0.2, {"iterations": 10, "rounds": 1})
    for beat in range(1, 4):
        open_gap = 100 * beat
        tally.heartbeat(
            "trainer-0", 0.2 + 0.5 * beat, {"iterations": 10 + open_gap, "rounds": 1, "gap_open": open_gap}
        )
    # The round that ends it is measured over all of it.
    tally.heartbeat("trainer-0", 2.2, {"iterations": 410, "rounds": 2, "gap_open": 0})
    assert [gap for _, gap in tally.gap_curves()["trainer-0"]] == [10.0, 100.0, 200.0, 300.0, 400.0]


def test_a_heartbeat_without_counts_is_taken() -> None:
    tally = TrainingMetrics()
    tally.heartbeat("trainer-0", 0.2, {})
    tally.heartbeat("trainer-0", 0.7, {"iterations": 5})
    assert tally.gap_curves() == {"trainer-0": [(1.0, 0.0)]}
