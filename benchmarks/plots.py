"""Pictures of results that lie in docs/results.

python benchmarks/plots.py docs/results
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Row = dict[str, Any]


def figure(columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with plots side by side."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, [made.add_subplot(1, columns, at + 1) for at in range(columns)]


def plot_scaling(results: Row, path: Path) -> None:
    """Plot the figures against the number of trainers.

    They are steps/s, sync gap and bytes/s, with what arithmetic predicts.
    """
    made, (steps, gaps, traffic) = figure(3, 15, 4.5)
    cells: list[Row] = results["cells"]
    kinds = dict.fromkeys((cell["mode"], cell["sync_nodes"]) for cell in cells)
    for number, (mode, nodes) in enumerate(kinds):
        own = [cell for cell in cells if (cell["mode"], cell["sync_nodes"]) == (mode, nodes)]
        x = [cell["trainers"] for cell in own]
        kind = "shadow" if mode == "shadow" else "fixed 5"
        label = f"{kind}, {nodes} sync node{'s' if nodes > 1 else ''}"
        style: Row = {"color": f"C{number}", "marker": "o", "label": label}
        steps.plot(x, [cell["steps_per_second"] for cell in own], **style)
        # Of a window of few rounds the mean of the gaps is off; iterations over rounds is not.
        gap = [cell["steps_per_second"] / cell["rounds_per_second"] for cell in own]
        gaps.plot(x, gap, **style)
        traffic.plot(x, [cell["bytes_per_second"] / 1e6 for cell in own], **style)
        dashed: Row = {"color": f"C{number}", "linestyle": ":", "linewidth": 1.5}
        steps.plot(x, [cell["predicted_steps_per_second"] for cell in own], **dashed)
        gaps.plot(x, [cell["predicted_gap"] for cell in own], **dashed)
    for axes, name in ((steps, "steps/s, all trainers"), (gaps, "sync gap, iterations"), (traffic, "MB/s")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xlabel("trainers")
        axes.set_title(name)
        axes.grid(alpha=0.3)
    steps.legend(fontsize=8)
    gaps.plot([], [], color="grey", linestyle=":", label="predicted")
    gaps.legend(fontsize=8)
    made.savefig(path, dpi=110)


def plot_differences(results: Row, path: Path, base: str) -> None:
    """Plot the NE of each cell less that of `base`.

    It shows each seed, the mean, and its interval.
    """
    made, (axes,) = figure(1, 8, 4)
    differences = {name: of for name, of in results["ne_differences"][base].items() if name != base}
    for at, (name, of) in enumerate(differences.items()):
        paired = [
            row["ne"] - under["ne"]
            for row, under in zip(results["runs"][name], results["runs"][base], strict=True)
        ]
        axes.plot([at, at], [of["low"], of["high"]], color="C0", linewidth=2, alpha=0.5)
        axes.plot([at], [of["mean"]], "o", color="C0")
        axes.plot([at + 0.15] * len(paired), paired, ".", color="grey")
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(differences)), list(differences), rotation=20)
    axes.set_ylabel(f"NE less that of {base} (lower is better)")
    axes.grid(alpha=0.3)
    made.savefig(path, dpi=110)


def main() -> None:
    """Draw what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if (source := folder / "scaling.json").exists():
        plot_scaling(json.loads(source.read_text(encoding="utf-8"))["results"], folder / "scaling.png")
    if (source := folder / "algorithms.json").exists():
        whole = json.loads(source.read_text(encoding="utf-8"))["results"]
        plot_differences(whole, folder / "algorithms.png", "1 trainer")


if __name__ == "__main__":
    main()
