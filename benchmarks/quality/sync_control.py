"""Gain of `sync.control` with one bound, on mixed and on skewed data.

    shadowsync generate demo-data --examples 100000 --eval-examples 50000 --seed 1 --reuse
    python benchmarks/quality/sync_control.py --log demo-data \\
        --out benchmarks/quality/results/sync_control.json

Both kinds of data have the same examples in four files, one for each of four emulated trainers. A *skewed*
file is a country with a click rate of its own, a *mixed* file is a random quarter. Runs that are in the file
already are not made again. `--only` names variants; variants of the elastic rate run only if they are named.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from shadowsync.benchmarks.job_runs import job_text, keep_runs, kept_runs
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.result import VirtualResult
from shadowsync.lab.virtual.timing import Timing
from shadowsync.pipeline.jobfile.load import load_job

TRAINERS = 4
# Examples are sorted into countries by their label plus noise of this standard deviation: the smaller it is,
# the further the countries' click rates are apart.
COUNTRY_NOISE = 0.7
TIMING = Timing(own_files=True)
AUTO = ("sync.control=auto",)
# A round's 0.4 MB take 0.17 s on this link, and rounds have half of the time: at best, a round every 17
# iterations.
SLOW_LINK = ('network.bandwidth="20mbit"', "sync.duty=0.5", "sync.link_bytes_per_second=2.5e6")


def fixed(gap: int) -> tuple[str, ...]:
    """Return the settings of a constant gap, with a control that only measures."""
    return (*AUTO, f"sync.gap={gap}", f"sync.control_max_gap={gap}", "sync.control_bound=1000.0")


GAPS: dict[str, tuple[str, ...]] = {f"gap {gap}": fixed(gap) for gap in (1, 2, 4, 8, 16, 32)}
CONTROLS: dict[str, tuple[str, ...]] = {
    "control": AUTO,
    "control, bound 0.5": (*AUTO, "sync.control_bound=0.5"),
    "control, from gap 32": (*AUTO, "sync.gap=32"),
    "control, slow link": (*AUTO, *SLOW_LINK),
    "gap 1, slow link": (*fixed(1), *SLOW_LINK),
}
MEANS: dict[str, tuple[str, ...]] = {
    f"ma, {name}": (*settings, "sync.algorithm=ma")
    for name, settings in (("gap 4", fixed(4)), ("gap 32", fixed(32)), ("control", AUTO))
}
# To see in which direction a rate moves the replicas.
RATES: dict[str, tuple[str, ...]] = {
    f"{algorithm}, gap 4, elastic rate {rate}": (
        *fixed(4),
        f"sync.algorithm={algorithm}",
        f"sync.options={{elastic_rate={rate}}}",
    )
    for algorithm in ("easgd", "easgd_symmetric", "ma")
    for rate in (0.1, 0.25, 0.5, 0.75, 0.9)
}
VARIANTS = GAPS | CONTROLS | MEANS | RATES


def split(log: Path, folder: Path) -> dict[str, list[float]]:
    """Write the log's training examples as mixed and skewed files, TRAINERS each.

    Returns their click rates.
    """
    table = pa.concat_tables([pq.read_table(path) for path in sorted(log.glob("train-*.parquet"))])
    random = np.random.default_rng(1)
    label = table["label"].to_numpy()
    mixed = random.permutation(len(table))
    country = np.argsort(label + random.normal(0.0, COUNTRY_NOISE, len(table)), kind="stable")
    rates = {}
    for kind, order in (("mixed", mixed), ("skewed", country)):
        (folder / kind).mkdir()
        parts = [np.sort(part) for part in np.array_split(order, TRAINERS)]
        for number, part in enumerate(parts):
            # Row groups as small as a log's, since a span is read as a whole.
            pq.write_table(
                table.take(pa.array(part)), folder / kind / f"part-{number}.parquet", row_group_size=1 << 14
            )
        rates[kind] = [float(label[part].mean()) for part in parts]
    return rates


def job_of(data: Path, log: Path) -> dict[str, dict[str, Any]]:
    """Return a small job on these files, scored on the log's held-out examples."""
    return {
        "data": {
            "format": "parquet",
            "path": str(data / "part-*.parquet"),
            "eval_path": str(log.resolve() / "eval-*.parquet"),
            "shuffle_window": 16384,
        },
        "model": {
            "name": "dlrm",
            "embedding_dim": 8,
            "table_rows": 20_000,
            "bottom": [128, 32],
            "top": [128],
        },
        "trainer": {
            "count": TRAINERS,
            "batch": 64,
            "optimizer": "adagrad",
            "lr": 0.01,
            "precision": "float32",
        },
        "embedding": {"optimizer": "rowwise_adagrad", "lr": 0.02, "warmup_iterations": 30},
        "sync": {"algorithm": "easgd", "duty": 1.0, "nodes": 1},
    }


def figures(result: VirtualResult) -> dict[str, Any]:
    """Return the figures to keep of a run."""
    return {
        "ne": result.ne,
        "training_ne": result.training_ne,
        "rounds": result.rounds,
        "sync_bytes": result.sync_bytes,
        "gap": result.gap_mean,
        "iterations": result.iterations,
        "control": result.control.model_dump() if result.control is not None else None,
    }


def runs(seeds: int, only: list[str]) -> Iterator[tuple[str, str, int]]:
    """Yield kind of data, variant and seed, a seed after the other."""
    for seed in range(1, seeds + 1):
        yield from ((kind, name, seed) for kind in ("mixed", "skewed") for name in only)


def main() -> None:
    """Make the missing runs, and print means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=list(GAPS | CONTROLS | MEANS))
    parser.add_argument("--set", nargs="*", default=[], help="settings of every run")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    made: dict[str, Any] = kept_runs(given.out)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        made["click_rates"] = split(given.log, folder)
        for kind, variant, seed in runs(given.seeds, given.only):
            done = made.setdefault(kind, {}).setdefault(variant, {})
            if str(seed) in done:
                continue
            file = folder / f"{kind}.toml"
            file.write_text(job_text(job_of(folder / kind, given.log)), encoding="utf-8")
            job = load_job(str(file), (*VARIANTS[variant], *given.set, f"run.seed={seed}"))
            done[str(seed)] = figures(run_virtual(job, TIMING))
            keep_runs(given.out, made)
            print_run(f"{kind}, {variant}, seed {seed}", done[str(seed)])
    for kind in ("mixed", "skewed"):
        for variant in given.only:
            found = [run["ne"] for run in made[kind][variant].values()]
            print(f"{kind}, {variant}: NE {statistics.fmean(found):.4f} of {len(found)}")


def print_run(what: str, run: dict[str, Any]) -> None:
    """Print a run's figures, and its control's decisions."""
    traffic = f"{run['rounds']} rounds, {run['sync_bytes'] / 1e6:.0f} MB"
    print(f"{what}: NE {run['ne']:.4f}, gap {run['gap']:.1f}, {traffic}")
    if (control := run["control"]) is not None:
        within = f"{control['windows_within']} of {control['windows']} windows within"
        print(f"  ratio {control['ratio']:.2f}, {within}", flush=True)
        for made in control["decisions"]:
            print(f"  {made['seconds']:.1f} s: gap {made['gap']}, {made['why']}")


if __name__ == "__main__":
    main()
