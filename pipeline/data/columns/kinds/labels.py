"""Labels, by one of four rules."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from ....config.columns import ColumnSection
from ....config.towers import says_whether_there
from ....errors import JobFileError
from ....types import Float64Array
from ..fields import compared, equals_any, is_text, null_mask
from ..label_expression import LabelExpression
from .base import ColumnValues
from .chunk import ColumnChunk, ColumnFault

_NO_LABEL: Final = "missing, and each row needs a label"


class LabelValues(ColumnValues):
    """Kind "label": 1.0 or 0.0; every row needs one."""

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        if section.positive:
            labels = _by_values(chunk, name, section)
        elif (expression := chunk.settings.expressions.get(name)) is not None:
            labels = _by_expression(chunk, name, section, expression)
        elif section.threshold is not None:
            values = chunk.numbers_or_nan(name)
            chunk.fault(name, "not numeric", np.isnan(values))
            labels = (values >= section.threshold).astype(np.float64)
        else:
            values = chunk.numbers_or_nan(name)
            remedy = f'name the values that count as 1: {name} = {{ kind = "label", positive = [...] }}'
            chunk.fault(name, "neither 0 nor 1", (values != 0) & (values != 1), remedy)
            labels = np.nan_to_num(values)
        chunk.labels.append(labels.astype(np.float32))


def _by_values(chunk: ColumnChunk, name: str, section: ColumnSection) -> Float64Array:
    column, rules = chunk.column(name), chunk.settings.rules
    missing = null_mask(column)
    positive, known = compared(column, section.positive, rules)
    if section.negative:
        known = positive | equals_any(column, section.negative, rules)
    chunk.fault(name, _NO_LABEL, missing)
    if section.negative:
        chunk.fault(name, "neither its positive nor its negative values", ~known & ~missing)
    else:
        # Otherwise a label that no row can have would count as 0.
        kind = "a text" if is_text(column.type) else f"of type {column.type}"
        like = ", ".join(map(repr, section.positive[:3]))
        remedy = f"give positive the values as they are in the data: {name} = {{ ..., positive = [...] }}"
        chunk.fault(name, f"{kind} that cannot be one of positive ({like})", ~known & ~missing, remedy)
    return positive.astype(np.float64)


def _by_expression(
    chunk: ColumnChunk, name: str, section: ColumnSection, expression: LabelExpression
) -> Float64Array:
    column = chunk.column(name)
    missing = null_mask(column)
    if section.type == "number":
        values = chunk.numbers_or_nan(name)
        seen, missing = pa.array(values), np.isnan(values)
        chunk.fault(name, "not numeric", missing)
    else:
        seen = column if is_text(column.type) else column.cast(pa.string())
    try:
        labels = expression.labels(seen)
    except ValueError as error:
        raise JobFileError(f"data.columns.{name}.expression: {error}") from error
    chunk.fault(name, "neither true nor false by its expression", ~missing & (labels != 0) & (labels != 1))
    if says_whether_there(section):
        # Nobody wrote such a label: it is the item's.
        why = "missing, and each row needs an item"
        chunk.add_fault(ColumnFault(section.source, section.source, why, missing))
    else:
        chunk.fault(name, _NO_LABEL, missing)
    return np.nan_to_num(labels)
