"""NE of DIN on MovieLens with histories: item and history in one table, and in one each.

    python examples/histories/histories.py DIR/ml-100k.inter.gz data/histories.parquet
    OMP_NUM_THREADS=1 python benchmarks/quality/data_sets/histories.py --data data/histories.parquet \\
        --out benchmarks/quality/results/histories.json

Rows are trained in the order of time, so a seed sets the first values alone. Runs that are in the file
already are not made again.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Final

from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.benchmarks.quality.data_sets.tasks import EXAMPLES, Task
from shadowsync.pipeline.text.markdown import markdown_table

VARIANTS: Final = {"one table": (), "two tables": ('data.columns.history.table=""',)}


def main() -> None:
    """Make the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="what examples/histories/histories.py wrote")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    files = (f"data.path={given.data.resolve()}",)
    task = Task(EXAMPLES / "histories" / "movielens.toml", files, progressive=True)
    results: dict[str, dict[str, dict[str, float | None]]] = kept_runs(given.out)
    for seed in range(1, given.seeds + 1):
        for name, settings in VARIANTS.items():
            made = results.setdefault(name, {})
            if str(seed) not in made:
                made[str(seed)] = asdict(task.run(seed, settings))
                keep_runs(given.out, results)
                print(f"{name}, {seed}: {made[str(seed)]}", flush=True)
    rows = []
    for name, made in results.items():
        cells = [name]
        for metric in ("ne", "auc"):
            values = [score[metric] or 0.0 for score in made.values()]
            cells.append(f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})")
        rows.append(tuple(cells))
    print("\n".join(markdown_table(("", "NE", "AUC"), rows)))


if __name__ == "__main__":
    main()
