"""The report's figures of the workers' copies of hot rows."""

from __future__ import annotations

from ..pipeline.config.job import Job
from ..pipeline.report.model import RowCacheUse
from .job_ledger import total
from .outcome import Answers


def cache_report(job: Job, counts: Answers) -> RowCacheUse | None:
    """Sum the last counts of all trainers; None if the job has no cache."""
    if not job.trainer.cache_rows:
        return None
    hits, misses = total(counts, "cache_hits"), total(counts, "cache_misses")
    return RowCacheUse(
        rows=job.trainer.cache_rows,
        staleness=job.trainer.cache_staleness,
        hits=hits,
        misses=misses,
        hit_rate=hits / (hits + misses) if hits + misses else None,
        refreshed=total(counts, "cache_refreshed"),
        spared_bytes=total(counts, "cache_spared_bytes"),
    )
