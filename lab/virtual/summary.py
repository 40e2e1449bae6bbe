"""Rows of a virtual comparison: an algorithm and a number of trainers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from ..record import ComparisonPart
from ..statistics import Paired, paired_difference
from ..variants import REFERENCE
from .plan import VirtualPlan
from .result import CurvePoint, VirtualResult


class VirtualRow(ComparisonPart):
    """One algorithm with a number of trainers: means over its seeds.

    `ne_difference` is from one trainer, paired by seed. `examples_per_second` counts virtual seconds.
    """

    label: str
    trainers: int
    finished: int
    missing: int
    ne: float | None
    ne_deviation: float | None
    ne_difference: Paired | None
    training_ne: float | None
    auc: float | None
    gap_mean: float | None
    early_rounds: float | None
    staleness: float | None
    divergence: float | None
    seconds: float | None
    examples_per_second: float | None
    sync_bytes: float | None
    curves: list[list[CurvePoint]]


def summarize_virtual(plan: VirtualPlan, results: Mapping[str, VirtualResult]) -> list[VirtualRow]:
    """Summarize all variants, the reference first, then by algorithm and number of trainers."""
    variants = [(REFERENCE, 1), *((label, count) for label in plan.labels for count in plan.trainers)]
    return [_row(plan, results, label, count) for label, count in variants]


def _row(plan: VirtualPlan, results: Mapping[str, VirtualResult], label: str, trainers: int) -> VirtualRow:
    runs = [run for run in plan.runs if (run.label, run.trainers) == (label, trainers)]
    by_seed = {run.seed: results[run.name] for run in runs if run.name in results}
    found = list(by_seed.values())
    of_one = [run for run in plan.runs if run.label == REFERENCE and run.name in results]
    alone = {run.seed: results[run.name].ne for run in of_one}
    pairs = [(result.ne, alone.get(seed)) for seed, result in by_seed.items() if label != REFERENCE]
    known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    scores = [result.ne for result in found if result.ne is not None]
    return VirtualRow(
        label=label,
        trainers=trainers,
        finished=len(found),
        missing=len(runs) - len(found),
        ne=_mean(found, lambda result: result.ne),
        ne_deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        ne_difference=paired_difference(*zip(*known, strict=True)) if known else None,
        training_ne=_mean(found, lambda result: result.training_ne),
        auc=_mean(found, lambda result: result.auc),
        gap_mean=_mean(found, lambda result: result.gap_mean),
        early_rounds=_mean(found, lambda result: statistics.fmean(result.early_rounds)),
        staleness=_mean(found, lambda result: result.staleness),
        divergence=_mean(found, lambda result: result.divergence),
        seconds=_mean(found, lambda result: result.seconds),
        examples_per_second=_mean(found, lambda result: result.examples / result.seconds),
        sync_bytes=_mean(found, lambda result: result.sync_bytes),
        curves=[result.curve for result in found],
    )


def _mean(found: Sequence[VirtualResult], get: Callable[[VirtualResult], float | None]) -> float | None:
    values = [value for result in found if (value := get(result)) is not None]
    return statistics.fmean(values) if values and len(values) == len(found) else None
