"""MovieLens 100k with a user's history: before each rating the films that were liked and disliked last.

    python examples/histories/histories.py PATH/ml-100k.inter data/histories.parquet

With `--last data/last.parquet` the row of the film that each user liked last is in that file instead.

The file is one of those of examples/movielens.toml: ml-100k.inter, plain or compressed, or u.data.
"""

from __future__ import annotations

import argparse
from collections import defaultdict, deque
from pathlib import Path
from typing import Final

import polars as pl

COLUMNS: Final = ("user_id", "item_id", "rating", "timestamp")
LIKED: Final = 4
DISLIKED: Final = 2
LONGEST: Final = 20


def with_histories(ratings: pl.DataFrame) -> pl.DataFrame:
    """Return ratings in the order of time, with the lists of films liked and disliked before.

    Lists begin with the most recent film.

    `ratings` has the columns user_id, item_id, rating and timestamp.
    """
    ordered = ratings.sort("timestamp", maintain_order=True)
    liked: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=LONGEST))
    disliked: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=LONGEST))
    lists: dict[str, list[list[int]]] = {"history": [], "disliked": []}
    for user, item, rating in ordered.select("user_id", "item_id", "rating").iter_rows():
        for films, column in zip((liked, disliked), lists.values(), strict=True):
            column.append(list(films[user]))
        if rating >= LIKED:
            liked[user].appendleft(item)
        elif rating <= DISLIKED:
            disliked[user].appendleft(item)
    columns = [pl.Series(name, column, pl.List(pl.Int64)) for name, column in lists.items()]
    return ordered.with_columns(*columns, (pl.col("rating") >= LIKED).cast(pl.Int8).alias("liked"))


def without_last(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return rows in the order of time without each user's last one that is liked, and these."""
    numbered = rows.with_row_index("number")
    last = numbered.filter(pl.col("liked") == 1).group_by("user_id").agg(pl.col("number").max())
    is_last = pl.col("number").is_in(last["number"].implode())
    rest, last = numbered.filter(~is_last), numbered.filter(is_last)
    return rest.drop("number"), last.drop("number")


def read_ratings(path: Path) -> pl.DataFrame:
    """Read a file of ratings, without a header or with one that has types, as in "user_id:token"."""
    read = pl.read_csv(path, separator="\t")
    if ":" not in read.columns[0]:
        return pl.read_csv(path, separator="\t", has_header=False, new_columns=list(COLUMNS))
    return read.rename({name: name.partition(":")[0] for name in read.columns})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ratings", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--last", type=Path)
    given = parser.parse_args()
    rows = with_histories(read_ratings(given.ratings))
    if given.last is not None:
        rows, last = without_last(rows)
        given.last.parent.mkdir(parents=True, exist_ok=True)
        last.write_parquet(given.last)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    rows.write_parquet(given.out)
