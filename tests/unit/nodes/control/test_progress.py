"""What the coordinator measures while a job goes on."""

from __future__ import annotations

import math

import pytest
from shadowsync.nodes.control.loss_sums import entropy, normalized_entropy
from shadowsync.nodes.control.progress import TrainingMetrics

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
    metrics = TrainingMetrics()
    assert metrics.seconds == 0.0
    assert metrics.ne_progressive is None
    assert metrics.examples_per_second() is None
    assert metrics.per_trainer() == {}
    assert metrics.ne_curve() == []
    assert metrics.throughput_curves() == metrics.gap_curves() == {}


def test_speed_runs_from_the_first_to_the_last_batch() -> None:
    metrics = TrainingMetrics()
    metrics.trained("trainer-1", 12.0, 100, 50.0, 30)
    assert metrics.examples_per_second() is None
    # They are told late and out of order.
    metrics.trained("trainer-0", 10.0, 300, 150.0, 90)
    metrics.trained("trainer-0", 14.0, 100, 50.0, 30)
    assert metrics.seconds == 4.0
    assert metrics.examples == 500
    assert metrics.examples_per_second() == 125.0
    assert metrics.per_trainer() == {"trainer-0": 100.0, "trainer-1": 25.0}
    assert list(metrics.per_trainer()) == ["trainer-0", "trainer-1"]


def test_the_quality_so_far_is_of_all_examples() -> None:
    metrics = TrainingMetrics()
    metrics.trained("trainer-0", 0.0, 100, 100 * 0.6, 20)
    metrics.trained("trainer-1", 1.0, 300, 300 * 0.4, 60)
    wanted = (60 + 120) / 400 / (-(0.2 * math.log(0.2) + 0.8 * math.log(0.8)))
    assert metrics.ne_progressive == pytest.approx(wanted, rel=1e-12)


def test_the_quality_curve_is_of_the_examples_since_the_last_point() -> None:
    metrics = TrainingMetrics()
    for _ in range(4):
        metrics.trained("trainer-0", 0.0, 2048, 2048 * LN2, 1024)
    for _ in range(2):
        metrics.trained("trainer-0", 1.0, 2048, 2048 * LN2 / 2, 1024)
    curve = metrics.ne_curve()
    assert [examples for examples, _ in curve] == [4096, 8192, 12288]
    assert [ne for _, ne in curve] == pytest.approx([1.0, 1.0, 0.5])


def test_the_speed_curve_adds_up_to_the_examples() -> None:
    metrics = TrainingMetrics()
    for step in range(40):
        metrics.trained("trainer-0", step * 0.1, 50, 1.0, 1)
    ((name, curve),) = metrics.throughput_curves().items()
    assert name == "trainer-0"
    assert sum(speed * 0.5 for _, speed in curve) == pytest.approx(2000)
    assert [seconds for seconds, _ in curve] == [0.5 * n for n in range(1, 9)]


def test_the_gap_curve_is_iterations_over_rounds() -> None:
    metrics = TrainingMetrics()
    metrics.heartbeat("trainer-0", 0.2, {"iterations": 10, "rounds": 2, "gap_open": 1})
    metrics.heartbeat("trainer-0", 0.7, {"iterations": 40, "rounds": 5, "gap_open": 2})
    # Nothing was trained: no point, whatever else the heartbeat says.
    metrics.heartbeat("trainer-0", 1.2, {"iterations": 40, "rounds": 6, "gap_open": 2})
    assert metrics.gap_curves() == {"trainer-0": [(0.5, 5.0), (1.0, 10.0)]}


def test_a_gap_that_stays_open_grows_in_the_curve() -> None:
    metrics = TrainingMetrics()
    metrics.heartbeat("trainer-0", 0.2, {"iterations": 10, "rounds": 1})
    for beat in range(1, 4):
        open_gap = 100 * beat
        metrics.heartbeat(
            "trainer-0", 0.2 + 0.5 * beat, {"iterations": 10 + open_gap, "rounds": 1, "gap_open": open_gap}
        )
    # The round that ends it is measured over all of it.
    metrics.heartbeat("trainer-0", 2.2, {"iterations": 410, "rounds": 2, "gap_open": 0})
    assert [gap for _, gap in metrics.gap_curves()["trainer-0"]] == [10.0, 100.0, 200.0, 300.0, 400.0]


def test_a_heartbeat_without_counts_is_taken() -> None:
    metrics = TrainingMetrics()
    metrics.heartbeat("trainer-0", 0.2, {})
    metrics.heartbeat("trainer-0", 0.7, {"iterations": 5})
    assert metrics.gap_curves() == {"trainer-0": [(1.0, 0.0)]}


def test_hours_count_from_the_start() -> None:
    metrics = TrainingMetrics()
    assert metrics.hours() == []
    metrics.trained("trainer-0", 7_300.0, 100, 100 * 0.5, 25)
    # They are told late and out of order.
    metrics.trained("trainer-1", 3_599.9, 100, 100 * 0.6, 20)
    metrics.trained("trainer-0", 10.0, 300, 300 * 0.4, 60)
    metrics.trained("trainer-0", 7_200.0, 50, 1.0, 0, weight=0.0)
    first, third = metrics.hours()
    assert (first.hour, first.examples, first.label_rate) == (0, 400, 0.2)
    wanted = (60 + 120) / 400 / (-(0.2 * math.log(0.2) + 0.8 * math.log(0.8)))
    assert first.ne == pytest.approx(wanted, rel=1e-12)
    assert (third.hour, third.examples, third.label_rate) == (2, 150, 0.25)
    metrics.trained("trainer-0", 20_000.0, 10, 1.0, 0)
    assert metrics.hours()[-1].ne is None, "all labels are the same"


def test_further_labels_have_sums_of_their_own() -> None:
    metrics = TrainingMetrics(("clicked", "bought"))
    alone = {"clicked": TrainingMetrics(), "bought": TrainingMetrics()}
    batches = [(10.0, 400, (250.0, 100.0), (90.0, 20.0)), (4_000.0, 200, (120.0, 60.0), (30.0, 5.0))]
    for seconds, examples, clicked, bought in batches:
        metrics.trained("trainer-0", seconds, examples, *clicked, None, [bought])
        alone["clicked"].trained("trainer-0", seconds, examples, *clicked)
        alone["bought"].trained("trainer-0", seconds, examples, *bought)
    assert metrics.ne_by_label == {name: (one.ne_progressive, one.ne_recent) for name, one in alone.items()}
    assert metrics.ne_progressive == metrics.ne_by_label["clicked"][0]
    assert metrics.ne_by_label["bought"] != metrics.ne_by_label["clicked"], "the control"
    assert metrics.ne_curve() == alone["clicked"].ne_curve()
    for name, one in alone.items():
        assert [(hour.ne, hour.label_rate) for hour in one.hours()] == [
            (hour.labels[name].ne, hour.labels[name].label_rate) for hour in metrics.hours()
        ]
        assert one.ne_by_label == {}
        assert all(hour.labels == {} for hour in one.hours())


def test_sums_of_another_number_of_labels_are_refused() -> None:
    metrics = TrainingMetrics(("clicked", "bought"))
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        metrics.trained("trainer-0", 1.0, 10, 5.0, 2.0)
    assert metrics.examples == 0
