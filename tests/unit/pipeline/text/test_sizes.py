"""Sizes as people write them."""

from __future__ import annotations

import pytest
from shadowsync.pipeline.text.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64GiB", 64 << 30), ("1.5 TB", 1_500_000_000_000), ("0B", 0), (" 2mib ", 2 << 20), ("3kb", 3000)],
)
def test_sizes_have_units(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "12", "GiB", "-1GiB", "1 PB", "1e3MB", "4Gb4", "9" * 400 + "GB"])
def test_what_is_no_size_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="given; write a size and its unit, such as 64GiB or 500GB"):
        parse_size(text)
