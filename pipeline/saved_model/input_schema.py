"""What of a job's columns a model needs to score a row: neither a label, nor a weight, nor a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..config.data import ColumnSection
from ..config.data_section import DataSection
from ..config.job import Job
from ..data.id_classes import IdClass
from ..data.record_schema import RecordSchema
from ..data.schema import LABEL

_NOT_INPUT = ("label", "weight", "timestamp", "ignored")


@dataclass(frozen=True)
class InputSchema:
    """The schemas of one model. One thread at a time.

    Attributes:
        inputs: of the columns that the model sees; a file without the others has all that it needs.
        label: of the label's column alone.
        label_source: that column, as files call it.
        places: the columns of a file without a header, in order.
        data: how files are written: their format, delimiter, quotes.
        id_classes: what ids training saw in each column of a file, where that is known.
    """

    inputs: RecordSchema
    label: RecordSchema
    label_source: str
    places: list[str]
    data: DataSection
    id_classes: Mapping[str, IdClass]


def input_schema(job: Job, id_classes: Mapping[str, IdClass]) -> InputSchema:
    """Of a job with or without [data.columns]; `id_classes` by the name of the column in the job. Raises
    JobFileError for an expression that cannot be used."""
    data = job.data if job.data.columns else _implied(job.data)
    label = next(name for name, column in data.columns.items() if column.kind == "label")
    seen = {name: column for name, column in data.columns.items() if column.kind not in _NOT_INPUT}
    return InputSchema(
        inputs=RecordSchema(data.model_copy(update={"columns": seen}), job.table_rows),
        label=RecordSchema(data.model_copy(update={"columns": {label: data.columns[label]}}), ()),
        label_source=data.columns[label].source or label,
        places=[name for name, column in data.columns.items() if column.source in ("", name)],
        data=data,
        id_classes={data.columns[name].source or name: found for name, found in id_classes.items()},
    )


def _implied(data: DataSection) -> DataSection:
    """The same as columns: a label, numbers I1, I2, ... and ids C1, C2, ..."""
    columns = {LABEL: ColumnSection(kind="label")}
    columns |= {f"I{at + 1}": ColumnSection(kind="dense") for at in range(data.dense_features)}
    columns |= {f"C{at + 1}": ColumnSection(kind="categorical") for at in range(data.categorical_features)}
    text = {"format": "tsv", "header": False, "quote": "", "missing": [""], "strip": False, "delimiter": ""}
    return data.model_copy(update={"columns": columns} | (text if data.format == "criteo_tsv" else {}))
