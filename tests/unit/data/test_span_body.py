"""Spans on their way from the coordinator to a reader."""

from __future__ import annotations

import pytest
from shadowsync.pipeline.data.span import Span, span_from_body, span_to_body

SPANS = [
    Span(3, "/a/b.tsv", "bytes", 5, 9),
    Span(0, "s3://a/b.csv.gz", "stream", 0, 9, "validation"),
    Span(1, "/a/b.parquet", "row_groups", 2, 4, "train", 7, 99),
    Span(2, "/a/b.csv", "sorted", 10, 20, prepared="0a"),
]


@pytest.mark.parametrize("span", SPANS)
def test_there_and_back(span: Span) -> None:
    assert span_from_body(span_to_body(span)) == span


@pytest.mark.parametrize("change", [{"kind": "lines"}, {"part": "all"}, {"start": "x"}])
def test_refused(change: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"a span of the|invalid literal"):
        span_from_body(span_to_body(SPANS[0]) | change)


def test_what_is_missing_is_told() -> None:
    body = span_to_body(SPANS[0])
    del body["last"]
    with pytest.raises(KeyError, match="last"):
        span_from_body(body)
