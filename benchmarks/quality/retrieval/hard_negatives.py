"""Hard negatives on MovieLens 100k: what a user disliked, as further negatives of two towers, or not.

    OMP_NUM_THREADS=1 python benchmarks/quality/retrieval/hard_negatives.py --data DIR/ml-100k.inter.gz \\
        --out benchmarks/quality/results/hard_negatives.json

Each row is a film that a user gave 4 or 5 stars; the last one of each user is the test. The films with 1 or 2
stars are disliked: the earlier half of a user's is in the list of each of its rows, the later half is held
out. All films are ranked but those that the user liked before. Runs that are in the file already are not made
again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import shadowsync
from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.benchmarks.quality.retrieval.next_items import vectors_of
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.text.markdown import markdown_table

BEST: Final = 10
DISLIKED: Final = {"kind": "multi_hot", "table": "item_id", "pooling": "none", "max_ids": 20, "keep": "last"}
VARIANTS: Final[dict[str, dict[str, Any]]] = {"without": {}, "with": {"negatives": "disliked"}}
FIGURES: Final = ("recall", "disliked, given", "disliked, not given")


def rows_of(ratings: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows to train on, and one for each user, with lists of what was liked and disliked."""
    ordered = ratings.sort("timestamp", maintain_order=True)
    bad = ordered.filter(pl.col("rating") <= 2).with_columns(
        (pl.int_range(pl.len()) < pl.len() // 2).over("user_id").alias("early")
    )
    lists = [
        bad.filter(pl.col("early") == early).group_by("user_id").agg(pl.col("item_id").alias(name))
        for early, name in ((True, "disliked"), (False, "disliked_later"))
    ]
    liked = ordered.filter(pl.col("rating") >= 4)
    for one in lists:
        liked = liked.join(one, on="user_id", how="left", maintain_order="left")
    later = pl.int_range(pl.len()).reverse().over("user_id")
    liked = liked.with_columns(later.alias("later"), pl.lit(1).alias("rated"))
    train, test = liked.filter(pl.col("later") > 0), liked.filter(pl.col("later") == 0)
    seen = train.group_by("user_id").agg(pl.col("item_id").alias("seen"))
    return train, test.join(seen, on="user_id", how="inner").sort("user_id")


def job_tree(train: Path, folder: Path, variant: str, seed: int) -> dict[str, Any]:
    """Return the job of a variant."""
    columns = {"rated": "label", "item_id": "categorical", "user_id": "categorical"}
    model = VARIANTS[variant]
    return {
        "run": {"seed": seed, "directory": str(folder)},
        "data": {
            "format": "parquet",
            "path": [str(train)],
            "columns": columns | ({"disliked": DISLIKED} if model else {}),
            "epochs": 8,
            "shuffle_window": 100_000,
        },
        "model": {
            "name": "two_tower",
            "query": ["user_id"],
            "item": ["item_id"],
            "top": [],
            "embedding_dim": 32,
            "table_rows": 4000,
            "table_kind": "growing",
            "options": {"dim": 32, "temperature": 0.1},
        }
        | model,
        "trainer": {"batch": 512, "optimizer": "adam", "lr": 0.003, "precision": "float32"},
        "embedding": {"optimizer": "adam", "lr": 0.003},
        "report": {"pictures": False},
    }


def figures(model: SavedModel, test: pl.DataFrame, films: list[int]) -> dict[str, float]:
    """Return recall@10 of the last film liked, and the disliked films among a user's first ten."""
    catalogue = test[:1].drop("item_id").join(pl.DataFrame({"item_id": films}), how="cross")
    scores = vectors_of(model, test, "query") @ vectors_of(model, catalogue, "item").T
    place, sums = {film: number for number, film in enumerate(films)}, dict.fromkeys(FIGURES, 0)
    for own, row in zip(scores, test.iter_rows(named=True), strict=True):
        own[[place[seen] for seen in row["seen"]]] = -np.inf
        first = {films[number] for number in np.argpartition(-own, BEST)[:BEST]}
        sums["recall"] += row["item_id"] in first
        sums[FIGURES[1]] += len(first & set(row["disliked"] or ()))
        sums[FIGURES[2]] += len(first & set(row["disliked_later"] or ()))
    return {name: total / len(test) for name, total in sums.items()}


def main() -> None:
    """Make the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    read = pl.read_csv(given.data, separator="\t")
    ratings = read.rename({name: name.partition(":")[0] for name in read.columns})
    films = sorted(ratings["item_id"].unique().to_list())
    train, test = rows_of(ratings)
    results: dict[str, dict[str, Any]] = kept_runs(given.out)
    with tempfile.TemporaryDirectory(prefix="hard-negatives-") as name:
        path = Path(name) / "train.parquet"
        train.write_parquet(path)
        for seed in range(1, given.seeds + 1):
            for variant in VARIANTS:
                made = results.setdefault(variant, {})
                if str(seed) in made:
                    continue
                folder = Path(name) / f"{seed}-{variant}"
                report = shadowsync.run(job_of_tree(job_tree(path, folder, variant, seed)))
                assert report.ledger.adds_up
                made[str(seed)] = figures(SavedModel.open(folder / "latest"), test, films)
                keep_runs(given.out, results)
                print(f"{variant}, {seed}: {made[str(seed)]}", flush=True)
    lines = []
    for variant, made in results.items():
        of = {name: [run[name] for run in made.values()] for name in FIGURES}
        cells = (f"{statistics.mean(v):.4f} ({min(v):.4f} to {max(v):.4f})" for v in of.values())
        lines.append((variant, *cells))
    print("\n".join(markdown_table(("negatives", f"recall@{BEST}", *FIGURES[1:]), lines)))


if __name__ == "__main__":
    main()
