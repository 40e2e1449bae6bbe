"""What a report says of a slow network that was emulated, and of one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.pipeline.report.document import EmulatedNetwork, Report
from shadowsync.pipeline.report.rendering.markdown import render_markdown
from shadowsync.pipeline.report.run_folders.write import read_report, rewrite_texts, write_report

from ..conftest import altered, on_terminal

RELAY = EmulatedNetwork(
    means="relay",
    delay_seconds=0.05,
    bytes_per_second=12.5e6,
    links="sync",
    relay_cpu_seconds=1.25,
    relay_bytes=3 << 20,
)
SILENT = EmulatedNetwork(
    means="relay",
    delay_seconds=0.0,
    bytes_per_second=None,
    links="all",
    relay_cpu_seconds=None,
    relay_bytes=None,
)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (
            RELAY,
            "Emulated network, by relay: a delay of 50 ms one way and 100 Mbit/s for each node that listens, "
            "each way, on the links of synchronization. The relay took 1.25 s of CPU for 3.15 MB.",
        ),
        (SILENT, "Emulated network, by relay: no delay, on all links."),
    ],
)
def test_it_is_told(full_report: Report, network: EmulatedNetwork, said: str) -> None:
    slow = altered(full_report, network=network)
    for text in (render_markdown(slow), on_terminal(slow, width=300)):
        assert f"{said}\n" in text
    for text in (render_markdown(full_report), on_terminal(full_report, width=300)):
        assert "Emulated" not in text, "the control"


def test_the_texts_are_written_again_without_the_pictures(full_report: Report, tmp_path: Path) -> None:
    write_report(tmp_path, full_report)
    pictures = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.png")}
    assert pictures
    rewrite_texts(tmp_path, altered(full_report, network=RELAY))
    assert read_report(tmp_path / "report.json").network == RELAY
    assert "Emulated network" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.png")} == pictures
