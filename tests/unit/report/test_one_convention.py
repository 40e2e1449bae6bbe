"""A size reads the same while a job runs, in its report and in its profile."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from shadowsync.pipeline.performance.document import Profile
from shadowsync.pipeline.performance.render import render_profile
from shadowsync.pipeline.report.markdown import render_markdown
from shadowsync.pipeline.report.model import NodeRecord, Report
from shadowsync.pipeline.report.terminal import print_report
from shadowsync.pipeline.text.format import data_size
from shadowsync.tests.support.measures import SECONDS, measured
from shadowsync.tests.support.statuses import a_status
from shadowsync.watch.table import table_of


def _lines(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize("size_bytes", [203 << 20, 2_000_000, 3_456_789_012])
def test_a_size_reads_the_same_while_the_job_runs_and_after_it(full_report: Report, size_bytes: int) -> None:
    text = data_size(size_bytes)
    running = Console(width=100, file=io.StringIO())
    status = a_status()
    nodes = [node.model_copy(update={"memory_bytes": size_bytes}) for node in status.nodes]
    running.print(table_of(status.model_copy(update={"nodes": nodes})))
    node = NodeRecord(
        name="trainer-0", role="trainer", cpu_seconds=1.0, peak_memory_bytes=size_bytes, exit="0"
    )
    report = full_report.model_copy(update={"nodes": [node]})
    ended = Console(width=100, file=io.StringIO())
    print_report(report, ended)
    profile = Profile.of(measured({"to/embedding-0": size_bytes * SECONDS}), [], None)
    assert text in _lines(running)
    assert text in _lines(ended)
    assert f"| {text} |" in render_markdown(report)
    assert f"| {text}/s |" in render_profile(profile)
    assert f"{text}/s" in " ".join(profile.verdict.reasons)
