"""What each algorithm does to quality.

Jobs have 4 trainers, shadow and fixed, on a generated log.

    python benchmarks/algorithms.py compare --out docs/results/algorithms.json
    python benchmarks/algorithms.py sweep --out docs/results/algorithms_sweep.json
    python benchmarks/algorithms.py codecs --out docs/results/codecs_quality.json

Every cell of a seed has the same log; differences are paired by seed, with a 95% t interval.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.pairs import Figures, save, table
from shadowsync.benchmarks.quality import Cell, measure
from shadowsync.lab.statistics import paired_difference


def compared(trainers: int, batch: int) -> dict[str, Cell]:
    """One trainer, none, and three algorithms in both modes."""
    cells = {
        "1 trainer": Cell(1, batch, {"algorithm": "none"}),
        "none": Cell(trainers, batch, {"algorithm": "none"}),
    }
    for name in ("easgd", "ma", "bmuf"):
        cells[name] = Cell(trainers, batch, {"algorithm": name})
        cells[f"{name}@5"] = Cell(trainers, batch, {"algorithm": name, "mode": "fixed", "every": 5})
    return cells


def swept(trainers: int, batch: int) -> dict[str, Cell]:
    """The cells of the sweep.

    They vary the elastic rate, BMUF's step, the duty cycle, and the form of the replica's update.
    """
    shadow: dict[str, dict[str, Any]] = {"easgd": {"algorithm": "easgd"}}
    for rate in (0.1, 0.9):
        shadow[f"easgd, elastic rate {rate}"] = {"algorithm": "easgd", "options": {"elastic_rate": rate}}
    for duty in (0.002, 0.05):
        shadow[f"easgd, duty {duty}"] = {"algorithm": "easgd", "duty": duty}
    for rate in (0.2, 0.5, 1.0):
        for form in ("interpolate", "keep"):
            options: dict[str, Any] = {"elastic_rate": rate, "form": form}
            shadow[f"ma, elastic rate {rate}, {form}"] = {"algorithm": "ma", "options": options}
    for eta in (0.5, 1.0):
        options = {"eta": eta}
        shadow[f"bmuf, eta {eta}"] = {"algorithm": "bmuf", "options": options}
    shadow["bmuf, momentum 0.5"] = {"algorithm": "bmuf", "options": {"block_momentum": 0.5}}
    nesterov = {"block_momentum": 0.5, "nesterov": True}
    shadow["bmuf, Nesterov 0.5"] = {"algorithm": "bmuf", "options": nesterov}
    return {name: Cell(trainers, batch, sync) for name, sync in shadow.items()}


def coded(trainers: int, batch: int) -> dict[str, Cell]:
    """Each codec on the links of EASGD and MA."""
    cells = {}
    for name in ("easgd", "ma"):
        for codec in ("float32", "bfloat16", "int8"):
            ways = ("center_up", "center_down") if name == "easgd" else ("peers_up", "peers_down")
            sync = {"algorithm": name, "codecs": dict.fromkeys(ways, codec)}
            cells[f"{name}, {codec}"] = Cell(trainers, batch, sync)
    return cells


def differences(results: dict[str, list[Figures]], base: str, key: str) -> dict[str, Figures]:
    """`key` of each cell less that of `base`.

    It is paired by seed: mean, interval and both ends of it.
    """
    found: dict[str, Figures] = {}
    for name, rows in results.items():
        of = paired_difference([row[key] for row in rows], [row[key] for row in results[base]])
        low = -math.inf if of.low is None else of.low
        high = math.inf if of.high is None else of.high
        found[name] = {"mean": of.mean, "low": low, "high": high, "seeds": of.pairs}
    return found


def main() -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("question", choices=["compare", "sweep", "codecs"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--trainers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--table-rows", type=int, default=100_000)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "shadowsync-benchmark")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    cells = {"compare": compared, "sweep": swept, "codecs": coded}[given.question](
        given.trainers, given.batch
    )
    results = measure(cells, given.seeds, given.examples, given.table_rows, given.data, None)
    bases = {
        "compare": ["1 trainer", "none"],
        "sweep": ["easgd"],
        "codecs": ["easgd, float32", "ma, float32"],
    }
    print(table(results))
    verdict = {}
    for base in bases[given.question]:
        verdict[base] = differences(results, base, "ne")
        for name, of in verdict[base].items():
            print(
                f"NE of {name} less that of {base}: {of['mean']:+.5f} ({of['low']:+.5f} to {of['high']:+.5f})"
            )
    what = f"{given.question}: {given.trainers} trainers, {given.examples} examples, batch {given.batch}"
    save(given.out, what, {"ne_differences": verdict, "runs": results})


if __name__ == "__main__":
    main()
