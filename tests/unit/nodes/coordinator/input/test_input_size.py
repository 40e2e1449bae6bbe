"""How many examples the input is expected to have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from shadowsync.nodes.control.progress import Expected
from shadowsync.nodes.coordinator.input.planning import estimate_input
from shadowsync.pipeline.config.data import SplitSection
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.data.span import Span
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.outside.http_files import http_files

EXAMPLES = 3000
NO_SPLIT = SplitSection()


def spans_of(folder: Path, kind: str) -> list[Span]:
    files = sorted(folder.glob("train-*"))
    if kind == "row_groups":
        return [Span(number, str(file), "row_groups", 0, 1) for number, file in enumerate(files)]
    return [Span(number, str(file), kind, 0, file.stat().st_size) for number, file in enumerate(files)]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parquet")
    generate_log(folder, examples=EXAMPLES, eval_examples=0, seed=1, data_format="parquet", files=2)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    generate_log(folder, examples=EXAMPLES, eval_examples=0, seed=1, data_format="criteo_tsv", files=3)
    return folder


def test_parquet_tells_it_exactly(parquet: Path) -> None:
    size = estimate_input(spans_of(parquet, "row_groups"), epochs=2, split=NO_SPLIT)
    assert size.expected(0) == Expected(2 * EXAMPLES, exact=True)
    size.span_read(0, EXAMPLES // 2 - 10, 10)
    assert size.expected(10) == Expected(2 * EXAMPLES - 10, exact=True)


def test_a_part_of_the_rows_makes_it_an_estimate(parquet: Path) -> None:
    size = estimate_input(spans_of(parquet, "row_groups"), epochs=1, split=NO_SPLIT)
    size.span_read(0, EXAMPLES // 4, 0)
    assert size.expected(0) == Expected(EXAMPLES // 2, exact=False)


def test_plain_text_is_estimated_from_its_first_lines(text: Path) -> None:
    size = estimate_input(spans_of(text, "bytes"), epochs=1, split=NO_SPLIT)
    first = present(size.expected(0))
    assert not first.exact
    assert first.examples == pytest.approx(EXAMPLES, rel=0.1)
    for number in range(3):
        size.span_read(number, EXAMPLES // 3, 0)
    assert size.expected(0) == Expected(EXAMPLES, exact=False)


def test_compressed_text_is_unknown_until_some_was_read(text: Path) -> None:
    size = estimate_input(spans_of(text, "stream"), epochs=1, split=NO_SPLIT)
    assert size.expected(0) is None
    size.span_read(0, EXAMPLES // 3, 0)
    estimate = present(size.expected(0))
    assert estimate.examples == pytest.approx(EXAMPLES, rel=0.1)


def test_a_file_that_is_not_here_tells_nothing() -> None:
    spans = [Span(0, "nowhere.parquet", "row_groups", 0, 4), Span(1, "nowhere.parquet", "row_groups", 4, 8)]
    size = estimate_input(spans, epochs=1, split=NO_SPLIT)
    assert size.expected(0) is None
    size.span_read(1, 100, 0)
    assert size.expected(0) == Expected(200, exact=False)


def test_a_drawn_part_counts_as_its_fraction(parquet: Path, text: Path) -> None:
    split = SplitSection(by="fraction", validation=0.1, test=0.2)
    for folder, kind, close in ((parquet, "row_groups", 0.001), (text, "bytes", 0.1)):
        for part, share in (("train", 0.7), ("validation", 0.1), ("test", 0.2)):
            spans = [replace(span, part=part) for span in spans_of(folder, kind)]  # type: ignore[arg-type]
            expected = present(estimate_input(spans, epochs=1, split=split).expected(0))
            assert expected.examples == pytest.approx(share * EXAMPLES, rel=close)
            assert not expected.exact


def test_a_range_counts_as_its_length(parquet: Path, text: Path) -> None:
    first, second = spans_of(parquet, "row_groups")
    cut = [first, replace(second, last=100)]
    assert estimate_input(cut, 1, NO_SPLIT).expected(0) == Expected(EXAMPLES // 2 + 100, exact=True)
    cut = [first, replace(second, first=100)]
    assert estimate_input(cut, 1, NO_SPLIT).expected(0) == Expected(EXAMPLES - 100, exact=True)
    lines = [replace(spans_of(text, "bytes")[0], last=100)]
    assert estimate_input(lines, 1, NO_SPLIT).expected(0) == Expected(100, exact=False)


def test_rows_that_were_sorted_are_counted() -> None:
    spans = [Span(0, "nowhere.csv", "sorted", 0, 70), Span(1, "nowhere.csv", "sorted", 70, 100)]
    assert estimate_input(spans, 1, NO_SPLIT).expected(0) == Expected(100, exact=True)


def test_parquet_of_a_web_server_tells_it_too(parquet: Path) -> None:
    files = {file.name: file.read_bytes() for file in sorted(parquet.glob("train-*"))}
    with http_files(files, ranges=True) as url:
        spans = [Span(number, f"{url}/{name}", "row_groups", 0, 1) for number, name in enumerate(files)]
        assert estimate_input(spans, 1, NO_SPLIT).expected(0) == Expected(EXAMPLES, exact=True)
        # One that is not there does not stop the job.
        spans.append(Span(2, f"{url}/nothing.parquet", "row_groups", 0, 1))
        assert estimate_input(spans, 1, NO_SPLIT).expected(0) is None
