"""Comparisons to test with, made of reports that no run wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from shadowsync.lab.comparison.plan import make_plan
from shadowsync.lab.comparison.record import Comparison, Figures
from shadowsync.lab.comparison.variants import parse_variants
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.report.document import (
    Curves,
    ExampleCounts,
    Hardware,
    Replicas,
    Report,
    Staleness,
    Sync,
    Throughput,
)
from shadowsync.pipeline.report.ledger import Identity, Ledger
from shadowsync.pipeline.report.quality import Evaluation, Train

SYNC = Sync(algorithm="easgd", mode="shadow", rounds=5, gap_mean=4.0, gap_max=9, bytes=2048, seconds_mean=0.1)
Scores = dict[str, Sequence[float | None]]


@pytest.fixture
def base(tmp_path: Path) -> Job:
    """A job that is never run."""
    tree = {
        "run": {"name": "base", "seed": 4, "directory": str(tmp_path)},
        "data": {"format": "parquet", "path": ["/x"]},
        "trainer": {"count": 2, "batch": 100},
    }
    return Job.model_validate(tree)


@pytest.fixture
def make_report() -> Callable[..., Report]:
    """A report with an NE, and changes."""

    def make(ne: float | None = 0.8, *, adds_up: bool = True, **changes: Any) -> Report:
        score = Evaluation(model="the center", ne=ne, auc=0.7, logloss=0.4, calibration=1.0, examples=10)
        whole: dict[str, Any] = {
            "run": "r",
            "outcome": "finished",
            "exit_code": 0,
            "started_at": "2024-05-01T12:00:00+00:00",
            "wall_seconds": 9.0,
            "seed": 1,
            "job_digest": "d",
            "model_saved": None,
            "examples": ExampleCounts(
                read=10, distinct=10, trained=10, replayed=0, returned=0, in_flight=0, dropped=0, bad_rows=0
            ),
            "throughput": Throughput(
                examples_per_second=1000.0, per_trainer={}, cpu_seconds_per_million=60.0
            ),
            "train": Train(ne_progressive=0.9),
            "eval": score,
            "sync": SYNC,
            "elp": 200,
            "staleness": Staleness(embedding_mean=None, embedding_max=None),
            "replicas": Replicas(divergence=0.02),
            "ledger": Ledger.of([Identity.of("a = b", 1, 1 if adds_up else 2)], 0, {}),
            "hardware": Hardware(cpu_model="c", cores=2, memory_bytes=1 << 30),
            "versions": {},
            "curves": Curves(ne=[(1.0, 0.9), (2.0, 0.8)], sync_gap={"trainer-0": [(1.0, 3.0), (2.0, 4.0)]}),
        }
        return Report(**(whole | changes))

    return make


@pytest.fixture
def compared(base: Job, tmp_path: Path, make_report: Callable[..., Report]) -> Callable[..., Comparison]:
    """A finished comparison from NEs by label, one a seed; None is a run that failed."""

    def make(scores: Scores, **changes: Any) -> Comparison:
        seeds = len(next(iter(scores.values())))
        folder = tmp_path / f"compare-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        variants = parse_variants(",".join(list(scores)[1:]))
        comparison = make_plan(base, variants, seeds, folder)
        for run in comparison.runs:
            ne = scores[run.label][run.seed - 4]
            if ne is None:
                run.status, run.exit_code, run.message = "failed", 3, "no <file> | there"
            else:
                run.status, run.exit_code = "finished", 0
                run.figures = Figures.of(make_report(ne, **changes), comparison.batch)
        comparison.complete = True
        return comparison

    return make
