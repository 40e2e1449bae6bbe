"""Boundaries of buckets by quantiles, from a sample of the training part.

Boundaries are computed once, when a job file is loaded, so that the run and its models have the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ..config.columns import ColumnSection
from ..config.data import DataSection
from ..config.job import Job
from ..data.bad_rows import UnreportedBadRows
from ..errors import DataError
from ..input.job_input import JobInput
from ..input.plan import plan_input
from ..input.sample import spread

SAMPLED_ROWS: Final = 1 << 17
"""Most rows of the sample; they are the first ones of some spans, and of others where these have too few."""
_SAMPLED_SPANS: Final = 16


def fill_boundaries(columns: Mapping[str, Any], prepared: Mapping[str, Any]) -> None:
    """Give buckets by quantiles the boundaries of a prepared folder's columns.

    `columns` is the table of a job file, not validated yet; its values are changed in place. `prepared` has
    the columns of the folder's manifest.
    """
    for name, value in columns.items():
        if _is_open(value) and (boundaries := prepared.get(name, {}).get("boundaries")):
            value["boundaries"] = boundaries


def compute_boundaries(tree: Mapping[str, Any]) -> None:
    """Give buckets by quantiles their boundaries, in place.

    `tree` is a job that is not validated yet; a wrong one is left unchanged. Raises DataError for files that
    cannot be used, and for a column whose values cannot be cut.
    """
    data = tree.get("data")
    columns = data.get("columns") if isinstance(data, dict) else None
    if not isinstance(columns, dict) or not any(map(_is_open, columns.values())):
        return
    try:
        section = DataSection.model_validate(data)
        open_columns = {name: column for name, column in section.columns.items() if _is_open(columns[name])}
        # Its other sections say which labels and columns the data may have.
        job = Job.model_validate({**tree, "data": _as_numbers(section, open_columns)})
    except ValidationError:
        # The validation of the whole job will say what is wrong.
        return
    values = _sample(job, open_columns)
    for name, column in open_columns.items():
        assert column.quantiles is not None
        boundaries = quantile_boundaries(values[name], column.quantiles)
        if not boundaries:
            said = "one value only" if len(values[name]) else "no value"
            raise DataError(
                f"column {column.source or name} has {said} in the sample of the training part: {name} cannot"
                " be cut into buckets",
                where=", ".join(section.path),
                remedy="give boundaries, or leave the column out",
            )
        columns[name]["boundaries"] = boundaries


def quantile_boundaries(values: NDArray[np.float32], count: int) -> list[float]:
    """Return rising numbers that cut `values` into at most `count` buckets.

    The buckets are about equal in size. Each number is one of the values, except the least, as the shortest
    decimal that gives the same float32.
    """
    if not len(values):
        return []
    cuts = np.unique(np.quantile(values, np.arange(1, count) / count, method="higher"))
    return [float(str(np.float32(cut))) for cut in cuts if cut > values.min()]


def _is_open(value: Any) -> bool:
    """Return whether an entry of [data.columns] has quantiles and no boundaries."""
    return isinstance(value, dict) and bool(value.get("quantiles")) and not value.get("boundaries")


def _sample(job: Job, columns: Mapping[str, ColumnSection]) -> dict[str, NDArray[np.float32]]:
    """Return the columns' values, without missing ones, in some rows of the training part.

    Bad rows are left out, as in training.
    """
    source, spans = JobInput(job), plan_input(job).train
    left = SAMPLED_ROWS
    parts: list[NDArray[np.float32]] = []
    for span, share in spread(spans, _SAMPLED_SPANS):
        limit, rows = min(SAMPLED_ROWS // share, left), 0
        for chunk in source.chunks(span, UnreportedBadRows()):
            # _as_numbers adds its columns at the end.
            parts.append(chunk.examples.dense[: limit - rows, -2 * len(columns) :].copy())
            rows += len(parts[-1])
            if rows >= limit:
                break
        left -= rows
        if left <= 0:
            break
    dense = np.concatenate(parts) if parts else np.zeros((0, 2 * len(columns)), np.float32)
    triples = zip(columns, dense[:, ::2].T, dense[:, 1::2].T, strict=True)
    return {name: values[(values != 0) | (shifted != 0)] for name, values, shifted in triples}


def _as_numbers(data: DataSection, open_columns: Mapping[str, ColumnSection]) -> DataSection:
    """Return a section with two more dense columns for each wanted one.

    The columns are x and x + 1; only a missing value is 0 in both.
    """
    cut = {name: column.model_copy(update={"boundaries": [0.0]}) for name, column in open_columns.items()}
    columns = dict(data.columns) | cut
    for name, column in open_columns.items():
        for shift in (0.0, -1.0):
            columns[f"{name} {shift}"] = ColumnSection(
                kind="dense", source=column.source or name, transform="none", shift=shift
            )
    return data.model_copy(update={"columns": columns, "prepared": ""})
