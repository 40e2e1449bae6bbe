"""What a report warns of, and what it says to change."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.sections import SyncSection
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.lateness import Lateness
from shadowsync.pipeline.report.merged_work import MergedWork, Merges
from shadowsync.pipeline.report.quality import TrainedHour
from shadowsync.pipeline.report.rendering.markdown import render_markdown
from shadowsync.pipeline.report.rendering.quality_warnings import (
    FEWEST_FIRST_ROUNDS,
    MANY_TRAINERS,
    averaging_warnings,
    first_gap_warnings,
    late_warnings,
    one_class_warnings,
    warmup_warnings,
)

from ..conftest import altered, on_terminal

ENOUGH = {"trainer-0": FEWEST_FIRST_ROUNDS, "trainer-1": 100}


def warnings(first_rounds: dict[str, int], **settings: Any) -> list[str]:
    return first_gap_warnings(SyncSection(**settings), first_rounds)


def test_few_rounds_at_the_start_are_warned_of() -> None:
    assert warnings(ENOUGH) == []
    assert warnings({}) == []
    (text,) = warnings(ENOUGH | {"trainer-1": 3})
    assert text.startswith("trainer-1 synchronized 3 times in its first 100 iterations. ")
    assert "more fewer" not in text
    (text,) = warnings({"trainer-0": 9, "trainer-1": 0, "trainer-2": 1, "trainer-3": 10})
    assert text.startswith(
        "trainer-1 synchronized 0 times in its first 100 iterations; 2 other trainers also fewer than "
    )


def test_many_trainers_whose_steps_are_averaged_are_warned_of() -> None:
    averaged = SyncSection(algorithm="easgd")
    (text,) = averaging_warnings(averaged, 8)
    assert text.startswith("easgd averages the steps of 8 trainers")
    # What it says to set ends the warning, and is the default.
    assert text.endswith('leave sync.options out and set sync.algorithm = "bmuf".')
    assert SyncSection() == SyncSection(algorithm="bmuf")
    assert averaging_warnings(SyncSection(), 8) == []
    assert averaging_warnings(averaged, MANY_TRAINERS - 1) == []
    assert averaging_warnings(SyncSection(algorithm="none"), 8) == []


@pytest.mark.parametrize(("rates", "said"), [((0.0, None, 0.0), "0"), ((1.0,), "1")])
def test_labels_that_are_all_the_same_are_warned_of(rates: tuple[float | None, ...], said: str) -> None:
    def hours(*rates: float | None) -> list[TrainedHour]:
        return [TrainedHour(hour=at, examples=9, ne=None, label_rate=rate) for at, rate in enumerate(rates)]

    (text,) = one_class_warnings(hours(*rates))
    assert text.startswith(f"All labels in training were {said}, from which nothing can be learned: check")
    assert one_class_warnings(hours(*rates, 0.5)) == []
    # Where other items are the negatives, positives alone do.
    assert bool(one_class_warnings(hours(*rates), needs_negatives=False)) == (said == "0")
    assert one_class_warnings(hours(0.0, 1.0)) == []
    assert one_class_warnings([]) == []


def with_warmup(iterations: int) -> Job:
    return Job.model_validate(
        {
            "data": {"format": "parquet", "path": ["x"]},
            "trainer": {"batch": 100, "count": 2},
            "embedding": {"warmup_iterations": iterations},
        }
    )


def test_a_warm_up_over_much_of_a_job_is_warned_of() -> None:
    job = with_warmup(5)
    assert warmup_warnings(job, 2_000) == []
    (text,) = warmup_warnings(job, 1_999)
    assert "over the first 500 of 1,999 examples" in text
    assert "embedding.warmup_iterations (5) or trainer.batch (100)" in text
    (text,) = warmup_warnings(job, 400)
    assert "over all of 400 examples" in text


def test_a_job_without_warm_up_or_without_examples_has_nothing_to_warn_of() -> None:
    assert warmup_warnings(with_warmup(0), 1) == []
    assert warmup_warnings(with_warmup(5), 0) == []


def test_one_trainer_is_apart_from_nobody() -> None:
    assert warnings({"trainer-0": 1}) == []


def test_a_resumed_run_is_past_its_start() -> None:
    few = ENOUGH | {"trainer-1": 3}
    assert first_gap_warnings(SyncSection(), few, resumed=True) == []
    assert first_gap_warnings(SyncSection(), few) != []


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({}, "raise sync.duty (0.01), or set sync.gap, "),
        ({"mode": "fixed"}, "lower sync.every (30)."),
        ({"gap": 20}, "set sync.start_iterations, or lower sync.gap (20)."),
        ({"gap": 10}, "raise sync.duty (0.01), or set sync.start_iterations and sync.start_duty."),
        ({"gap": 20, "start_iterations": 50}, "raise sync.start_duty (0.01) or sync.start_iterations."),
        (
            {"gap": 20, "start_iterations": 50, "start_duty": 0.2},
            "raise sync.start_duty (0.2) or sync.start_iterations.",
        ),
    ],
)
def test_it_says_what_to_change(settings: dict[str, Any], remedy: str) -> None:
    (text,) = warnings(ENOUGH | {"trainer-1": 3}, **settings)
    assert f": {remedy}" in text


def test_report_md_has_warnings_and_first_rounds(full_report: Report) -> None:
    plain = render_markdown(full_report)
    assert "Warning" not in plain
    assert "first 100 iterations" not in plain
    warned = altered(full_report, warnings=["seldom | late"], sync={"first_rounds": {"trainer-0": 3}})
    text = render_markdown(warned)
    assert "- **Warning:** seldom \\| late" in text
    assert "| trainer-0, rounds in its first 100 iterations | 3 |" in text


def test_a_trainer_that_is_late_for_much_of_the_job_is_warned_of() -> None:
    def late(seconds: float, over_seconds: float = 100.0) -> list[str]:
        all_of_them = {
            "trainer-0": Lateness(seconds=1.0, merges=900, missed_merges=20),
            "trainer-1": Lateness(seconds=2.0, merges=880, missed_merges=40),
            "trainer-2": Lateness(seconds=seconds, merges=120, missed_merges=880),
        }
        return late_warnings(all_of_them, over_seconds)

    assert late(40.0) == [
        "trainer-2: its work reaches the model late: it was in 120 of 1,000 merges, and late for 40 s of "
        "1 min 40 s; look at its machine or link."
    ]
    assert late(9.0) == []
    assert late(20.0, 29.0) == []
    assert late_warnings({"trainer-0": Lateness(seconds=90.0)}, 100.0) == []
    (waited,) = late_warnings({"a": Lateness(seconds=30.0), "b": Lateness(seconds=0.0)}, 100.0)
    assert waited == "a: rounds waited for it for 30 s of 1 min 40 s; look at its machine or link."


def test_report_and_terminal_say_who_was_in_the_merges_and_how_late(full_report: Report) -> None:
    work = MergedWork(
        examples=5_120,
        merges=80,
        missed_merges=20,
        late_seconds=4.0,
        most_late_seconds=1.5,
        unmerged_examples=128,
    )
    merges = Merges(number=100, late=20, trainers={"trainer-0": work})
    merged = altered(full_report, sync={"merges": merges})
    said = "5,120 examples in 80 of 100 merges, 128 in none; late for 4 s, 1.5 s at most"
    assert f"| merged of trainer-0 | {said} |" in render_markdown(merged)
    shown = [line.split() for line in on_terminal(merged).splitlines()]
    assert ["merges", "100"] in shown
    assert ["trainer-0", "was", "in", "80%,", "late", "for", "4", "s"] in shown


def test_report_and_terminal_say_for_whom_rounds_waited(full_report: Report) -> None:
    assert "waited for" not in render_markdown(full_report) + on_terminal(full_report)
    waited = altered(full_report, sync={"waited_seconds": {"trainer-3": 12.0}})
    assert "| rounds waited for trainer-3 | 12 s |" in render_markdown(waited)
    assert "waited for trainer-3 12 s" in " ".join(on_terminal(waited).split())
