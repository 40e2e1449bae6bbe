"""The coordinator's plans before any node joins.

The plans are the size of the input and the placement of the rows. Both functions open files, so a loop calls
them on another thread. Imports no torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

import numpy as np

from ....pipeline.config.data import SplitSection
from ....pipeline.config.job import Job
from ....pipeline.data.batch import Batch
from ....pipeline.data.formats.parquet import row_groups
from ....pipeline.data.span import Span
from ....pipeline.embedding.placement.plan import TablePlan
from ....pipeline.embedding.placement.row_costs import (
    CountedRowCosts,
    LookupTraffic,
    RowCostModel,
    TimedRowCosts,
    table_cost,
)
from ....pipeline.embedding.placement.split_by_cost import split_by_cost
from ....pipeline.embedding.placement.table_access import AccessCounter
from ....pipeline.errors import DataError
from ....pipeline.input.sample import take_sample
from ...control.progress import InputSize
from ..state.placement import TablePlacement, TableProfile

SAMPLE_EXAMPLES: Final = 8192
SAMPLE_BYTES: Final = 32 << 20
SAMPLE_SECONDS: Final = 1.0
PRICING_SECONDS: Final = 0.2
CODED_FLOATS: Final = 1024
FIRST_LINES_BYTES: Final = 1 << 18

log = logging.getLogger(__name__)


def estimate_input(
    spans: Sequence[Span], epochs: int, split: SplitSection, negative_share: float = 1.0
) -> InputSize:
    """Estimate the number of examples from the files.

    Parquet states its rows; text is estimated from its first lines; compressed text stays unknown. A row
    range counts as its length, a drawn part as its fraction of the rows. Where negatives are left out, a
    span must be read before the number is known.

    Opens each Parquet file once. A file that cannot be opened here stays unknown.
    """
    rows = _rows(spans)
    if rows is not None:
        weights = {span.number: _wanted(span, rows[span.number], split) for span in spans}
        drawn = split.by == "last" or any(_share(span, split) < 1 for span in spans)
        exact = negative_share == 1.0 and not drawn
        return InputSize(weights, epochs, 1.0 if negative_share == 1.0 else None, exact=exact)
    per_byte = _examples_per_byte(spans)
    sizes = {span.number: float(max(1, span.stop - span.start)) for span in spans}
    if per_byte is None:
        # Without a line length, the share of a range in its file is unknown.
        weights = {span.number: sizes[span.number] * _share(span, split) for span in spans}
    else:
        weights = {
            span.number: _wanted(span, sizes[span.number] * per_byte, split) / per_byte for span in spans
        }
    return InputSize(weights, epochs, per_byte if negative_share == 1.0 else None, exact=False)


def _share(span: Span, split: SplitSection) -> float:
    """Return the fraction of a span's rows that its part draws."""
    parts = {"": 1.0, "test": split.test, "validation": split.validation}
    return parts.get(span.part, 1.0 - split.test - split.validation)


def _wanted(span: Span, rows: float, split: SplitSection) -> float:
    """Return the expected examples of a span with this many rows.

    A row range contains only good rows of its part.
    """
    if span.last >= 0:
        return float(span.last - span.first)
    return max(0.0, rows * _share(span, split) - span.first)


def _rows(spans: Sequence[Span]) -> dict[int, int] | None:
    """Return each span's rows by number; None if a file does not state them."""
    if not spans or any(span.kind not in ("row_groups", "sorted") for span in spans):
        return None
    try:
        paths = dict.fromkeys(span.path for span in spans if span.kind == "row_groups")
        groups = {path: row_groups(path, lambda _: None).rows for path in paths}
    except DataError:
        return None
    return {
        span.number: span.stop - span.start
        if span.kind == "sorted"
        else sum(groups[span.path][span.start : span.stop])
        for span in spans
    }


def _examples_per_byte(spans: Sequence[Span]) -> float | None:
    """Estimate examples per byte from the first lines of the first plain text file."""
    plain = next((span.path for span in spans if span.kind == "bytes" and os.path.isfile(span.path)), None)
    if plain is None:
        return None
    with open(plain, "rb") as file:
        sample = file.read(FIRST_LINES_BYTES)
    end = sample.rfind(b"\n") + 1
    return sample.count(b"\n") / end if end else None


def place_tables(job: Job, spans: Sequence[Span], saved: TablePlan | None = None) -> TablePlacement:
    """Find the plan as `embedding.placement` says.

    `saved` is the plan of a resumed run's checkpoint. Reads a sample of the input and times some rows, for
    about SAMPLE_SECONDS and PRICING_SECONDS. With `run.deterministic` it reads no clock: the sample and the
    costs are then always the same. Raises JobFileError like `TablePlan.of_ranges`.
    """
    if saved is not None:
        return TablePlacement(saved, "kept", memory_bytes=job.embedding.memory_bytes)
    nodes, tables = job.embedding.nodes, job.tables
    if nodes == 1 or job.embedding.placement == "rows":
        return TablePlacement.by_rows(job)
    counter = _sampled(job, spans)
    if not counter.examples:
        log.warning("no example of the input could be sampled, so the tables are split by their rows")
        return TablePlacement.by_rows(job)
    prices: RowCostModel = (
        CountedRowCosts() if job.run.deterministic else TimedRowCosts.measure(PRICING_SECONDS)
    )
    traffic = _traffic(job)
    profiles = tuple(
        TableProfile(access, table_cost(table, access, prices, traffic))
        for table, access in zip(tables, counter.result(), strict=True)
    )
    loads = [profile.load(table) for profile, table in zip(profiles, tables, strict=True)]
    plan = TablePlan.of_ranges(tables, nodes, split_by_cost(tables, loads, nodes))
    return TablePlacement(
        plan,
        "counted" if job.run.deterministic else "measured",
        profiles,
        counter.examples,
        job.embedding.memory_bytes,
    )


def _traffic(job: Job) -> LookupTraffic:
    """Return what the job's trainers look up."""
    vector, link = np.ones(CODED_FLOATS, np.float32), job.codecs.embedding()
    coded = sum(len(codec.encode(vector)) for codec in (link.up, link.down))
    return LookupTraffic(distinct=job.requests_distinct_rows, float_bytes=coded / 2 / CODED_FLOATS)


def _sampled(job: Job, spans: Sequence[Span]) -> AccessCounter:
    counter = AccessCounter(job.tables)

    def add(batch: Batch) -> bool:
        counter.add(batch)
        return counter.bytes < SAMPLE_BYTES

    seconds = None if job.run.deterministic else SAMPLE_SECONDS
    take_sample(job, spans, add, examples=SAMPLE_EXAMPLES, seconds=seconds)
    return counter
