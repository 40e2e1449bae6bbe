"""Every kind of column is declared once, and its values are parsed once."""

from __future__ import annotations

from typing import get_args

import pyarrow as pa
import pytest
from shadowsync.pipeline.config.column_kinds import KINDS, Kind
from shadowsync.pipeline.config.columns import ColumnSection
from shadowsync.pipeline.data.columns.kinds.registry import VALUES


def test_each_kind_is_declared_and_parsed() -> None:
    assert list(KINDS) == list(get_args(Kind)) == list(VALUES)


def test_the_options_of_kinds_are_keys_of_a_column() -> None:
    options = {option for kind in KINDS.values() for option in kind.options}
    assert options | {"kind", "source"} == set(ColumnSection.model_fields)


@pytest.mark.parametrize("name", KINDS)
def test_what_reads_numbers_says_so(name: str) -> None:
    """Each kind states types that it reads, and reads texts of a file without types."""
    values = VALUES[name]
    assert values.fits(pa.string())
    assert values.fits(pa.float32()) == ("numbers" in values.expected)
