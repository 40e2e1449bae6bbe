"""How far a linear model gets on a generated click log.

The figure is a fraction of the teacher's gain over the mean.

    python benchmarks/teacher_floor.py [LOG] [--examples N] [--seed N] [--out FILE.json]

LOG is a folder that `shadowsync generate` wrote; without it one of N examples is made and thrown away. The
logistic regression has one weight for every id that occurs (and for "missing" in every column), none shared,
and takes the logs of the counts. It is trained by Adagrad under several learning rates and L2 penalties, each
until an epoch no longer lowers the logloss on the first half of the eval part; the best of all is scored on
the other half.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from shadowsync.pipeline.data.generator.columns import COUNT_COLUMNS, ID_COLUMNS, ranks_of_ids
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.data.generator.manifest import LogManifest, PartManifest, read_manifest_file
from shadowsync.pipeline.data.generator.teacher import Teacher
from shadowsync.pipeline.report.write import describe_hardware, versions

COUNTS = [f"I{number + 1}" for number in range(len(COUNT_COLUMNS))]
IDS = [f"C{number + 1}" for number in range(len(ID_COLUMNS))]
BATCH = 512
RATES, PENALTIES = (0.01, 0.02, 0.05), (0.0, 50.0, 200.0)
MAX_EPOCHS = 40


@dataclass(frozen=True)
class Examples:
    """The rows of a part, as arrays.

    labels float32 [n]; counts float64 [n, 13], log-transformed; ids int64 [n, 26], places of weights.
    """

    labels: NDArray[np.float32]
    counts: NDArray[np.float64]
    ids: NDArray[np.int64]

    def rows(self, part: slice) -> Examples:
        return Examples(self.labels[part], self.counts[part], self.ids[part])


class LogisticRegression:
    """A logistic regression, trained by Adagrad.

    It has one weight an id, one a count, and a bias. Adagrad is on the mean loss of a batch.
    """

    def __init__(self, train: Examples, weights: int, rate: float, penalty: float) -> None:
        self._train, self._rate = train, rate
        occurrences = np.bincount(train.ids.ravel(), minlength=weights)
        # Shared out over an id's occurrences, so that an epoch applies the penalty of the whole loss once.
        self._decay = penalty / np.maximum(occurrences, 1)
        self._id, self._id_state = np.zeros(weights), np.full(weights, 1e-8)
        self._count, self._count_state = np.zeros(len(COUNTS)), np.full(len(COUNTS), 1e-8)
        mean = float(train.labels.mean())
        self._bias, self._bias_state = float(np.log(mean / (1 - mean))), 1e-8

    def epoch(self, order: NDArray[np.int64]) -> None:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            ids, counts = self._train.ids[rows], self._train.counts[rows]
            residual = self._predict(ids, counts) - self._train.labels[rows]
            places, inverse, times = np.unique(ids.ravel(), return_inverse=True, return_counts=True)
            slope = np.bincount(inverse, np.repeat(residual, len(IDS))).astype(np.float64)
            slope += self._decay[places] * times * self._id[places]
            self._id_state[places] += slope**2
            self._id[places] -= self._rate * slope / np.sqrt(self._id_state[places])
            count_slope = residual @ counts
            self._count_state += count_slope**2
            self._count -= self._rate * count_slope / np.sqrt(self._count_state)
            self._bias_state += float(residual.sum()) ** 2
            self._bias -= self._rate * float(residual.sum()) / self._bias_state**0.5

    def logloss(self, examples: Examples) -> float:
        return logloss(self._predict(examples.ids, examples.counts), examples.labels)

    def _predict(self, ids: NDArray[np.int64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
        logits = self._id[ids].sum(axis=1) + counts @ self._count + self._bias
        chances: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-logits))
        return chances


def main() -> None:
    """Read or make the log, train, print the table, write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", nargs="?", type=Path, help="folder of a generated log")
    parser.add_argument("--examples", type=int, default=1_000_000, help="of a log made here")
    parser.add_argument("--eval-examples", type=int, default=100_000, help="of a log made here")
    parser.add_argument("--seed", type=int, default=1, help="of a log made here")
    parser.add_argument("--out", type=Path, default=Path("teacher_floor.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.log or Path(scratch)
        if options.log is None:
            generate_log(
                folder,
                examples=options.examples,
                eval_examples=options.eval_examples,
                seed=options.seed,
                data_format="parquet",
            )
        manifest = read_manifest_file(folder / "log.json")
        if manifest is None or not manifest.train.examples or not manifest.eval.examples:
            parser.error(f"{folder} has no generated log with a train and an eval part")
        result = measure(folder, manifest)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {options.out}")


def measure(folder: Path, manifest: LogManifest) -> dict[str, Any]:
    """Train on the log in `folder`; return what is written."""
    frames = [read_part(folder, manifest, part) for part in (manifest.train, manifest.eval)]
    train, evaluation, weights = indexed(*frames)
    half = len(evaluation.labels) // 2
    chosen_on, scored_on = evaluation.rows(slice(half)), evaluation.rows(slice(half, None))
    chances = teacher_chances(manifest.seed, frames[1][half:])
    base = mean_entropy(scored_on.labels)
    teacher_ne = logloss(chances, scored_on.labels) / base
    print(f"{len(train.labels):,} examples, {weights:,} id weights, teacher's NE {teacher_ne:.4f}")
    print(f"{'rate':>6} {'L2':>6} {'epochs':>6} {'NE':>8} {'of gain':>8} {'seconds':>8}")
    tried = []
    for rate, penalty in product(RATES, PENALTIES):
        started = time.perf_counter()
        selection, loss, epochs = train_until_worse(train, chosen_on, scored_on, weights, rate, penalty)
        ne = loss / base
        seconds = time.perf_counter() - started
        row = {"rate": rate, "l2": penalty, "epochs": epochs, "selection_logloss": selection, "ne": ne}
        tried.append(row | {"gain_ratio": (1 - ne) / (1 - teacher_ne), "seconds": round(seconds, 1)})
        ratio = tried[-1]["gain_ratio"]
        print(f"{rate:6} {penalty:6} {epochs:6} {ne:8.4f} {ratio:8.3f} {seconds:8.1f}", flush=True)
    best = min(tried, key=lambda row: row["selection_logloss"])
    print(f"best: {best['gain_ratio']:.3f} of the teacher's gain")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": describe_hardware().model_dump(),
        "versions": versions(),
        "log": {"seed": manifest.seed, "version": manifest.version, "examples": manifest.train.examples},
        "distinct_ids": manifest.train.distinct_ids,
        "teacher_ne": teacher_ne,
        "best": best,
        "tried": tried,
    }


def train_until_worse(
    train: Examples, chosen_on: Examples, scored_on: Examples, weights: int, rate: float, penalty: float
) -> tuple[float, float, int]:
    """Train until the selection logloss is no longer lowered.

    Returns the lowest selection logloss, the scored one of that epoch, and the epochs trained to see it end.
    """
    model = LogisticRegression(train, weights, rate, penalty)
    order = np.random.Generator(np.random.PCG64(1))
    best = (float("inf"), float("inf"))
    for epoch in range(1, MAX_EPOCHS + 1):
        model.epoch(order.permutation(len(train.labels)))
        now = (model.logloss(chosen_on), model.logloss(scored_on))
        if now[0] >= best[0]:
            return (*best, epoch)
        best = now
    return (*best, MAX_EPOCHS)


def read_part(folder: Path, manifest: LogManifest, part: PartManifest) -> pl.DataFrame:
    """All rows of a part, whatever the format.

    They have the columns label, I1.., C1...
    """
    paths = [folder / file.name for file in part.files]
    if manifest.data_format == "parquet":
        return pl.concat([pl.read_parquet(path) for path in paths])
    schema = {"label": pl.Int32} | dict.fromkeys(COUNTS, pl.Int32) | dict.fromkeys(IDS, pl.String)
    return pl.concat([pl.read_csv(path, separator="\t", has_header=False, schema=schema) for path in paths])


def indexed(train: pl.DataFrame, evaluation: pl.DataFrame) -> tuple[Examples, Examples, int]:
    """Both parts with a number for every (column, id).

    The missing id has one too. Also returns how many there are.
    """
    both = pl.concat([train, evaluation])
    columns, weights = [], 0
    for name in IDS:
        places = both[name].fill_null("").rank("dense").to_numpy().astype(np.int64) - 1
        columns.append(places + weights)
        weights += int(places.max()) + 1
    ids = np.stack(columns, axis=1)
    counts = np.nan_to_num(both.select(pl.col(COUNTS).cast(pl.Float64)).to_numpy(), nan=0.0)
    counts = np.sign(counts) * np.log1p(np.abs(counts))
    counts = (counts - counts.mean(axis=0)) / counts.std(axis=0)
    everything = Examples(both["label"].to_numpy().astype(np.float32), counts, ids)
    return everything.rows(slice(len(train))), everything.rows(slice(len(train), None)), weights


def teacher_chances(seed: int, rows: pl.DataFrame) -> NDArray[np.float64]:
    """The true probabilities of rows read from files."""
    counts = rows.select(pl.col(COUNTS).cast(pl.Float64)).to_numpy().T
    ranks = np.full((len(IDS), len(rows)), -1, np.int32)
    for place, name in enumerate(IDS):
        there = rows[name].is_not_null().to_numpy()
        ids = rows[name].drop_nulls().str.to_integer(base=16).to_numpy().astype(np.uint32)
        ranks[place, there] = ranks_of_ids(seed, place, ids)
    return Teacher(seed).probabilities(counts, ranks)


def logloss(chances: NDArray[np.float64], labels: NDArray[np.float32]) -> float:
    """Mean logloss in nats."""
    bounded = np.clip(chances, 1e-12, 1 - 1e-12)
    return float(-np.log(np.where(labels > 0.5, bounded, 1 - bounded)).mean())


def mean_entropy(labels: NDArray[np.float32]) -> float:
    """Logloss of always predicting the mean label."""
    return logloss(np.full(len(labels), float(labels.mean())), labels)


if __name__ == "__main__":
    main()
