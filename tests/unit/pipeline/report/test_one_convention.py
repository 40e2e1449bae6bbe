"""Figures read the same everywhere: one convention, in `pipeline/text` and in the page's words.js."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import shadowsync
from rich.console import Console
from shadowsync.pipeline.performance.document import Profile
from shadowsync.pipeline.performance.render import render_profile
from shadowsync.pipeline.report.document import NodeRecord, Report
from shadowsync.pipeline.report.rendering.markdown import render_markdown
from shadowsync.pipeline.text.format import data_size
from shadowsync.tests.support.coordinator.statuses import a_status
from shadowsync.tests.support.jobs.profile_measurements import SECONDS, measured
from shadowsync.watch.terminal.table import table_of

from .conftest import altered, on_terminal

ROOT = Path(shadowsync.__file__).resolve().parent
# What writes pages, tables and sentences for users.
WRITERS = ("pipeline/report", "pipeline/performance", "pipeline/prepare", "watch", "lab")
# What writes errors and events, whose durations follow it, too.
SPEAKERS = ("nodes", "pipeline/wire", "pipeline/data", "pipeline/jobfile", "sync_algos", "commands")
UNIT = re.compile(r"^ ?(ms|s|us|min|h|B|kB|MB|GB|TB|[kMG]bit|[kMG]B)(/s)?\b")
TIME_UNIT = re.compile(r"^ (ms|s|us|min|h|seconds)\b")
# Figures made by JavaScript itself; a time of the day is none.
BY_HAND = re.compile(r"toFixed|toPrecision|toLocaleString|NumberFormat|/ 1e\d|\d+e\d")


def _formatted(source: str) -> Iterator[tuple[str, str, str]]:
    """Figures in f-strings with a format of their own: the figure, its format, and the text after it."""
    for text in ast.walk(ast.parse(source)):
        parts = text.values if isinstance(text, ast.JoinedStr) else []
        for part, after in zip(parts, [*parts[1:], None], strict=False):
            if isinstance(part, ast.FormattedValue) and part.format_spec is not None:
                follows = str(after.value) if isinstance(after, ast.Constant) else ""
                yield ast.unparse(part.value), ast.unparse(part.format_spec), follows


def _by_hand(source: str) -> list[str]:
    """Shares, thousands, and numbers with a unit."""
    found = _formatted(source)
    return [figure for figure, spec, after in found if "%" in spec or "," in spec or UNIT.match(after)]


def _durations_by_hand(source: str) -> list[str]:
    return [figure for figure, _, after in _formatted(source) if TIME_UNIT.match(after)]


def test_no_writer_formats_figures_by_hand() -> None:
    files = [file for folder in WRITERS for file in (ROOT / folder).rglob("*.py")]
    assert {"statistics_page.py", "render.py", "reasons.py", "table.py"} <= {file.name for file in files}
    found = [
        f"{file.relative_to(ROOT)}: {what}" for file in files for what in _by_hand(file.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('f"{rows:,} rows"', "rows"),
        ('f"{share:.2%}"', "share"),
        ('f"in {wait * 1e3:.1f} ms each"', "wait * 1000.0"),
        ('f"{size / 1e6:.0f} MB/s"', "size / 1000000.0"),
    ],
)
def test_a_figure_by_hand_is_found(line: str, what: str) -> None:
    """The control, in the file that had a convention of its own."""
    page = (ROOT / "pipeline" / "prepare" / "statistics_page.py").read_text("utf-8")
    assert _by_hand(f"{page}\n\nPLANTED = {line}\n") == [what]


def test_no_error_or_event_formats_a_duration_by_hand() -> None:
    files = [file for folder in SPEAKERS for file in (ROOT / folder).rglob("*.py")]
    assert {"deaths.py", "health.py", "channel.py"} <= {file.name for file in files}
    found = [
        (str(file.relative_to(ROOT)), what)
        for file in files
        for what in _durations_by_hand(file.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("text", ["silent for {limit:g} s", "{seconds:.1f} s ago", "in {limit:.0f} seconds"])
def test_a_duration_by_hand_is_found(text: str) -> None:
    """The control, among sizes and counts, which are others' matter."""
    planted = f"PLANTED = f'{{size / 1e6:.0f}} MB, {{rows:,}} spans, {text}'"
    source = (ROOT / "nodes" / "runtime" / "health.py").read_text("utf-8")
    assert len(_durations_by_hand(f"{source}\n\n{planted}\n")) == 1


def test_the_page_has_its_figures_from_its_words() -> None:
    scripts = {
        file.name: file.read_text("utf-8") for file in (ROOT / "watch" / "page" / "static").glob("*.js")
    }
    words = scripts.pop("words.js")
    assert {"charts.js", "figures.js", "topology.js", "page.js"} <= set(scripts)
    assert {name: found for name, text in scripts.items() if (found := BY_HAND.findall(text))} == {}
    planted = "const short = (value) => `${+(value / 1e6).toFixed(2)}M`;"
    assert BY_HAND.findall(scripts["charts.js"] + planted) == ["/ 1e6", "toFixed"], "the control"
    assert BY_HAND.search(words), "the control: there they are made"


@pytest.mark.parametrize("size_bytes", [203 << 20, 2_000_000, 3_456_789_012])
def test_a_size_reads_the_same_while_the_job_runs_and_after_it(full_report: Report, size_bytes: int) -> None:
    text = data_size(size_bytes)
    running = io.StringIO()
    status = a_status()
    nodes = [node.model_copy(update={"memory_bytes": size_bytes}) for node in status.nodes]
    Console(width=100, file=running).print(table_of(status.model_copy(update={"nodes": nodes})))
    node = NodeRecord(
        name="trainer-0", role="trainer", cpu_seconds=1.0, peak_memory_bytes=size_bytes, exit="0"
    )
    report = altered(full_report, nodes=[node])
    profile = Profile.of(measured({"to/embedding-0": size_bytes * SECONDS}), [], None)
    assert text in " ".join(running.getvalue().split())
    assert text in " ".join(on_terminal(report).split())
    assert f"| {text} |" in render_markdown(report)
    assert f"| {text}/s |" in render_profile(profile)
    assert f"{text}/s" in " ".join(profile.verdict.reasons)
