"""Numbers that a model sees, and weights of examples."""

from __future__ import annotations

from typing import Final

import numpy as np

from ....config.columns import ColumnSection
from ....types import Float32Array
from ..column_groups import scaled_numbers
from ..fields import null_mask
from ..time_values import parse_times
from .base import ColumnValues
from .chunk import ColumnChunk
from .times import add_time_faults

MAX_WEIGHT: Final = 1e30
"""With weights up to this, sums over a batch and products with the loss are finite in float32."""


class DenseValues(ColumnValues):
    """Kind "dense": 0.0 where missing."""

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        if section.has_times:
            column = chunk.column(name)
            missing = null_mask(column)
            values = np.where(missing, 0.0, parse_times(column, section.format))
            add_time_faults(chunk, name, section, np.isnan(values))
            seen: Float32Array = scaled_numbers(values[None], missing[None], [section])[0]
        else:
            numbers = chunk.numbers[name]
            chunk.fault(name, "not numeric", numbers.wrong)
            seen, missing = numbers.seen, numbers.missing
        chunk.missing[name] = missing
        chunk.fault(name, "beyond the range of float32", ~np.isfinite(seen))
        chunk.dense.append(seen)

    def description(self, section: ColumnSection) -> str:
        shifted = section.shift or section.scale != 1.0
        y = f"y = (x - {section.shift:g}) / {section.scale:g}" if shifted else "y = x"
        rule = "sign(y) log(1 + |y|)" if section.transform == "log" else "y"
        of = ", x in seconds since 1970" if section.has_times else ""
        return f"{rule}, {y}{of}; 0 where missing"


class WeightValues(ColumnValues):
    """Kind "weight": from 0 to MAX_WEIGHT; every row needs one."""

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        del section
        values = chunk.numbers_or_nan(name)
        chunk.fault(name, "below 0 or not numeric", ~(values >= 0))
        chunk.fault(name, f"above {MAX_WEIGHT:g}", values > MAX_WEIGHT)
        chunk.weights = np.nan_to_num(values).astype(np.float32)
