"""A profile on the terminal: the verdict, where the time goes, why, and what would help."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import words
from .document import Profile

_BAR: Final = 30
_SHOWN_SHARE: Final = 0.005


def print_profile(profile: Profile, console: Console) -> None:
    """Prints it; without colours or control codes if it is no terminal. Only the thread that owns `console`
    may call."""
    verdict = profile.verdict
    colour = "yellow" if verdict.bottleneck not in ("compute", "balanced") else "green"
    console.print(Text(words.headline(profile), style=f"bold {colour}"))
    console.print(Text(words.how(profile)))
    console.print()
    table = Table.grid(padding=(0, 2))
    for what, share in words.causes(verdict.time):
        if share >= _SHOWN_SHARE:
            table.add_row(f"{share:5.1%}", "█" * max(1, round(share * _BAR)), what)
    console.print(table)
    for title, texts in (("Why", verdict.reasons), ("What would help", verdict.remedies)):
        console.print()
        console.print(Text(title, style="bold"))
        points = Table.grid(padding=(0, 1))
        for text in texts:
            points.add_row("-", Text(text.replace("`", "")))
        console.print(points)
    console.print()
    for note in profile.notes:
        console.print(Text(note, style="dim"))
