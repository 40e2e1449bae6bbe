"""compare.html: one file that needs no other.

The page fits phones and wide screens, and is light or dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from ...pipeline.report.model import Report
from ...pipeline.report.wording import DOES_NOT
from ...pipeline.text.format import data_size
from .columns import all_columns, facts, incomplete
from .plots import draw
from .record import Comparison
from .summary import Row
from .variants import REFERENCE

TEMPLATES = Path(__file__).parents[1] / "templates"


def template(name: str) -> Template:
    """Return a template of the lab, which escapes its values."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def render_page(comparison: Comparison, rows: Sequence[Row], reports: Mapping[str, Sequence[Report]]) -> str:
    """Render the whole page.

    Every text from a job, a name or an error is escaped.
    """
    hardware = comparison.hardware
    size = data_size(hardware.memory_bytes)
    return template("compare.html").render(
        comparison=comparison,
        rows=rows,
        columns=all_columns(rows),
        facts=facts(comparison, list(rows)),
        alarms=_alarms(comparison, rows),
        plots=draw(comparison, rows, reports),
        row_class=_row_class,
        machine=f"{hardware.cores} cores of {hardware.cpu_model or 'an unknown CPU'}, {size}",
        versions=", ".join(f"{name} {version}" for name, version in comparison.versions.items()),
    )


def _alarms(comparison: Comparison, rows: Sequence[Row]) -> list[str]:
    texts = [incomplete(comparison)]
    texts += [
        f"{row.label}: the ledger {DOES_NOT}. Do not trust its runs."
        for row in rows
        if not row.ledger_adds_up
    ]
    texts += [f"{row.label}: {len(row.failed)} of its runs FAILED." for row in rows if row.failed]
    return [text for text in texts if text]


def _row_class(row: Row) -> str:
    if row.failed or not row.ledger_adds_up:
        return "bad"
    return "alone" if row.label == REFERENCE else ""
