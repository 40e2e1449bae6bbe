"""The progress of a preparation on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...pipeline.prepare.preparation import PreparationStatus

_PERIOD_SECONDS = 0.2


@contextmanager
def progress_shown(*, quiet: bool) -> Iterator[Callable[[PreparationStatus], None]]:
    """Yield a callback that shows progress if standard error is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[rows]:,} rows, {task.fields[rate]:,.0f} rows/s"),
        TimeElapsedColumn(),
    )
    begun, shown, rows_before = time.monotonic(), 0.0, -1
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("prepare", total=None, rows=0, rate=0.0)

        def on_progress(state: PreparationStatus) -> None:
            nonlocal shown, rows_before
            now = time.monotonic()
            if now - shown < _PERIOD_SECONDS:
                return
            rows_before = state.rows if rows_before < 0 else rows_before
            rate = (state.rows - rows_before) / max(now - begun, 1e-9)
            progress.update(
                task, completed=state.bytes_done, total=state.bytes_all, rows=state.rows, rate=rate
            )
            shown = now

        yield on_progress
