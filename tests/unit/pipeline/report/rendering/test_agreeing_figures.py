"""Figures of a report that a reader adds up or compares: they agree at sight."""

from __future__ import annotations

from shadowsync.pipeline.report.document import LinkTraffic, Report
from shadowsync.pipeline.report.rendering.markdown import render_markdown

from ..conftest import altered, on_terminal


def with_peers(report: Report) -> Report:
    """A report of an all-reduce: each of two trainers sends and receives 5.4 MB of each kind."""
    link = LinkTraffic(codec="float32", bytes=5_400_000, float32_bytes=5_400_000)
    return altered(report, sync={"bytes": 21_600_000, "links": {"peers_up": link, "peers_down": link}})


def test_bytes_between_trainers_are_sent_and_received(full_report: Report) -> None:
    text = render_markdown(with_peers(full_report))
    assert "| bytes in all, sent and received by the trainers | 21.6 MB |" in text
    assert text.count("5.40 MB, sent and again received, float32") == 2
    # With a center each is on one side of a trainer's socket.
    assert "again received" not in render_markdown(full_report)


def test_the_terminal_does_not_call_all_bytes_those_of_a_round(full_report: Report) -> None:
    text = " ".join(on_terminal(with_peers(full_report)).split())
    assert "round, bytes" not in text
    assert "a round takes 31.2 ms" in text
    assert "bytes in all 21.6 MB" in text


def test_cpu_of_the_nodes_and_the_coordinator(full_report: Report) -> None:
    """Both are in the CPU for a million examples, so both are listed."""
    report = altered(full_report, throughput={"coordinator_cpu_seconds": 2.5})
    text = render_markdown(report)
    assert "| CPU seconds per million examples, all nodes and the coordinator |" in text
    assert "| coordinator | coordinator | 2.5 s |" in text
    assert "coordinator" in on_terminal(report)
    # A report that does not know it.
    assert "| coordinator | coordinator |" not in render_markdown(full_report)


def test_replicas_that_the_last_round_made_equal_were_apart(full_report: Report) -> None:
    curve = [(1.0, 0.004), (2.0, 0.006), (3.0, 0.0)]
    report = altered(full_report, replicas={"divergence": 0.0}, curves={"divergence": curve})
    said = "0 at the end, 0.005 in training"
    assert f"| divergence of the replicas | {said} |" in render_markdown(report)
    assert said in " ".join(on_terminal(report).split())
    assert "| divergence of the replicas | 0 |" in render_markdown(altered(report, curves={"divergence": []}))
