"""compare.md, its pictures and the table on the terminal: all there, hostile names kept harmless."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from shadowsync.lab.comparison.columns import COLUMNS
from shadowsync.lab.comparison.markdown import print_table, render_markdown
from shadowsync.lab.comparison.plots import PICTURES, draw, write_pictures
from shadowsync.lab.comparison.record import Comparison
from shadowsync.lab.comparison.summary import summarize
from shadowsync.lab.comparison.variants import REFERENCE
from shadowsync.pipeline.report.document import Curves, Report

HOSTILE = "x.y:<script>alert(1)</script>&\"'|$_{a}$"
PNG = b"\x89PNG"

Compared = Callable[..., Comparison]
MakeReport = Callable[..., Report]

SCORES = {REFERENCE: [0.80, 0.70], "none": [0.81, 0.71], "easgd@5": [0.79, 0.69], "easgd": [0.70, 0.90]}


def rendered(comparison: Comparison) -> str:
    return render_markdown(comparison, summarize(comparison))


def table_rows(text: str) -> list[list[str]]:
    """The cells of the table's rows, below its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def rename(comparison: Comparison, label: str, other: str) -> None:
    """As if the variant had been asked for by another name."""
    for variant in comparison.variants:
        variant.label = other if variant.label == label else variant.label
    for run in comparison.runs:
        run.label = other if run.label == label else run.label


def test_there_is_a_row_a_cell_and_every_picture(compared: Compared) -> None:
    text = rendered(compared(SCORES))
    rows = table_rows(text)
    assert [row[0] for row in rows] == list(SCORES)
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert rows[1][2:5] == ["0.7600", "+0.0100 [+0.0100, +0.0100]", "worse"]
    assert [row[4] for row in rows] == ["–", "worse", "better", "inconclusive"]
    assert re.findall(r"!\[.+\]\((.+)\)", text) == [file for file, _, _ in PICTURES]


def test_every_picture_is_drawn_also_of_a_hostile_name(
    compared: Compared, make_report: MakeReport, tmp_path: Path
) -> None:
    comparison = compared(SCORES)
    rename(comparison, "none", HOSTILE)
    curves = Curves(
        ne=[(1.0, 0.9), (2.0, 0.8)], sync_gap={"trainer-0": [(1.0, 3.0), (2.0, 4.0)]}, divergence=[(1.0, 0.1)]
    )
    reports = {run.label: [make_report(curves=curves)] for run in comparison.runs}
    figures = draw(comparison, summarize(comparison), reports)
    assert list(figures) == [file for file, _, _ in PICTURES]
    assert all(figure.axes[0].axison for figure in figures.values())
    write_pictures(tmp_path, figures)
    assert all((tmp_path / file).read_bytes().startswith(PNG) for file in figures)
    # The control: without any report a curve says so in place of its axes.
    empty = draw(comparison, summarize(comparison), {})
    assert [figure.axes[0].axison for figure in empty.values()] == [True, True, False, False, False]


def test_hostile_names_are_only_text(compared: Compared) -> None:
    comparison = compared({REFERENCE: [0.8, 0.8], "none": [None, 0.8], "easgd": [0.7, 0.8]})
    comparison.name = HOSTILE
    rename(comparison, "none", HOSTILE)
    comparison.runs[0].message = HOSTILE
    paper = rendered(comparison)
    assert "<script" not in paper
    lines = [line for line in paper.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_what_failed_and_what_is_missing_is_loud(compared: Compared) -> None:
    comparison = compared({REFERENCE: [0.8, 0.8], "none": [0.8, None], "easgd": [0.7, 0.8]})
    figures = comparison.of("easgd")[0].figures
    assert figures is not None
    comparison.of("easgd")[0].figures = figures.model_copy(update={"ledger_adds_up": False})
    comparison.of("none")[0].status = "waiting"
    comparison.complete = False
    paper = rendered(comparison)
    for text in (
        "> **INCOMPLETE: 1 of 6 runs have not been made.**",
        "> **easgd: the ledger DOES NOT ADD UP. Do not trust its runs.**",
        "seed 5: exit code 3, no &lt;file> ",
    ):
        assert text in paper
    good = rendered(compared(SCORES))
    assert "> **" not in good, "the control"


def test_the_terminal_shows_failures_in_red(compared: Compared) -> None:
    comparison = compared({REFERENCE: [0.8, 0.8], "none": [0.8, None], "easgd": [0.7, 0.6]})
    rename(comparison, "easgd", "easgd[/red]")
    target = io.StringIO()
    print_table(comparison, summarize(comparison), Console(file=target, force_terminal=True, width=80))
    lines = target.getvalue().splitlines()
    red = [line for line in lines if "\x1b[1;31m" in line]
    assert any("none" in line for line in red)
    assert not any("easgd" in line for line in red)
    assert any("easgd[/red]" in line for line in lines), "brackets are no markup"
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert max(map(len, plain)) <= 80


def test_an_emulated_network_is_told(compared: Compared) -> None:
    comparison = compared(SCORES)
    assert "No slow network was emulated." in rendered(comparison)
    comparison.network, comparison.means = "a delay of 5 ms one way, on all links", "relay"
    assert "A slow network was emulated by relay: a delay of 5 ms one way, on all links." in rendered(
        comparison
    )
