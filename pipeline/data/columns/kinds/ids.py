"""Columns with a table: single ids, buckets of numbers, crosses and bags of ids."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ....config.columns import TIME_PARTS, ColumnSection
from ....types import IndexArray
from ...hashing import hash_combinations, hashes_of_rows
from ..fields import is_number, is_text, null_mask, plain_type
from ..id_lists import IdBags
from ..time_values import parse_times, rows_of_time_part
from .base import ColumnValues
from .chunk import ColumnChunk, ColumnFault
from .numbers import MAX_WEIGHT
from .times import add_time_faults

_TO_IDS = (
    "convert them to texts, or to integers of at most 64 bits, or use kind bucket, with boundaries = [1] for"
    " true and false"
)


class CategoricalValues(ColumnValues):
    """Kind "categorical": an id, or the row of a part of a time.

    Ids are hashed already, missing ones as the empty text. The hash of a part of a time stands for its row;
    a missing time has the last one.
    """

    expected: ClassVar[str] = "texts or integers"

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        if section.part is None:
            return
        column = chunk.column(name)
        times = parse_times(column, section.format)
        add_time_faults(chunk, name, section, np.isnan(times) & ~null_mask(column))
        _add_rows(chunk, name, section, rows_of_time_part(times, section.part))

    def fits(self, of: pa.DataType) -> bool:
        return is_text(of) or pa.types.is_integer(of)

    def remedy(self, of: pa.DataType) -> str:
        return _TO_IDS if is_number(of) else ""

    def description(self, section: ColumnSection) -> str:
        if section.part is None:
            return ""
        numbers = TIME_PARTS[section.part]
        first, last = numbers[0], numbers[-1]
        return f"{section.part} in UTC, {first} to {last}, less {first}; {len(numbers)} where missing"


class BucketValues(ColumnValues):
    """Kind "bucket": how many boundaries a number is above; a missing number has the last row."""

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        column = chunk.column(name)
        missing, numbers = null_mask(column), chunk.settings.rules.numbers(column)
        chunk.fault(name, "not numeric", np.isnan(numbers))
        rows = np.searchsorted(np.array(section.boundaries), numbers, side="right")
        _add_rows(chunk, name, section, np.where(missing, (section.fixed_rows or 1) - 1, rows))

    def description(self, section: ColumnSection) -> str:
        boundaries = ", ".join(f"{number:g}" for number in section.boundaries)
        return f"how many of {boundaries} are at most x; {len(section.boundaries) + 1} where missing"


class CrossValues(ColumnValues):
    """Kind "cross": the combinations of other columns' ids, which are parsed before."""

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        parts = [chunk.cross_keys[part].astype(np.uint64, copy=False) for part in section.columns]
        chunk.hashes[name] = hash_combinations(chunk.settings.hash_column(name), parts)

    def description(self, section: ColumnSection) -> str:
        return f"combination of {', '.join(section.columns)}"


class MultiHotValues(ColumnValues):
    """Kind "multi_hot": bags of ids, perhaps with a weight for each."""

    expected: ClassVar[str] = "lists of texts or integers, or delimited texts"

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        rules, delimiter = chunk.settings.rules, section.delimiter
        bags = IdBags.of(
            chunk.column(name),
            rules,
            delimiter=delimiter,
            max_ids=section.max_ids,
            keeps_last=section.keep == "last",
        )
        hashes, lengths = bags.hashes(chunk.settings.hash_column(name))
        if not section.weights:
            chunk.add_bags(name, hashes, lengths)
            return
        weights = bags.weights(chunk.column_of_file(section.weights), rules, delimiter)
        for what, rows in (
            (f"of another length than the list of {chunk.settings.source_of(name)}", weights.unlike),
            ("below 0 or not numeric", weights.rows_where(~(weights.values >= 0))),
            (f"above {MAX_WEIGHT:g}", weights.rows_where(weights.values > MAX_WEIGHT)),
        ):
            chunk.add_fault(ColumnFault(f"{name}.weights", section.weights, what, rows))
        chunk.add_bags(name, hashes, lengths, weights.usable(MAX_WEIGHT))

    def fits(self, of: pa.DataType) -> bool:
        lists = pa.types.is_list(of) or pa.types.is_large_list(of)
        inner = plain_type(of.value_type) if lists else of
        return is_text(inner) or (lists and (pa.types.is_integer(inner) or pa.types.is_null(inner)))

    def exported(self, section: ColumnSection) -> dict[str, Any]:
        last = {"keep": "last"} if section.keep == "last" else {}
        return {"delimiter": section.delimiter, "max_ids": section.max_ids, **last}


def _add_rows(chunk: ColumnChunk, name: str, section: ColumnSection, rows: IndexArray) -> None:
    """Add the rows of a table that has one for each value, as hashes that stand for them."""
    chunk.cross_keys[name] = rows
    chunk.hashes[name] = hashes_of_rows(rows, section.fixed_rows or 1)
