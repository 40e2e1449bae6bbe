"""Rows of a virtual comparison: an algorithm and a number of trainers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pydantic import Field

from ..comparison.record import ComparisonPart
from ..comparison.statistics import Paired, paired_difference
from ..comparison.variants import REFERENCE
from .plan import VirtualPlan
from .result import CurvePoint, VirtualLabel, VirtualResult

BySeed: TypeAlias = Mapping[int, VirtualResult]
AnyLabel: TypeAlias = VirtualResult | VirtualLabel


class VirtualQuality(ComparisonPart):
    """Quality of one label: means over a variant's seeds.

    `ne_difference` is from one trainer, paired by seed.
    """

    ne: float | None
    ne_deviation: float | None
    ne_difference: Paired | None
    training_ne: float | None
    auc: float | None


class VirtualRow(VirtualQuality):
    """One algorithm with a number of trainers: means over its seeds.

    `examples_per_second` counts virtual seconds. Of several labels the quality is that of the first, and
    `labels` has that of each by its name.
    """

    label: str
    trainers: int
    finished: int
    missing: int
    gap_mean: float | None
    early_rounds: float | None
    staleness: float | None
    divergence: float | None
    seconds: float | None
    examples_per_second: float | None
    sync_bytes: float | None
    curves: list[list[CurvePoint]]
    labels: dict[str, VirtualQuality] = Field(default_factory=dict)


def summarize_virtual(plan: VirtualPlan, results: Mapping[str, VirtualResult]) -> list[VirtualRow]:
    """Summarize all variants, the reference first, then by algorithm and number of trainers."""
    variants = [(REFERENCE, 1), *((label, count) for label in plan.labels for count in plan.trainers)]
    return [_row(plan, results, label, count) for label, count in variants]


def _row(plan: VirtualPlan, results: Mapping[str, VirtualResult], label: str, trainers: int) -> VirtualRow:
    runs = [run for run in plan.runs if (run.label, run.trainers) == (label, trainers)]
    by_seed = {run.seed: results[run.name] for run in runs if run.name in results}
    finished = list(by_seed.values())
    of_one = [run for run in plan.runs if run.label == REFERENCE and run.name in results]
    alone = {run.seed: results[run.name] for run in of_one} if label != REFERENCE else {}
    every = [result.labels for result in (*finished, *alone.values())]
    # Those that all runs have.
    names = [name for name in every[0] if all(name in labels for labels in every)] if finished else []
    return VirtualRow(
        label=label,
        trainers=trainers,
        finished=len(finished),
        missing=len(runs) - len(finished),
        **dict(_quality(by_seed, alone, lambda result: result)),
        gap_mean=_mean(finished, lambda result: result.gap_mean),
        early_rounds=_mean(finished, lambda result: statistics.fmean(result.early_rounds)),
        staleness=_mean(finished, lambda result: result.staleness),
        divergence=_mean(finished, lambda result: result.divergence),
        seconds=_mean(finished, lambda result: result.seconds),
        examples_per_second=_mean(finished, lambda result: result.examples / result.seconds),
        sync_bytes=_mean(finished, lambda result: result.sync_bytes),
        curves=[result.curve for result in finished],
        labels={name: _of_label(by_seed, alone, name) for name in names},
    )


def _of_label(by_seed: BySeed, alone: BySeed, name: str) -> VirtualQuality:
    return _quality(by_seed, alone, lambda result: result.labels[name])


def _quality(by_seed: BySeed, alone: BySeed, of: Callable[[VirtualResult], AnyLabel]) -> VirtualQuality:
    """Return the quality of one label; `of` takes its figures from a result."""
    results = list(by_seed.values())
    pairs = [(of(result).ne, of(alone[seed]).ne) for seed, result in by_seed.items() if seed in alone]
    known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    scores = [ne for result in results if (ne := of(result).ne) is not None]
    return VirtualQuality(
        ne=_mean(results, lambda result: of(result).ne),
        ne_deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        ne_difference=paired_difference(*zip(*known, strict=True)) if known else None,
        training_ne=_mean(results, lambda result: of(result).training_ne),
        auc=_mean(results, lambda result: of(result).auc),
    )


def _mean(results: Sequence[VirtualResult], get: Callable[[VirtualResult], float | None]) -> float | None:
    values = [value for result in results if (value := get(result)) is not None]
    return statistics.fmean(values) if values and len(values) == len(results) else None
