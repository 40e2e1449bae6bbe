"""compare.html: one file that needs nothing else, for a phone as for a wide screen, light or dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from ..pipeline.report.model import Report
from ..pipeline.report.wording import DOES_NOT
from ..pipeline.text.format import data_size
from .cells import REFERENCE
from .columns import COLUMNS, Column, facts, incomplete
from .plots import draw
from .record import Comparison
from .summary import Row

STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --bad: #c81e1e; --good: #0a7d43; --dim: #666 }
@media (prefers-color-scheme: dark) { :root { --bad: #ff7b72; --good: #4cc38a; --dim: #aaa } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 88rem; padding: 1rem }
h1 { font-size: 1.5rem; margin: .2rem 0; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2rem 0 .2rem }
p, li { max-width: 60rem } .dim, figcaption { color: var(--dim); font-size: .9rem }
.loud { border: 2px solid var(--bad); color: var(--bad); border-radius: .4rem; padding: .5rem .8rem;
  font-weight: 600 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .8rem; width: 100% }
th, td { padding: .35rem .4rem; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums }
th { font-weight: 600; vertical-align: bottom } th:first-child, td:first-child { text-align: left }
td span { white-space: pre } td:first-child { font-weight: 600; min-width: 6.5rem }
td:first-child span { white-space: normal; overflow-wrap: anywhere }
tr.alone { background: var(--soft) } tr.bad td { color: var(--bad) }
td.better { color: var(--good); font-weight: 600 } td.worse { color: var(--bad); font-weight: 600 }
.plots { display: grid; gap: 1rem 2rem; margin-top: 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)) }
figure { margin: 0 } figure svg { width: 100%; height: auto; display: block } figcaption b { display: block;
  color: CanvasText; font-size: 1.05rem }
code { overflow-wrap: anywhere }
@media (max-width: 760px) {
  thead { display: none } table, tbody, tr, td { display: block }
  tr { border: 1px solid var(--line); border-radius: .5rem; margin: .7rem 0; padding: .3rem .2rem }
  td { border: 0; display: flex; font-size: .9rem; gap: 1rem; justify-content: space-between;
    padding: .15rem .6rem }
  td::before { content: attr(data-title); color: var(--dim); font-weight: 400; text-align: left }
  td:first-child { font-size: 1.05rem } td:first-child::before { content: none }
}
"""


def render_page(comparison: Comparison, rows: Sequence[Row], reports: Mapping[str, Sequence[Report]]) -> str:
    """The whole page. Every text from a job, a name or an error is escaped."""
    name = escape(comparison.name)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{name}: synchronization compared</title><style>{STYLE}</style></head><body>",
        f"<h1>{name}: synchronization compared</h1>",
        f'<p class="dim">Started {escape(comparison.started_at)}.</p>',
        *_alarms(comparison, rows),
        *(f"<p>{escape(fact)}</p>" for fact in facts(comparison, list(rows))),
        _table(rows),
        '<div class="plots">',
        *(_figure(*plot) for plot in draw(comparison, rows, reports)),
        "</div>",
        *_failures(rows),
        *_runs(comparison),
        *_models(rows),
        *_machine(comparison),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _alarms(comparison: Comparison, rows: Sequence[Row]) -> list[str]:
    texts = [incomplete(comparison)]
    texts += [
        f"{row.label}: the ledger {DOES_NOT}. Do not trust its runs."
        for row in rows
        if not row.ledger_adds_up
    ]
    texts += [f"{row.label}: {len(row.failed)} of its runs FAILED." for row in rows if row.failed]
    return [f'<p class="loud">{escape(text)}</p>' for text in texts if text]


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in COLUMNS)
    body = "".join(_table_row(row) for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _table_row(row: Row) -> str:
    bad = bool(row.failed) or not row.ledger_adds_up
    style = "bad" if bad else "alone" if row.label == REFERENCE else ""
    return f'<tr class="{style}">{"".join(_cell(column, row) for column in COLUMNS)}</tr>'


def _cell(column: Column, row: Row) -> str:
    # An interval on a line of its own keeps the table narrow.
    text = column.text(row).replace(" [", "\n[")
    style = text if text in ("better", "worse") else ""
    return f'<td data-title="{escape(column.title)}" class="{style}"><span>{escape(text)}</span></td>'


def _figure(title: str, text: str, svg: str) -> str:
    caption = f"<figcaption><b>{escape(title)}</b>{escape(text)}</figcaption>"
    return f"<figure>{caption}{svg}</figure>"


def _failures(rows: Sequence[Row]) -> list[str]:
    items = [f"<li>{escape(row.label)}: {escape(text)}</li>" for row in rows for text in row.failed]
    return ["<h2>Failed</h2>", "<ul>", *items, "</ul>"] if items else []


def _runs(comparison: Comparison) -> list[str]:
    items = []
    for run in comparison.runs:
        where = f"<code>{escape(run.folder)}</code>" if run.folder else "no folder"
        ended = run.status if run.exit_code is None else f"{run.status}, exit code {run.exit_code}"
        items.append(f"<li>{escape(run.label)}, seed {run.seed}: {escape(ended)}, {where}</li>")
    head = f"<details><summary>All {len(items)} runs, in the order in which they were made</summary><ol>"
    return ["<h2>Runs</h2>", head, *items, "</ol></details>"]


def _models(rows: Sequence[Row]) -> list[str]:
    items = [f"<li>{escape(row.label)}: {escape(row.model)}</li>" for row in rows if row.model]
    return ["<h2>Which model was scored</h2>", "<ul>", *items, "</ul>"] if items else []


def _machine(comparison: Comparison) -> list[str]:
    hardware = comparison.hardware
    size = data_size(hardware.memory_bytes)
    machine = f"{hardware.cores} cores of {hardware.cpu_model or 'an unknown CPU'}, {size}"
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    return ["<h2>Machine and versions</h2>", f'<p class="dim">{escape(machine)}. {escape(versions)}.</p>']
