"""Control of the NE after kills: one embedding node's rows do not move.

    python benchmarks/quality/dropped_pushes.py --job job.toml --runs 5 --chaos chaos/chaos.json \\
        --out benchmarks/quality/results/dropped_pushes.json

The last embedding node gets all pushes, and steps its rows by a rate so small that they stay as they are:
to the model this is a node that drops every push. NE has to be further from that of the jobs without faults
in `chaos.json` than the jobs with kills are allowed to be.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import shadowsync
from shadowsync.benchmarks.job_runs import keep_runs, run_job_file
from shadowsync.pipeline.jobfile.load import load_job

NO_RATE = 1e-20
MOST_DEVIATIONS = 5.0


def tables_of_last_node(job: Path, directory: Path) -> list[str]:
    """Run the job once; return the tables that its last embedding node has wholly."""
    report = shadowsync.run(load_job(str(job), (f"run.directory={json.dumps(str(directory))}",)))
    run = directory / "latest"
    assert report.placement is not None
    last = report.placement.nodes[-1].name
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    return [
        table["name"] for table in plan["tables"] if all(piece["node"] == last for piece in table["pieces"])
    ]


def dropping(job: Path, tables: list[str], runs: int) -> list[float]:
    """Return the NE of jobs in which these tables do not move."""
    rates = tuple(f"tables.{name}.lr={NO_RATE}" for name in tables)
    found = []
    for _ in range(runs):
        report = run_job_file(job, rates)
        assert report.eval is not None
        assert report.eval.ne is not None
        found.append(report.eval.ne)
    return found


def main() -> None:
    """Run the jobs, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--chaos", type=Path, required=True, help="chaos.json of the same job")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    clean = json.loads(given.chaos.read_text(encoding="utf-8"))["clean_ne"]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        tables = tables_of_last_node(given.job, Path(directory))
    ne = dropping(given.job, tables, given.runs)
    mean, deviation = statistics.fmean(clean), statistics.stdev(clean)
    deviations = [(one - mean) / deviation for one in ne]
    result: dict[str, Any] = {"tables": tables, "ne": ne, "clean_jobs": len(clean), "deviations": deviations}
    keep_runs(given.out, result)
    change = statistics.fmean(ne) / mean - 1
    print(f"{statistics.fmean(ne):.4f}, {change:+.2%}: {min(deviations):.1f} deviations or more")
    assert min(deviations) > MOST_DEVIATIONS, "a node that drops all pushes would not have been noticed"


if __name__ == "__main__":
    main()
