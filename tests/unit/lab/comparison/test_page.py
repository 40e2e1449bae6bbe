"""compare.html and compare.md: all there, nothing from elsewhere, hostile names kept harmless."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from rich.console import Console
from shadowsync.lab.comparison.columns import COLUMNS
from shadowsync.lab.comparison.markdown import print_table, render_markdown
from shadowsync.lab.comparison.page import render_page
from shadowsync.lab.comparison.record import Comparison
from shadowsync.lab.comparison.summary import summarize
from shadowsync.lab.comparison.variants import REFERENCE
from shadowsync.pipeline.report.model import Curves, Report

HOSTILE = "x.y:<script>alert(1)</script>&\"'|$_{a}$"
VOID = {"meta", "br", "hr", "img", "input", "link"}

Compared = Callable[..., Comparison]
MakeReport = Callable[..., Report]


class Reader(HTMLParser):
    """What a browser would see: tags that close, attributes, the text of table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.rows[-1][-1] += data


@pytest.fixture
def page(make_report: MakeReport) -> Callable[[Comparison], str]:
    """The page, with curves for every run that has figures."""
    curves = Curves(
        ne=[(1.0, 0.9), (2.0, 0.8)], sync_gap={"trainer-0": [(1.0, 3.0), (2.0, 4.0)]}, divergence=[(1.0, 0.1)]
    )

    def render(comparison: Comparison) -> str:
        reports = {
            run.label: [make_report(curves=curves)] for run in comparison.runs if run.figures is not None
        }
        return render_page(comparison, summarize(comparison), reports)

    return render


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    """The page of SCORES, once it is drawn: five pictures take most of a second."""
    return {}


@pytest.fixture
def usual(compared: Compared, page: Callable[[Comparison], str], drawn: dict[str, str]) -> str:
    """The page of SCORES."""
    if not drawn:
        drawn["page"] = page(compared(SCORES))
    return drawn["page"]


def rename(comparison: Comparison, label: str, other: str) -> None:
    """As if the variant had been asked for by another name."""
    for variant in comparison.variants:
        variant.label = other if variant.label == label else variant.label
    for run in comparison.runs:
        run.label = other if run.label == label else run.label


SCORES = {REFERENCE: [0.80, 0.70], "none": [0.81, 0.71], "easgd@5": [0.79, 0.69], "easgd": [0.70, 0.90]}


def test_the_page_has_a_row_a_cell_and_every_plot(usual: str) -> None:
    found = Reader(usual)
    assert found.open == []
    rows = [row for row in found.rows if row]
    assert [row[0] for row in rows] == list(SCORES)
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert rows[1][2:5] == ["0.7600", "+0.0100\n[+0.0100, +0.0100]", "worse"]
    assert [row[4] for row in rows] == ["–", "worse", "better", "inconclusive"]
    assert found.tags.count("svg") == 5
    assert "nothing was measured" not in usual
    assert ("name", "viewport") in found.attributes
    assert "prefers-color-scheme: dark" in usual


def test_the_page_needs_nothing_from_elsewhere(usual: str) -> None:
    assert "://" not in usual
    assert not re.search(r"url\((?!#)|@import|<script|<link|<img|<iframe", usual)
    found = Reader(usual)
    links = [value or "" for name, value in found.attributes if name in ("href", "src", "xlink:href")]
    assert links, "the control: there are links, all within the page"
    assert all(link.startswith("#") for link in links)
    ids = [value for name, value in found.attributes if name == "id"]
    assert {link[1:] for link in links} <= set(ids)


def test_pictures_do_not_take_each_others_parts(usual: str) -> None:
    """What is referred to must be one thing, although five pictures share the page."""
    referred = set(re.findall(r'(?:url\(#|href="#)([^")]+)', usual))
    assert referred
    ids = re.findall(r'\bid="([^"]+)"', usual)
    assert all(ids.count(name) == 1 for name in referred)


def test_pictures_take_the_pages_colour(usual: str) -> None:
    assert "#010203" not in usual
    assert usual.count("currentColor") > 50


def test_hostile_names_are_only_text(compared: Compared, page: Callable[[Comparison], str]) -> None:
    comparison = compared({REFERENCE: [0.8, 0.8], "none": [None, 0.8], "easgd": [0.7, 0.8]})
    comparison.name = HOSTILE
    rename(comparison, "none", HOSTILE)
    comparison.runs[0].message = HOSTILE
    comparison.runs[1].folder = HOSTILE
    text = page(comparison)
    found = Reader(text)
    assert found.open == []
    assert "script" not in found.tags
    assert [row[0] for row in found.rows if row][1] == HOSTILE, "the control: it is there, as text"
    paper = render_markdown(comparison, summarize(comparison))
    assert "<script" not in paper
    lines = [line for line in paper.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_what_failed_and_what_is_missing_is_loud(
    compared: Compared, page: Callable[[Comparison], str], usual: str
) -> None:
    comparison = compared({REFERENCE: [0.8, 0.8], "none": [0.8, None], "easgd": [0.7, 0.8]})
    good = compared(SCORES)
    figures = comparison.of("easgd")[0].figures
    assert figures is not None
    comparison.of("easgd")[0].figures = figures.model_copy(update={"ledger_adds_up": False})
    comparison.of("none")[0].status = "waiting"
    comparison.complete = False
    reported = page(comparison)
    paper = render_markdown(comparison, summarize(comparison))
    for text in (
        "INCOMPLETE: 1 of 6 runs have not been made.",
        "easgd: the ledger DOES NOT ADD UP. Do not trust its runs.",
        "seed 5: exit code 3, no &lt;file&gt; ",
    ):
        assert text in reported
        assert text.replace("&gt;", ">") in paper
    assert reported.count('class="loud"') == 3
    assert reported.count('<tr class="bad">') == 2
    assert 'class="loud"' not in usual, "the control"
    assert "INCOMPLETE" not in render_markdown(good, summarize(good))


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


def test_an_emulated_network_is_told(
    compared: Compared, page: Callable[[Comparison], str], usual: str
) -> None:
    comparison = compared(SCORES)
    assert "No slow network was emulated." in usual
    comparison.network, comparison.means = "a delay of 5 ms one way, on all links", "relay"
    assert "A slow network was emulated by relay: a delay of 5 ms one way, on all links." in page(comparison)
