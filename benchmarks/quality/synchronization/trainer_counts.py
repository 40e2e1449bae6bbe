"""Quality cost of more trainers, and of more workers in one: real runs that differ only in their number.

    shadowsync generate demo-data --examples 1000000 --eval-examples 100000 --seed 1 --reuse
    python benchmarks/quality/synchronization/trainer_counts.py --job examples/demo.toml \\
        --out benchmarks/quality/results/trainer_counts.json

All runs have the seed of the job file, so that they differ only by what the machine did. `default` has the
settings of the job file, `control` no warm-up of rows, `dense warm-up` one of the dense model too, the others
(with `--only`) more frequent rounds.
Runs that are in the file already are not made again. `--busy` keeps one core busy with another program.
`--set` changes settings of all runs, such as the model.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shadowsync.benchmarks.job_runs import keep_runs, kept_runs, run_job_file
from shadowsync.benchmarks.quality.synchronization.ablation import DILOCO

# Rounds every four iterations, as far as a twentieth of a core allows.
DENSE = ("sync.duty=0.05", "sync.gap=4")
DENSE_WARM_UP = "dense warm-up"
# The rows of the demo warm up over as many examples of each trainer.
WARM_UP_EXAMPLES = 30 * 512
VARIANTS: dict[str, tuple[str, ...]] = {
    "default": (),
    DENSE_WARM_UP: (),
    "control": ("embedding.warmup_iterations=0",),
    "easgd, gap 4": (*DENSE, "sync.algorithm=easgd"),
    "diloco, gap 4": (*DENSE, DILOCO),
    "bmuf, gap 4": (*DENSE, "sync.algorithm=bmuf"),
    "bmuf auto, gap 4": (
        *DENSE,
        "sync.algorithm=bmuf",
        'sync.options={elastic_rate=0.5, block_momentum="auto"}',
    ),
}

Figures = dict[str, Any]


def run(job: Path, overrides: Sequence[str]) -> Figures:
    """Run the job once, and return the figures to keep."""
    report = run_job_file(job, overrides)
    assert report.eval is not None
    return {
        "ne": report.eval.ne,
        "training_ne": report.train.ne_progressive,
        "gap": report.sync.gap_mean,
        "first_rounds": report.sync.first_rounds,
        "staleness": report.staleness.embedding_mean,
        "examples_per_second": report.throughput.examples_per_second,
    }


@contextlib.contextmanager
def busy_core(*, wanted: bool) -> Iterator[None]:
    """Keep one core busy for the block, if that is wanted."""
    if not wanted:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _spin() -> None:
    while True:
        sum(range(1_000_000))


def settings_of(variant: str, trainers: int, workers: int) -> tuple[str, ...]:
    """Return the overrides of a variant's runs with `trainers` trainers of `workers` workers each."""
    count = (f"trainer.count={trainers}", f"trainer.workers={workers}")
    if variant == DENSE_WARM_UP:
        return (*count, f"trainer.schedule.warmup_examples={WARM_UP_EXAMPLES * trainers}")
    return (*VARIANTS[variant], *count)


def key(variant: str, trainers: int, workers: int, *, busy: bool) -> str:
    """Return the name of a variant's runs with `trainers` trainers of `workers` workers each."""
    each = f" of {workers} workers" if workers > 1 else ""
    return f"{variant}, {trainers} trainers{each}{', busy' * busy}"


def summary(runs: list[Figures], alone: float) -> str:
    """Return mean and deviation of NE, and the distance from one trainer's mean."""
    found = [run["ne"] for run in runs]
    mean = statistics.fmean(found)
    spread = statistics.stdev(found) / mean if len(found) > 1 else 0.0
    against = f"against one trainer {mean / alone - 1:+.2%}"
    return f"NE {mean:.4f}, deviation {spread:.2%}, {against}, {len(found)} runs"


def main() -> None:
    """Make the missing runs, and print a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--workers", type=int, nargs="*", default=[], help="of one trainer, also measured")
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=["default", "control"])
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], help="settings of every run")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    sizes = [*((trainers, 1) for trainers in given.trainers), *((1, workers) for workers in given.workers)]
    made: dict[str, list[Figures]] = kept_runs(given.out)
    with busy_core(wanted=given.busy):
        for number in range(given.runs):
            for variant in given.only:
                for size in sizes:
                    runs = made.setdefault(key(variant, *size, busy=given.busy), [])
                    if len(runs) <= number:
                        runs.append(run(given.job, (*settings_of(variant, *size), *given.set)))
                        keep_runs(given.out, made)
    for variant in given.only:
        names = [key(variant, *size, busy=given.busy) for size in sizes]
        alone = statistics.fmean(
            run["ne"] for run in made.get(key(variant, 1, 1, busy=given.busy), made[names[0]])
        )
        for name in names:
            print(f"{name}: {summary(made[name], alone)}")


if __name__ == "__main__":
    main()
