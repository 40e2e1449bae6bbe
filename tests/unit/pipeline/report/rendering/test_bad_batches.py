"""Batches that were left out, in words: how many, the limit, and which were the first."""

from __future__ import annotations

import pytest
from shadowsync.nodes.coordinator.ledger.records import LeftOut
from shadowsync.nodes.coordinator.state.bad_batches import LISTED, BadBatchCounter
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.rendering.markdown import render_markdown
from shadowsync.pipeline.types import BatchId

from ..conftest import altered, on_terminal


def bad(count: int, limit: int = 10) -> BadBatchCounter:
    """So many batches of 10 examples, of two spans and two trainers in turn."""
    batches = BadBatchCounter(limit)
    for number in range(count):
        id = BatchId(0, number % 2, number, 1)
        left_out = LeftOut(id, 10, f"trainer-{number % 2}", "its loss is not finite")
        batches.add(left_out, lambda span: f"part-{span}.tsv")
    return batches


def test_the_limit_is_borne_and_one_more_is_not() -> None:
    assert bad(3, limit=3).too_many() is None
    stop = bad(4, limit=3).too_many()
    assert stop is not None
    assert (stop.kind, stop.exit_code, stop.diverged) == ("failed", ExitCode.USAGE, True)
    assert "4 batches" in stop.text
    assert "trainer.max_bad_batches is 3" in stop.text
    assert "batch (0, 0, 0, 1) of part-0.tsv: its loss is not finite" in stop.text
    one = bad(1, limit=0).too_many()
    assert one is not None
    assert one.text.startswith("1 batch with")


def test_a_job_of_bad_batches_alone_is_told_so_and_not_of_a_limit() -> None:
    assert BadBatchCounter(10).nothing_else() is None
    stop = bad(2).nothing_else()
    assert stop is not None
    assert (stop.kind, stop.exit_code, stop.diverged) == ("failed", ExitCode.USAGE, True)
    assert stop.text.startswith("nothing was trained: each of the 2 batches of all trainers")
    assert "batch (0, 0, 0, 1) of part-0.tsv" in stop.text
    assert "limit" not in stop.text


def test_some_are_kept_and_all_are_counted() -> None:
    assert BadBatchCounter(10).report() is None
    reported = bad(7).report()
    assert reported is not None
    assert (reported.count, reported.examples, reported.limit, len(reported.first)) == (7, 70, 10, LISTED)
    assert [one.path for one in reported.first[:2]] == ["part-0.tsv", "part-1.tsv"]
    assert [one.trainer for one in reported.first[:2]] == ["trainer-0", "trainer-1"]


@pytest.mark.parametrize("count", [0, 7])
def test_the_report_says_it_where_there_are_some(full_report: Report, count: int) -> None:
    reported = altered(full_report, bad_batches=bad(count).report())
    page = render_markdown(reported)
    sentence = "7 batches (70 examples) left out, for a loss or gradients that no step can be made of"
    for text in (page, on_terminal(reported, width=200)):
        assert (sentence in text) is bool(count)
        assert ("the first: batch (0, 0, 0, 1) of part-0.tsv" in text) is bool(count)
    assert ("| (0, 1, 1, 1) | part-1.tsv | trainer-1 | its loss is not finite |" in page) is bool(count)
