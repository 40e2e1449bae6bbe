"""Comparison of runs in alternation.

A drift of the machine then affects all alike. The results are medians and a bootstrap interval of the ratio.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from shadowsync.pipeline.report.run_folders.write import describe_hardware, versions
from shadowsync.pipeline.text.markdown import markdown_table

Figures = dict[str, float]


Results = dict[str, list[Figures]]


def alternate(
    runs: dict[str, Callable[[], Figures]],
    rounds: int,
    after: Callable[[Results], object] = lambda results: None,  # noqa: ARG005
) -> Results:
    """Run each in turn, `rounds` times.

    The order is reversed in every other round. Prints the figures of each run. `after` is called with the
    results so far after each round, to save them.
    """
    results: Results = {name: [] for name in runs}
    for number in range(rounds):
        names = list(runs) if number % 2 == 0 else list(reversed(runs))
        for name in names:
            figures = runs[name]()
            results[name].append(figures)
            shown = "  ".join(f"{key} {value:,.4g}" for key, value in figures.items())
            print(f"round {number + 1}/{rounds}  {name:24} {shown}", flush=True)
        after(results)
    return results


def ratio(over: Sequence[float], under: Sequence[float], seed: int = 0) -> dict[str, float]:
    """Median of the paired ratios with a 95% bootstrap interval."""
    paired = np.array(over) / np.array(under)
    random = np.random.default_rng(seed)
    draws = np.median(random.choice(paired, (10_000, len(paired))), axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"median": float(np.median(paired)), "low": float(low), "high": float(high), "pairs": len(paired)}


def show_ratio(name: str, value: dict[str, float]) -> str:
    """One line for a ratio."""
    spread = f"95% {value['low']:.3f} to {value['high']:.3f}, {value['pairs']:.0f} pairs"
    return f"{name}: {value['median']:.3f} ({spread})"


def table(results: dict[str, list[Figures]]) -> str:
    """Medians and ranges of every figure: a Markdown table, a row per name."""
    keys = list(dict.fromkeys(key for rows in results.values() for row in rows for key in row))
    lines = []
    for name, rows in results.items():
        cells = []
        for key in keys:
            values = [row[key] for row in rows if key in row]
            cells.append(
                f"{statistics.median(values):,.4g} ({min(values):,.4g}..{max(values):,.4g})" if values else ""
            )
        lines.append([name, *cells])
    return "\n".join(markdown_table(["", *keys], lines))


def save(path: Path, what: str, results: Any) -> None:
    """Write the results with hardware, versions, date and the machine's present load."""
    note = {
        "what": what,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
        "load_average": list(psutil.getloadavg()),
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")
