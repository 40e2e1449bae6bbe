"""Bad rows are counted, the first kept in printable form, and too many of them stop the job."""

from __future__ import annotations

import pytest
from shadowsync.pipeline.data.bad_rows import SAMPLES_KEPT, BadRow, BadRows, printable, too_many_bad_rows
from shadowsync.pipeline.errors import DataError
from shadowsync.tests.support.data.schemas import schema_job


def test_the_first_are_kept_and_all_are_counted() -> None:
    asked: list[int] = []

    def line(number: int) -> int:
        asked.append(number)
        return number

    bad_rows = BadRows(limit=100)
    for number in range(20):
        bad_rows.add("a.tsv", lambda number=number: line(number), "why", b"text")  # type: ignore[misc]
    assert bad_rows.count == 20
    assert bad_rows.first == [BadRow("a.tsv", number, "why", "text") for number in range(SAMPLES_KEPT)]
    assert asked == list(range(SAMPLES_KEPT)), "a line number that nobody sees was looked up"


def test_past_the_limit_it_stops_and_says_all_that_helps() -> None:
    bad_rows = BadRows(limit=2)
    bad_rows.add("a.tsv", lambda: 7, "5 columns, not 6", b"x\ty")
    bad_rows.add("a.tsv", lambda: 8, "why", b"")
    with pytest.raises(DataError) as caught:
        bad_rows.add("b.tsv", lambda: 1, "why", b"")
    text = str(caught.value)
    assert bad_rows.count == 3
    for part in (
        "3 malformed rows",
        "a.tsv:7: 5 columns, not 6",
        "data.max_bad_rows = 2",
        "raise data.max_bad_rows",
        "b.tsv",
    ):
        assert part in text
    assert "\n" not in text


def test_the_limit_holds_for_each_pass() -> None:
    bad_rows = BadRows(limit=1)
    bad_rows.add("a.tsv", lambda: 7, "why", b"")
    bad_rows.passes = 2
    bad_rows.add("a.tsv", lambda: 7, "why", b"")
    with pytest.raises(
        DataError, match=r"3 malformed rows, more than data.max_bad_rows = 1 in each of 2 epochs; "
    ):
        bad_rows.add("a.tsv", lambda: 8, "why", b"")


def test_a_fraction_of_all_rows_is_a_limit_too() -> None:
    data = schema_job("a.csv", max_bad_rows=100, max_bad_fraction=0.01).data
    assert too_many_bad_rows(0, 0, data) == ""
    assert too_many_bad_rows(10, 1000, data) == ""
    reported = "11 malformed rows, 1.1% of 1,000 rows; data.max_bad_fraction allows 0.01 of them"
    assert too_many_bad_rows(11, 1000, data) == reported
    assert too_many_bad_rows(101, 10**6, data) == "101 malformed rows; data.max_bad_rows allows 100"
    assert too_many_bad_rows(300, 10**6, data, 3) == "", "each pass meets the same rows again"
    said = "301 malformed rows; data.max_bad_rows allows 100 in each of 3 epochs"
    assert too_many_bad_rows(301, 10**6, data, 3) == said
    # One of the first few rows says nothing of a longer input, and all of it does.
    assert too_many_bad_rows(1, 50, data, whole=False) == ""
    assert "2.0% of 50 rows" in too_many_bad_rows(1, 50, data)
    assert too_many_bad_rows(11, 1000, data, whole=False) == reported
    everything = data.model_copy(update={"max_bad_fraction": 1.0})
    assert too_many_bad_rows(100, 100, everything) == ""


@pytest.mark.parametrize("text", [b"\x1b[31mred\x07", b"\xff\xfe", "ä€".encode(), b"a\tb\r\n", b"x" * 10**6])
def test_text_is_cut_and_harmless(text: bytes) -> None:
    shown = printable(text)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(shown) <= 80
