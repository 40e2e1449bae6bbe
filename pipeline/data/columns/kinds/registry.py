"""The values of each kind, by its name in the job file."""

from __future__ import annotations

from typing import Final

from ....config.columns import ColumnSection
from .addresses import IpValues
from .base import ColumnValues
from .chunk import ColumnChunk
from .groups import GroupValues, RowNumberValues
from .ids import BucketValues, CategoricalValues, CrossValues, MultiHotValues
from .labels import LabelValues
from .numbers import DenseValues, WeightValues
from .times import TimestampValues


class IgnoredValues(ColumnValues):
    """Kind "ignored": nothing is read."""

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        del chunk, name, section


VALUES: Final[dict[str, ColumnValues]] = {
    "label": LabelValues(),
    "dense": DenseValues(),
    "categorical": CategoricalValues(),
    "bucket": BucketValues(),
    "cross": CrossValues(),
    "multi_hot": MultiHotValues(),
    "ip": IpValues(),
    "timestamp": TimestampValues(),
    "weight": WeightValues(),
    "group": GroupValues(),
    "row_number": RowNumberValues(),
    "ignored": IgnoredValues(),
}
"""As `config.column_kinds.KINDS`, and in its order."""
