"""A report in a notebook: headline, curves, ledger."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from ...jobfile.extras import missing_modules
from ...text.html import escaped, html_table
from ..document import SYNC_GAP_PICTURE, Report
from ..ledger import Identity
from . import wording


class FolderReport(Report):
    """The report of a run whose folder is here; a notebook shows it."""

    @classmethod
    def of(cls, report: Report, folder: Path) -> Self:
        """Copy the report of the run in `folder`."""
        made = cls.model_construct(**dict(report))
        made._folder = folder
        return made

    def _repr_html_(self) -> str:
        return report_html(self)


def report_html(report: Report) -> str:
    """Return a report as HTML without scripts; its pictures are in it, if matplotlib is installed."""
    colour = "green" if report.exit_code == 0 else "darkorange"
    parts = [
        f'<b>{escaped(report.run)}: <span style="color:{colour}">{escaped(report.outcome)}</span></b>',
        *(_paragraph(text) for text in (wording.quality(report), wording.saved(report))),
        *(_paragraph(text, "darkorange") for text in report.warnings),
        _curves(report),
        _paragraph(wording.ledger(report), "green" if report.ledger.adds_up else "red"),
        _ledger(report.ledger.identities),
    ]
    return "<div>" + "".join(parts) + "</div>"


def _paragraph(text: str, colour: str = "") -> str:
    style = f' style="color:{colour}"' if colour else ""
    return f"<p{style}>{escaped(text)}</p>"


def _curves(report: Report) -> str:
    if missing_modules("plots"):
        return _paragraph('There are no curves without matplotlib: pip install "shadowsync[plots]".')
    from .curves import figures_of

    images = []
    for name, figure in figures_of(report).items():
        if name == SYNC_GAP_PICTURE and not report.sync.rounds:
            # One trainer has no rounds, and a picture that says so is as large as a curve.
            continue
        png = io.BytesIO()
        figure.savefig(png, format="png")
        data = base64.b64encode(png.getvalue()).decode()
        images.append(f'<img alt="{name}" width="440" src="data:image/png;base64,{data}">')
    return "<p>" + "".join(images) + "</p>"


def _ledger(identities: Iterable[Identity]) -> str:
    rows = (
        (identity.name, *map(wording.count, (identity.left, identity.right)), wording.difference(identity))
        for identity in identities
    )
    table = html_table(("identity", "left", "right", ""), rows)
    return f"<details><summary>the ledger</summary>{table}</details>"
