"""Whole jobs of two installations of shadowsync, in pairs.

    shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
    python benchmarks/faults/two_versions.py --before OTHER/.venv/bin/python --log demo-data --pairs 30 \\
        --control 5 --out benchmarks/faults/results/recovery_cost.json

The same job file is run by both, with the defaults of each: checkpoints, restarts and whatever else guards
against deaths. The control, in rounds of its own, is this version with a checkpoint every second. CPU
seconds are those of all processes of the job, as the operating system counts them, start and end included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from shadowsync.benchmarks.job_runs import job_text, on_log
from shadowsync.benchmarks.pairs import Figures, Results, alternate, ratio, save, show_ratio, table

FIGURES: Final = ("examples_per_second", "cpu_seconds_per_million", "cpu_seconds")
BEFORE, NOW, CONTROL = "before", "now", "now, a checkpoint every second"


def sections(log: Path) -> dict[str, dict[str, Any]]:
    """Return a job that both versions know, of two trainers and two embedding nodes."""
    return {
        **on_log(log, seed=1),
        "model": {"embedding_dim": 16, "table_rows": 20_000},
        "trainer": {"count": 2, "batch": 512},
        "embedding": {"nodes": 2},
        "sync": {"algorithm": "easgd", "nodes": 1},
        "report": {"pictures": False},
    }


def measured(python: str, log: Path, more: Mapping[str, dict[str, Any]]) -> Figures:
    """Run one job; return its figures."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        job = {**sections(log), **more}
        job["run"] = {**job["run"], "directory": name}
        file = folder / "job.toml"
        file.write_text(job_text(job), encoding="utf-8")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [python, "-m", "shadowsync.cli", "run", str(file), "--quiet"],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = json.loads((folder / "latest" / "report.json").read_text(encoding="utf-8"))
        assert report["ledger"]["adds_up"]
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {name: report["throughput"][name] for name in FIGURES[:2]} | {FIGURES[2]: spent}


def ratios(results: Results, name: str) -> dict[str, dict[str, float]]:
    """Return the ratio of each figure over the other version's."""
    return {
        figure: ratio([run[figure] for run in results[name]], [run[figure] for run in results[BEFORE]])
        for figure in FIGURES
    }


def main() -> None:
    """Run the pairs, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", required=True, help="Python of the other installation")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--control", type=int, default=5, help="pairs of the control")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    log = given.log.absolute()
    old, new = partial(measured, given.before, log, {}), partial(measured, sys.executable, log, {})
    often = partial(measured, sys.executable, log, {"checkpoint": {"every_seconds": 1}})
    found: dict[str, Any] = {}
    for name, other, rounds in ((NOW, new, given.pairs), (CONTROL, often, given.control)):
        results = alternate({BEFORE: old, name: other}, rounds)
        found[name] = {"runs": results, "over before": ratios(results, name)}
        save(given.out, "two versions", found)
        print(table(results))
        for figure, value in found[name]["over before"].items():
            print(show_ratio(f"{name} over {BEFORE}, {figure}", value))


if __name__ == "__main__":
    main()
