"""The picture of a profile: where the time of the workers goes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# The object API only: pyplot keeps global state and is bound to one thread.
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..checkpoint.whole_file import whole_file
from . import words
from .document import PROFILE_PICTURE, Profile

_COLOURS: Final = {
    "compute": "tab:green",
    "core": "yellowgreen",
    "gil": "tab:red",
    "handling": "tab:gray",
    "reader": "tab:blue",
    "embedding": "tab:orange",
    "network": "tab:purple",
    "sync": "tab:brown",
}


def draw_profile(profile: Profile, directory: Path) -> Path:
    """Draws profile.png into `directory`, whole or not at all; raises ResourceError."""
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = dict(words.causes(profile.verdict.time))
    colours = {text: _COLOURS[cause] for cause, text in words.CAUSES.items()}
    names = list(reversed(shown))
    bars = axes.barh(names, [shown[name] for name in names], color=[colours[name] for name in names])
    axes.bar_label(bars, labels=[f"{shown[name]:.0%}" for name in names], padding=3)
    axes.set_xlim(0.0, max(1.0, *shown.values()) * 1.08)
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0))
    axes.set_xlabel("share of the workers' time")
    axes.set_title(f"{profile.measured.run}: {profile.verdict.bottleneck}")
    axes.spines[["top", "right"]].set_visible(False)
    with whole_file(directory / PROFILE_PICTURE) as file:
        figure.savefig(file, format="png", dpi=110)
    return directory / PROFILE_PICTURE
