"""The summary of a comparison: a row per variant."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from pydantic import Field

from .record import UNKNOWN, Comparison, ComparisonPart, Figures, LabelFigures, VariantRecord
from .statistics import Conclusion, Paired, paired_difference, paired_ratio
from .variants import REFERENCE

Get = Callable[[Figures], float | None]


class Quality(ComparisonPart):
    """NE and AUC of one label: means over a variant's seeds.

    `ne_difference` and `auc_difference` are from one trainer, paired by seed, and None if no seed has both.
    """

    ne: float | None
    ne_difference: Paired | None
    ne_verdict: Conclusion | None
    auc: float | None
    auc_difference: Paired | None
    auc_verdict: Conclusion | None


class Row(Quality):
    """One variant: means over its seeds; `gap_max` is the maximum.

    `speed_ratio` is over `none` with as many trainers, paired by seed, and None if no seed has both. Of
    several labels NE and AUC are those of the first, and `labels` has those of each by its name.
    """

    label: str
    variant: VariantRecord = Field(validation_alias="cell", serialization_alias="cell")
    finished: int
    failed: list[str]
    died: int
    ledger_adds_up: bool
    model: str | None
    examples_per_second: float | None
    speed_ratio: Paired | None
    cpu_seconds_per_million: float | None
    sync_bytes: float | None
    rounds: float | None
    round_seconds: float | None
    gap_mean: float | None
    gap_max: float | None
    divergence: float | None
    relay_cpu_seconds: float | None
    labels: dict[str, Quality] = Field(default_factory=dict)


def summarize(comparison: Comparison) -> list[Row]:
    """Summarize each variant, in the order requested, the reference first."""
    baseline = next((c.label for c in comparison.variants if _is_plain_none(c)), None)
    return [_row(comparison, variant, baseline) for variant in comparison.variants]


def _is_plain_none(variant: VariantRecord) -> bool:
    return variant.algorithm == "none" and variant.label != REFERENCE


def _row(comparison: Comparison, variant: VariantRecord, baseline: str | None) -> Row:
    runs = comparison.of(variant.label)
    figures = [run.figures for run in runs if run.figures is not None]
    label = variant.label
    speed = None
    if baseline is not None and label != baseline and label != REFERENCE:
        speed = _against(comparison, label, baseline, lambda f: f.examples_per_second or None, paired_ratio)
    names = figures[0].labels if figures else {}
    return Row(
        label=label,
        variant=variant,
        finished=len(figures),
        failed=[f"seed {r.seed}: exit code {r.exit_code}, {r.message}" for r in runs if r.status == "failed"],
        died=sum(run.exit_code == 5 for run in runs),
        ledger_adds_up=all(f.ledger_adds_up for f in figures),
        model=figures[0].model if figures else None,
        **dict(_quality(comparison, label, lambda f: f.ne, lambda f: f.auc)),
        examples_per_second=_mean(figures, lambda f: f.examples_per_second),
        speed_ratio=speed,
        cpu_seconds_per_million=_mean(figures, lambda f: f.cpu_seconds_per_million),
        sync_bytes=_mean(figures, lambda f: f.sync_bytes),
        rounds=_mean(figures, lambda f: f.rounds),
        round_seconds=_mean(figures, lambda f: f.round_seconds),
        gap_mean=_mean(figures, lambda f: f.gap_mean),
        gap_max=max((f.gap_max for f in figures if f.gap_max is not None), default=None),
        divergence=_mean(figures, lambda f: f.divergence),
        relay_cpu_seconds=_mean(figures, lambda f: f.relay_cpu_seconds),
        labels={name: _of_label(comparison, label, name) for name in names},
    )


def _of_label(comparison: Comparison, label: str, name: str) -> Quality:
    def get(figures: Figures) -> LabelFigures:
        return figures.labels.get(name, UNKNOWN)

    return _quality(comparison, label, lambda f: get(f).ne, lambda f: get(f).auc)


def _quality(comparison: Comparison, label: str, get_ne: Get, get_auc: Get) -> Quality:
    """Return a variant's NE and AUC, without differences for the reference."""
    figures = [run.figures for run in comparison.of(label) if run.figures is not None]
    ne = auc = None
    if label != REFERENCE:
        ne = _against(comparison, label, REFERENCE, get_ne, paired_difference)
        auc = _against(comparison, label, REFERENCE, get_auc, paired_difference)
    return Quality(
        ne=_mean(figures, get_ne),
        ne_difference=ne,
        ne_verdict=None if ne is None else ne.verdict(0.0, lower_is_better=True),
        auc=_mean(figures, get_auc),
        auc_difference=auc,
        auc_verdict=None if auc is None else auc.verdict(0.0, lower_is_better=False),
    )


def _mean(runs: Sequence[Figures], get: Get) -> float | None:
    """Return the mean; None unless all runs have the figure."""
    values = [value for figures in runs if (value := get(figures)) is not None]
    return statistics.fmean(values) if values and len(values) == len(runs) else None


def _against(
    comparison: Comparison,
    label: str,
    reference: str,
    get: Get,
    compare: Callable[[Sequence[float], Sequence[float]], Paired],
) -> Paired | None:
    theirs = {run.seed: get(run.figures) for run in comparison.of(reference) if run.figures is not None}
    pairs = [
        (mine, other)
        for run in comparison.of(label)
        if run.figures is not None
        and (mine := get(run.figures)) is not None
        and (other := theirs.get(run.seed)) is not None
    ]
    return compare([mine for mine, _ in pairs], [other for _, other in pairs]) if pairs else None
