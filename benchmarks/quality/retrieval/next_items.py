"""Recall of the next film on MovieLens 100k: `sequence` beside `two_tower`.

The latter has the user alone, or a pooled history.

    OMP_NUM_THREADS=1 python benchmarks/quality/retrieval/next_items.py --data DIR/ml-100k.inter.gz \\
        --out benchmarks/quality/results/next_items.json

Each row is a rating, of any number of stars, with the films that its user rated before, the most recent last.
The last film of each user is the test, the one before it the validation; all others are trained. Recall@10 is
the share of users whose film is among the ten of the highest scores, of all films but those of the history,
which nobody rates again. Runs that are in the file already are not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import shadowsync
import torch
from shadowsync.benchmarks.job_runs import keep_runs, kept_runs
from shadowsync.pipeline.data.batches.cutter import batch_to_score
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.models.layers.sequences import with_lengths
from shadowsync.pipeline.saved_model.input_rows import input_schema
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.saved_model.prediction import _rows_of_table
from shadowsync.pipeline.text.markdown import markdown_table

LONGEST: Final = 30
BEST: Final = 10
POOLED: Final = {"kind": "multi_hot", "table": "item_id", "max_ids": LONGEST, "keep": "last"}
COLUMNS: Final[dict[str, Any]] = {"rated": "label", "item_id": "categorical"}
MODELS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "sequence": (
        {"history": POOLED | {"pooling": "none"}},
        {"name": "sequence", "query": ["history"], "dropout": 0.2, "options": {"temperature": 0.1}},
    ),
    "two_tower, pooled history": (
        {"history": POOLED | {"pooling": "mean"}},
        {"name": "two_tower", "query": ["history"], "top": [128], "options": {"dim": 32, "temperature": 0.1}},
    ),
    "two_tower, user": (
        {"user_id": "categorical"},
        {"name": "two_tower", "query": ["user_id"], "top": [128], "options": {"dim": 32, "temperature": 0.1}},
    ),
}
EPOCHS: Final = {"sequence": 4, "two_tower, pooled history": 8, "two_tower, user": 8}
PARTS: Final = {"validation": 1, "test": 0}


def with_all_before(ratings: pl.DataFrame) -> pl.DataFrame:
    """Return ratings by time, with the films before each of the user, and the number of later ones."""
    ordered = ratings.sort("timestamp", maintain_order=True)
    before: dict[int, list[int]] = {}
    histories = []
    for user, item in ordered.select("user_id", "item_id").iter_rows():
        seen = before.setdefault(user, [])
        histories.append(list(seen))
        seen.append(item)
    later = pl.int_range(pl.len()).reverse().over("user_id")
    return ordered.with_columns(
        pl.Series("history", histories, pl.List(pl.Int64)), later.alias("later"), pl.lit(1).alias("rated")
    )


def job_tree(train: Path, folder: Path, name: str, seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the job of a model."""
    columns, model = MODELS[name]
    tree: dict[str, Any] = {
        "run": {"seed": seed, "directory": str(folder)},
        "data": {
            "format": "parquet",
            "path": [str(train)],
            "columns": COLUMNS | columns,
            "epochs": EPOCHS[name],
            "shuffle_window": 100_000,
        },
        "model": {"item": ["item_id"], "embedding_dim": 32, "table_rows": 4000, "table_kind": "growing"}
        | model,
        "trainer": {"batch": 256, "optimizer": "adam", "lr": 0.003, "precision": "float32"},
        "embedding": {"optimizer": "adam", "lr": 0.003},
        "report": {"pictures": False},
    }
    for key, value in changes.items():
        section, _, rest = key.partition(".")
        inner, _, last = rest.partition(".")
        (tree[section].setdefault(inner, {}) if last else tree[section])[last or inner] = value
    return tree


def vectors_of(model: SavedModel, rows: pl.DataFrame, tower: str) -> Any:
    """Return the vectors of a tower for these rows, float32 [n, dim]."""
    schema = input_schema(model.job, model.id_classes)
    batch = batch_to_score(_rows_of_table(rows.to_arrow(), schema, "rows").examples)
    with torch.inference_mode():
        found = model._loaded.embeddings(batch)
        module: Any = model.dense._module
        embeddings = with_lengths(found.embeddings, found.lengths)
        return getattr(module, f"{tower}_vectors")(torch.from_numpy(batch.dense), embeddings).numpy()


def recall(model: SavedModel, rows: pl.DataFrame, films: list[int]) -> float:
    """Return the share of rows whose film is among the best of all films but those of the history."""
    catalogue = rows[:1].drop("item_id").join(pl.DataFrame({"item_id": films}), how="cross")
    scores = vectors_of(model, rows, "query") @ vectors_of(model, catalogue, "item").T
    place = {film: number for number, film in enumerate(films)}
    hits = 0
    for own, history, film in zip(scores, rows["history"].to_list(), rows["item_id"], strict=True):
        own[[place[seen] for seen in history]] = -np.inf
        hits += int((own > own[place[film]]).sum()) < BEST
    return hits / len(rows)


def popular(train: pl.DataFrame, rows: pl.DataFrame) -> float:
    """Return the same of the films that were rated most."""
    ordered = train["item_id"].value_counts().sort("count", "item_id", descending=True)["item_id"].to_list()
    hits = 0
    for history, film in rows.select("history", "item_id").iter_rows():
        seen = set(history)
        hits += film in [one for one in ordered[: len(seen) + BEST] if one not in seen][:BEST]
    return hits / len(rows)


def main() -> None:
    """Make the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--set", nargs="*", default=[], help="KEY=JSON, to try other settings")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    changes = {key: json.loads(value) for key, value in (one.split("=", 1) for one in given.set)}
    read = pl.read_csv(given.data, separator="\t")
    ratings = with_all_before(read.rename({name: name.partition(":")[0] for name in read.columns}))
    films = sorted(ratings["item_id"].unique().to_list())
    train = ratings.filter(pl.col("later") > 1)
    parts = {name: ratings.filter(pl.col("later") == later) for name, later in PARTS.items()}
    results: dict[str, dict[str, Any]] = kept_runs(given.out)
    results["most rated"] = {"all": {name: popular(train, rows) for name, rows in parts.items()}}
    with tempfile.TemporaryDirectory(prefix="next-items-") as name:
        train.write_parquet(Path(name) / "train.parquet")
        for seed in range(1, given.seeds + 1):
            for model in given.models:
                made = results.setdefault(model, {})
                if str(seed) in made:
                    continue
                folder = Path(name) / f"{seed}-{len(made)}-{model.replace(' ', '')}"
                began = time.monotonic()
                tree = job_tree(Path(name) / "train.parquet", folder, model, seed, changes)
                report = shadowsync.run(job_of_tree(tree))
                assert report.ledger.adds_up
                saved, seconds = SavedModel.open(folder / "latest"), time.monotonic() - began
                made[str(seed)] = {name: recall(saved, rows, films) for name, rows in parts.items()}
                made[str(seed)]["seconds"] = seconds
                keep_runs(given.out, results)
                print(f"{model}, {seed}: {made[str(seed)]}", flush=True)
    lines = []
    for model, made in results.items():
        cells = [model]
        for name in PARTS:
            values = [run[name] for run in made.values()]
            cells.append(f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})")
        lines.append(tuple(cells))
    print("\n".join(markdown_table((f"recall@{BEST}", *PARTS), lines)))


if __name__ == "__main__":
    main()
