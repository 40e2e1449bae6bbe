"""Quality warnings of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ...config.job import Job
from ...config.sections import SyncSection
from ...text.format import count, counted, number, percent
from ..document import ExampleCounts
from ..lateness import Lateness, late_trainers
from ..quality import Evaluation, TrainedHour

FIRST_ITERATIONS: Final = 100
"""Of a trainer, over all its workers: those in which the sync gap is looked at apart."""

FEWEST_FIRST_ROUNDS: Final = 10
"""A gap of 10: in jobs whose equal runs ended apart it was 12 to 30 at first, and 4 later."""

LARGEST_WARMUP_SHARE: Final = 0.25
"""Of a job's examples: over more of them a warm-up costs rows more than it gives."""

MANY_TRAINERS: Final = 4
"""From here on the mean of the trainers' steps was clearly too short (benchmarks/quality/results.md)."""

AVERAGING: Final = frozenset({"easgd", "ma"})
"""Algorithms that move the model by the mean of the trainers' steps, without momentum."""


def averaging_warnings(sync: SyncSection, trainers: int) -> list[str]:
    """Return a warning if momentum would make up for what averaging costs."""
    if trainers < MANY_TRAINERS or sync.algorithm not in AVERAGING:
        return []
    return [
        f"{sync.algorithm} averages the steps of {trainers} trainers, so an example moves the model less than"
        " with one trainer. In tests with 8 that cost 0.7 to 8% of NE, and 1% at most under bmuf, which has"
        ' momentum: leave sync.options out and set sync.algorithm = "bmuf".'
    ]


def first_gap_warnings(
    sync: SyncSection, first_rounds: Mapping[str, int], *, resumed: bool = False
) -> list[str]:
    """Return a warning if trainers synchronized rarely in their FIRST_ITERATIONS.

    `first_rounds` has the rounds of each trainer in these iterations. There is no warning for a single
    trainer, which has no other replica, or for a resumed run, which does not start from initial values.
    """
    few = sorted((rounds, name) for name, rounds in first_rounds.items() if rounds < FEWEST_FIRST_ROUNDS)
    if resumed or len(first_rounds) < 2 or not few:
        return []
    rounds, name = few[0]
    others = len(few) - 1
    more = (
        f"; {counted(others, 'other trainer')} also fewer than {FEWEST_FIRST_ROUNDS} times" if others else ""
    )
    return [
        f"{name} synchronized {_times(rounds)} in its first {FIRST_ITERATIONS} iterations{more}. Such gaps at"
        f" the start can cost quality, in some runs more than in others: {_remedy(sync)}."
    ]


def bad_row_warnings(examples: ExampleCounts, epochs: int = 1) -> list[str]:
    """Return a warning if malformed rows were skipped, in up to `epochs` passes."""
    if not examples.bad_rows:
        return []
    share = percent(examples.bad_rows / (examples.bad_rows + examples.read + examples.dropped_negatives), 1)
    again = ", counted again in each epoch" if epochs > 1 else ""
    return [
        f"{counted(examples.bad_rows, 'malformed row')} ({share}) skipped{again}: the readers' logs show the"
        " first."
        " Correct them, or [data] of the job file."
    ]


def held_out_warnings(evaluation: Evaluation | None) -> list[str]:
    """Return a warning if malformed rows of the held-out files were skipped."""
    if evaluation is None or not evaluation.bad_rows:
        return []
    share = percent(evaluation.bad_rows / (evaluation.bad_rows + evaluation.examples), 1)
    return [
        f"{counted(evaluation.bad_rows, 'malformed row')} ({share}) of the held-out files not scored: the"
        " readers' logs show the first. Correct them, or [data] of the job file."
    ]


def one_class_warnings(hours: Sequence[TrainedHour], *, needs_negatives: bool = True) -> list[str]:
    """Return a warning if all labels in training were the same; see `ModelSection.needs_negatives`."""
    rates = {hour.label_rate for hour in hours if hour.label_rate is not None}
    if rates != {0.0} and (rates != {1.0} or not needs_negatives):
        return []
    return [
        f"All labels in training were {number(rates.pop(), 0)}, from which nothing can be learned: check the"
        " label in [data.columns], such as the spelling of the values of `positive`."
    ]


def warmup_warnings(job: Job, trained: int) -> list[str]:
    """Return a warning if the warm-up of embedding rows took much of the job.

    `trained` is the number of trained examples, including those of a resumed run.
    """
    warmup = job.rows_warmup_examples
    if not trained or warmup <= LARGEST_WARMUP_SHARE * trained:
        return []
    over = "all" if warmup >= trained else f"the first {count(warmup)}"
    return [
        f"The learning rate of embedding rows was still growing over {over} of {count(trained)} examples, so"
        f" rows learned less than they could: lower embedding.warmup_iterations"
        f" ({job.embedding.warmup_iterations}) or trainer.batch ({job.trainer.batch}), or train more epochs."
    ]


def late_warnings(lateness: Mapping[str, Lateness], seconds: float) -> list[str]:
    """Return a warning for each trainer that was late for much of a training of so many seconds."""
    return [f"{name}: {late.words(seconds)}." for name, late in late_trainers(lateness, seconds).items()]


def _times(rounds: int) -> str:
    return "once" if rounds == 1 else f"{rounds} times"


def _remedy(sync: SyncSection) -> str:
    if sync.mode == "fixed":
        return f"lower sync.every ({sync.every})"
    if sync.gap is None:
        return (
            f"raise sync.duty ({sync.duty:g}), or set sync.gap, which ignores the one-time cost of first"
            " rounds"
        )
    if sync.gap * FEWEST_FIRST_ROUNDS > FIRST_ITERATIONS and not sync.start_iterations:
        return f"set sync.start_iterations, or lower sync.gap ({sync.gap})"
    if sync.start_iterations:
        return f"raise sync.start_duty ({sync.start_duty or sync.duty:g}) or sync.start_iterations"
    return f"raise sync.duty ({sync.duty:g}), or set sync.start_iterations and sync.start_duty"
