"""Display of a running job: a live table, lines of text, a bar in a notebook, or nothing."""

from __future__ import annotations

import html
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live

from ...pipeline.report.rendering.terminal import print_plan
from ...pipeline.report.tables.placement import read_table_plan
from ...pipeline.text.format import count, counted, duration, number, percent
from ..status import Incident, Status, read_status
from .table import table_of

_INCIDENTS_IN_NOTEBOOK = 5


class Display(ABC):
    """A display of statuses as they come. One thread."""

    # Time between two statuses.
    period_seconds: float

    @abstractmethod
    def __call__(self, body: dict[str, Any]) -> None:
        """Show one status. Raises ProtocolError if `body` is not a valid status."""

    def begin(self, folder: Path) -> None:  # noqa: B027
        """Show the plan of the tables, once, from the job's folder."""

    def close(self) -> None:  # noqa: B027
        """Restore the terminal; may be called again."""


class LiveTable(Display):
    """A table that is redrawn in place, and erased when closed."""

    period_seconds = 1.0

    def __init__(self, console: Console) -> None:
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._started = False
        self._console = console

    def begin(self, folder: Path) -> None:
        """See `Display`; the plan stays above the table."""
        _show_plan(folder, self._console)

    def __call__(self, body: dict[str, Any]) -> None:
        status = read_status(body)
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(table_of(status), refresh=True)

    def close(self) -> None:
        if self._started:
            self._live.stop()
            self._started = False


class Lines(Display):
    """One line per status and event, after one with the page's address."""

    period_seconds = 5.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._page = ""
        self._shown_incidents = 0

    def begin(self, folder: Path) -> None:
        _show_plan(folder, Console(file=self._stream))

    def __call__(self, body: dict[str, Any]) -> None:
        status = read_status(body)
        if status.page != self._page:
            self._page = status.page
            print(f"page: {self._page}", file=self._stream, flush=True)
        for incident in status.incidents:
            if incident.number > self._shown_incidents:
                self._shown_incidents = incident.number
                print(_line_of_incident(incident), file=self._stream, flush=True)
        print(line_of(status), file=self._stream, flush=True)


class NotebookBar(Display):
    """A bar, a line and the latest events below a notebook's cell, erased when closed.

    Args:
        show: shows HTML in place of what it showed before.
    """

    period_seconds = 1.0

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._incidents: dict[int, Incident] = {}

    def __call__(self, body: dict[str, Any]) -> None:
        status = read_status(body)
        self._incidents.update({incident.number: incident for incident in status.incidents})
        self._show(_html_of(status, list(self._incidents.values())[-_INCIDENTS_IN_NOTEBOOK:]))

    def close(self) -> None:
        # The last status is from before the end.
        self._show("")


class Silence(Display):
    """A display that shows nothing."""

    period_seconds = 5.0

    def __call__(self, body: dict[str, Any]) -> None:
        del body


def line_of(status: Status) -> str:
    parts = [
        f"{duration(round(status.seconds)):>10}  {status.outcome or status.phase}",
        # Like the share that follows: each example counts once, with those that an earlier run trained.
        f"{count(status.progress.distinct):>11} trained"
        if status.loops is None
        else f"{count(status.loops.steps):>11} steps",
    ]
    if status.progress.fraction is not None:
        left = status.progress.seconds_left
        end = f", {duration(round(left))} left" if left else ""
        parts.append(f"{percent(status.progress.fraction):>4}{end}")
    # Preferably the speed of the last seconds: waits for input or a validation lower the mean.
    speed, of = (status.speed.mean, "mean ") if status.speed.now is None else (status.speed.now, "")
    if speed is not None:
        parts.append(f"{of}{count(speed):>9} examples/s")
    if status.quality.ne is not None:
        parts.append(f"NE {number(status.quality.ne)}")
    if status.ledger.bad_rows:
        parts.append(counted(status.ledger.bad_rows, "malformed row"))
    if status.sync.rounds:
        parts.append(f"{count(status.sync.rounds)} rounds, open gap {count(status.sync.gap_open)}")
    return "  ".join(parts)


def _line_of_incident(incident: Incident) -> str:
    return f"{duration(round(incident.seconds)):>10}  {incident.node}: {incident.what}"


def _html_of(status: Status, incidents: list[Incident]) -> str:
    fraction = status.progress.fraction
    # A bar without a value says that it is not known how much is done.
    value = "" if fraction is None else f' value="{fraction:.4f}"'
    text = html.escape("\n".join([line_of(status), *map(_line_of_incident, incidents)]))
    page = html.escape(status.page)
    link = f'<div><a href="{page}">{page}</a></div>' if page and not status.ended else ""
    return f'<progress max="1" style="width:100%"{value}></progress><pre>{text}</pre>{link}'


def _show_plan(folder: Path, console: Console) -> None:
    record = read_table_plan(folder)
    if record is not None:
        print_plan(record, console)


def _cell_output() -> Callable[[str], None]:
    """Return what shows HTML below the notebook's cell that runs now."""
    # IPython has no types.
    shown: Any = importlib.import_module("IPython.display")
    handle = shown.DisplayHandle()
    handle.display(shown.HTML(""))
    return lambda text: handle.update(shown.HTML(text))


def display(*, quiet: bool) -> Display:
    """Choose the display for this process's standard error, or the notebook's cell that runs."""
    if quiet:
        return Silence()
    console = Console(stderr=True)
    if console.is_jupyter:
        return NotebookBar(_cell_output())
    # A "dumb" terminal cannot move its cursor.
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveTable(console)
    return Lines(sys.stderr)
