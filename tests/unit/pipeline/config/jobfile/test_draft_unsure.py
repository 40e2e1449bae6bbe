"""What a draft is not sure of: it says so, with the other answer; and where its rows are from."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.jobfile.draft import places as draft_places
from shadowsync.pipeline.jobfile.draft.draft import draft_job
from shadowsync.pipeline.jobfile.draft.sample import read_sample
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.unit.pipeline.config.jobfile.test_draft import draft, read, write

ROWS = 6000


def log(**columns: Callable[[random.Random], Any]) -> dict[str, list[Any]]:
    """Rows of a label that one text tells a little of, and other columns."""
    draw = random.Random(7)
    item = [draw.choice("abcdefgh") for _ in range(ROWS)]
    click = [int(draw.random() < (0.5 if one in "abcd" else 0.2)) for one in item]
    others = {name: [value(draw) for _ in range(ROWS)] for name, value in columns.items()}
    return {"click": click, "item": item, **others}


def answered_otherwise(text: str, name: str) -> str:
    """The draft with the other answer to the question about a column."""
    lines = text.splitlines()
    (at,) = (at for at, line in enumerate(lines) if line.startswith(f"# QUESTION: {name}: "))
    other = lines[at + 1].removeprefix("# ")
    assert other != lines[at + 1]
    key = other.partition(" = ")[0]
    kept = [line for line in lines[:at] if not line.startswith(f"{key} = ")]
    rest = "\n".join([*kept, other, *lines[at + 2 :]]) + "\n"
    if '"ignored"' in other or '"dense"' in other or '"timestamp"' in other:
        rest = re.sub(rf"\[tables\.{re.escape(key)}\]\n(?:\w+ = .*\n)+", "", rest)
    return rest


def both(text: str, name: str, folder: Path) -> tuple[str, str]:
    """The kind of a column as drafted, and with the other answer; "" where it is left out."""
    kinds = []
    for number, one in enumerate((text, answered_otherwise(text, name))):
        (folder / f"answer-{number}.toml").write_text(one)
        job = load_job(folder / f"answer-{number}.toml")
        assert read(job) == ROWS
        kinds.append(job.data.columns[name].kind if name in job.data.columns else "")
    return kinds[0], kinds[1]


OF_IDS = """
User_ID ISBN visitorid itemid adID ITEM_SKU Zip_Code phone hash kundennummer id_cliente Codigo deviceUUID
ean13 Session_Key
"""
OF_NUMBERS = "paid num_ids bid covid humid n_codes price price_paid"


def test_ids_are_seen_by_their_name_in_any_case(tmp_path: Path) -> None:
    """Names that end alike are none."""
    kinds = dict.fromkeys(OF_IDS.split(), "categorical") | dict.fromkeys(OF_NUMBERS.split(), "dense")
    columns = log(**dict.fromkeys(kinds, lambda draw: draw.randrange(100, 900)))
    _, job = draft(write(tmp_path / "log.csv", columns))
    assert {name: job.data.columns[name].kind for name in kinds} == kinds


def test_numbers_that_may_be_ids_are_asked_about(tmp_path: Path) -> None:
    text, _ = draft(write(tmp_path / "log.csv", log(branch=lambda draw: draw.randrange(75))))
    assert both(text, "branch", tmp_path) == ("dense", "categorical")
    # No question where the name says what they are.
    text, _ = draft(write(tmp_path / "log.csv", log(age=lambda draw: draw.randrange(75))))
    assert "QUESTION: age" not in text
    text, _ = draft(write(tmp_path / "log.csv", log(grade=lambda draw: draw.randrange(9))))
    assert both(text, "grade", tmp_path) == ("categorical", "dense")


def test_numbers_whose_neighbours_differ_are_ids(tmp_path: Path) -> None:
    draw = random.Random(3)
    taste = [draw.random() for _ in range(75)]
    branch = [draw.randrange(75) for _ in range(ROWS)]
    by_branch = log() | {"click": [int(draw.random() < taste[one]) for one in branch], "branch": branch}
    text, _ = draft(write(tmp_path / "log.csv", by_branch))
    assert both(text, "branch", tmp_path) == ("categorical", "dense")
    # The control: the label rises with the number.
    rising = log() | {"click": [int(draw.random() < one / 75) for one in branch], "branch": branch}
    text, _ = draft(write(tmp_path / "log.csv", rising))
    assert both(text, "branch", tmp_path) == ("dense", "categorical")


def test_codes_with_zeros_in_front_are_no_numbers(tmp_path: Path) -> None:
    columns = log(
        plz=lambda draw: f"{draw.randrange(300):05}", place=lambda draw: f"{draw.randrange(400, 700):05}"
    )
    text, job = draft(write(tmp_path / "log.csv", columns))
    assert (job.data.columns["plz"].kind, job.data.columns["place"].kind) == ("categorical", "categorical")
    assert both(text, "place", tmp_path) == ("categorical", "dense")


@pytest.mark.parametrize("values", [("0", "1"), ("false", "true"), ("no", "yes")])
def test_results_beside_the_label_are_left_out_or_asked_about(
    tmp_path: Path, values: tuple[str, str]
) -> None:
    draw = random.Random(5)
    columns = log(weekend=lambda draw: values[draw.randrange(2)])
    columns["bought"] = [values[draw.randrange(2)] for _ in range(ROWS)]
    columns["stage2"] = [values[int(one and draw.random() < 0.3)] for one in columns["click"]]
    columns["same"] = [f"s{one}" for one in columns["click"]]
    columns["click2"] = [("a", "b")[one] for one in columns["click"]]
    text, job = draft(write(tmp_path / "log.csv", columns), "click")
    assert list(job.data.columns) == ["click", "item", "weekend"]
    assert both(text, "weekend", tmp_path) == ("categorical", "ignored")
    for name in ("bought", "stage2", "same"):
        assert both(text, name, tmp_path) == ("", "categorical")
    assert "QUESTION: item" not in text


def test_a_number_that_tells_the_label_is_left_out(tmp_path: Path) -> None:
    columns = log()
    draw = random.Random(1)
    columns["seconds_on_page"] = [draw.random() + 5 * one for one in columns["click"]]
    columns["half"] = [draw.random() + 0.9 * one for one in columns["click"]]
    text, job = draft(write(tmp_path / "log.csv", columns))
    assert list(job.data.columns) == ["click", "item", "half"]
    assert both(text, "seconds_on_page", tmp_path) == ("", "dense")
    assert "QUESTION: half: is it known before click is?" in text


def test_many_flags_are_not_asked_about_one_by_one(tmp_path: Path) -> None:
    flags = {f"has_{at}": lambda draw: draw.randrange(2) for at in range(30)}
    text, _ = draft(write(tmp_path / "log.csv", log(**flags)))
    assert "QUESTION" not in text


def test_the_label_and_its_event_are_asked_about(tmp_path: Path) -> None:
    columns = {
        "end": [draw for draw in ("paid", "late", "paid") for _ in range(2000)],
        "item": list("xyzvwu") * 1000,
    }
    text, job = draft(write(tmp_path / "log.csv", columns))
    assert job.data.columns["end"].positive == ["late"]
    other = load_toml(
        answered_otherwise(text.replace("# QUESTION: end: is this", "# asked"), "end"), tmp_path
    )
    assert (other.data.columns["end"].positive, other.data.columns["end"].negative) == (["paid"], ["late"])
    assert "is this to be predicted? It was taken because it has two values. For another (item)" in text


def load_toml(text: str, folder: Path) -> Job:
    (folder / "other.toml").write_text(text)
    return load_job(folder / "other.toml")


@pytest.mark.parametrize(
    ("values", "delimiter", "items"),
    [
        (["Drama, Slice of Life", "Drama", "Slice of Life, Sci Fi", "Sci Fi", "Drama, Sci Fi"], ", ", 3),
        (["Drama,Slice of Life", "Drama", "Slice of Life,Sci Fi", "Sci Fi", "Drama,Sci Fi"], ",", 3),
        (["Drama/Crime", "Drama", "Crime/War", "War", "Drama/War"], "/", 3),
        (["Drama; Crime Story", "Drama", "Crime Story; War", "War", "Drama; War"], "; ", 3),
        (["red blue", "red", "blue green", "green", "red green"], " ", 3),
    ],
)
def test_lists_are_cut_at_what_separates_them(
    tmp_path: Path, values: Sequence[str], delimiter: str, items: int
) -> None:
    frame = pl.DataFrame(log(genre=lambda draw: draw.choice(values)))
    frame.write_parquet(tmp_path / "log.parquet")
    text, job = draft(tmp_path / "log.parquet")
    assert job.data.columns["genre"].delimiter == delimiter
    assert f"{items} values" in text
    assert both(text, "genre", tmp_path) == ("multi_hot", "categorical")


def test_places_with_a_comma_and_lists_in_brackets_are_no_lists(tmp_path: Path) -> None:
    towns = [f"{name}, {land}" for name, land in zip("ABCDEFGH", "XYXYXYXY", strict=True)]
    lists = ["['a', 'b']", "['a']", "['b', 'c']", "['c', 'a']"]
    frame = pl.DataFrame(log(town=lambda draw: draw.choice(towns), tags=lambda draw: draw.choice(lists)))
    frame.write_parquet(tmp_path / "log.parquet")
    text, job = draft(tmp_path / "log.parquet")
    assert job.data.columns["town"].kind == "categorical"
    assert "# tags is left out: lists in brackets" in text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda draw: f"${draw.randrange(1, 40)}.50", "numbers with a unit"),
        (lambda draw: f"{draw.randrange(1, 40)} kg", "numbers with a unit"),
        (
            lambda draw: f"{draw.randrange(1, 40)},{draw.randrange(100, 130)}",
            "numbers with thousands separators",
        ),
        *(
            (grouped, "numbers with thousands separators")
            for grouped in (
                lambda draw: f"{draw.randrange(1, 4)}.{draw.randrange(100, 120)},5",
                lambda draw: f"{draw.randrange(1, 4)} {draw.randrange(100, 120)},50",
                lambda draw: f"{draw.randrange(1, 4)}'{draw.randrange(100, 120)}.50",
                lambda draw: draw.choice(["950", "1.234.567", "2.345.678"]),
            )
        ),
    ],
)
def test_numbers_that_no_kind_reads_are_told(tmp_path: Path, value: Any, said: str) -> None:
    text, job = draft(write(tmp_path / "log.txt", log(cost=value), ";"))
    assert job.data.columns["cost"].kind == "categorical"
    assert job.data.decimal == "."
    assert said in text
    text, _ = draft(write(tmp_path / "log.txt", log(cost=lambda draw: f"u{draw.randrange(40)}"), ";"))
    assert "numbers with a unit" not in text


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_dates_as_integers(tmp_path: Path, kind: str) -> None:
    columns = log(
        bought_on=lambda draw: 20240101 + draw.randrange(28),
        part_id=lambda draw: 20240101 + draw.randrange(28),
    )
    file = tmp_path / f"log.{kind}"
    write(file, columns) if kind == "csv" else pl.DataFrame(columns).write_parquet(file)
    _, job = draft(file)
    assert (job.data.columns["bought_on"].kind, job.data.columns["bought_on"].format) == (
        "timestamp",
        "%Y%m%d",
    )
    assert job.data.columns["part_id"].kind == "categorical"
    assert read(job) == ROWS


def test_dates_whose_day_may_be_the_month_are_asked_about(tmp_path: Path) -> None:
    columns = log(at=lambda draw: f"{draw.randrange(1, 13):02}/{draw.randrange(1, 13):02}/2024")
    text, job = draft(write(tmp_path / "log.csv", columns))
    assert job.data.columns["at"].format == "%d/%m/%Y"
    other = load_toml(answered_otherwise(text, "at"), tmp_path)
    assert other.data.columns["at"].format == "%m/%d/%Y"
    assert read(other) == ROWS
    columns["at"][0] = "25/03/2024"
    text, _ = draft(write(tmp_path / "log.csv", columns))
    assert "QUESTION: at" not in text


def test_numbers_that_may_be_seconds_are_asked_about(tmp_path: Path) -> None:
    columns = log(seen=lambda draw: 1_700_000_000 + draw.randrange(3000))
    text, _ = draft(write(tmp_path / "log.csv", columns))
    assert both(text, "seen", tmp_path) == ("categorical", "timestamp")


def by_time(rows: int) -> dict[str, list[Any]]:
    """A log whose number grows with time, and whose ids come anew."""
    draw = random.Random(2)
    return {
        "click": [draw.randrange(2) for _ in range(rows)],
        "item_id": [at // 20 for at in range(rows)],
        "price": [round(at / 100 + draw.random(), 3) for at in range(rows)],
    }


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "parts"])
def test_rows_from_all_over_the_input(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_places, "SAMPLE_BYTES", 60_000)
    monkeypatch.setattr(draft_places, "SAMPLE_ROWS", 3000)
    monkeypatch.setattr(draft_places, "_LEAST_BYTES", 512)
    columns = by_time(40_000)
    source = tmp_path / f"log.{kind}"
    if kind == "parquet":
        pl.DataFrame(columns).write_parquet(source, row_group_size=15_000)
    elif kind == "parts":
        source = tmp_path / "part-*.csv"
        for part in range(4):
            own = {name: values[part * 10_000 : (part + 1) * 10_000] for name, values in columns.items()}
            write(tmp_path / f"part-{part}.csv", own)
    else:
        write(source, columns)
    sample = read_sample(str(source))
    assert len(sample.frame) < 20_000
    assert not sample.whole
    assert 0.8 < sample.rows / 40_000 < 1.25 or kind == "csv.gz"
    price = sample.frame["price"].cast(pl.Float64)
    mean = price.mean()
    assert isinstance(mean, float)
    assert 170 < mean < 230, "the mean of the whole log is 200"
    place = source if kind != "parts" else str(source)
    _, job = draft(place)
    assert 190 < job.data.columns["price"].shift < 210
    # The control: the first rows alone.
    assert price.head(100).mean() < 20  # type: ignore[operator]


def test_no_time_to_read_a_compressed_file_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_places, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(draft_places, "SAMPLE_BYTES", 8192)
    file = write(tmp_path / "log.csv.gz", by_time(20_000))
    assert gzip.decompress(file.read_bytes()).count(b"\n") == 20_001
    text, _ = draft(file)
    assert "none of them near the end: there was no time" in text


def test_files_of_other_columns_are_named(tmp_path: Path) -> None:
    columns = by_time(100)
    write(tmp_path / "part-0.csv", columns)
    # In another order they are the same.
    write(tmp_path / "part-1.csv", dict(reversed(columns.items())))
    text = draft_job(str(tmp_path / "part-*.csv"), tmp_path, name="mine")
    assert "from all 200 rows" in text
    write(tmp_path / "part-2.csv", columns | {"more": columns["click"]})
    with pytest.raises(DataError, match=r"part-2.csv: has other columns than .*part-0.csv: it has 'more'"):
        draft_job(str(tmp_path / "part-*.csv"), tmp_path, name="mine")


def test_paths_are_relative_to_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "jobs").mkdir()
    write(tmp_path / "data" / "log.csv", log())
    write(tmp_path / "data" / "test.csv", log())
    out = tmp_path / "jobs" / "job.toml"
    given = ["init", str(tmp_path / "data" / "log.csv"), "--eval", str(tmp_path / "data" / "test.csv")]
    done = CliRunner().invoke(main, [*given, "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = out.read_text()
    assert 'path = "../data/log.csv"' in text
    assert 'eval_path = "../data/test.csv"' in text
    assert str(tmp_path) not in text.split("[run]")[1]
    job = load_job(out)
    assert (job.data.split.test, job.data.split.validation) == (0.0, 0.1)
    # Wherever the folder is.
    tmp_path.joinpath("jobs").rename(tmp_path / "moved")
    assert read(load_job(tmp_path / "moved" / "job.toml")) == ROWS


def test_a_test_file_whose_label_is_written_otherwise(tmp_path: Path) -> None:
    columns = log() | {"click": ["<=50K", ">50K", "<=50K"] * (ROWS // 3)}
    write(tmp_path / "log.csv", columns)
    write(tmp_path / "test.csv", columns | {"click": ["<=50K.", ">50K.", "<=50K."] * (ROWS // 3)})
    text = draft_job(str(tmp_path / "log.csv"), tmp_path, name="mine", eval_source=str(tmp_path / "test.csv"))
    job = load_toml(text, tmp_path)
    assert job.data.columns["click"].positive == [">50K", ">50K."]
    assert job.data.columns["click"].negative == ["<=50K", "<=50K."]
    write(tmp_path / "test.csv", columns | {"click": ["a", "b", "a"] * (ROWS // 3)})
    with pytest.raises(
        JobFileError, match=r"the label 'click' is a, b in .*test.csv, and <=50K, >50K in the"
    ):
        draft_job(str(tmp_path / "log.csv"), tmp_path, name="mine", eval_source=str(tmp_path / "test.csv"))
    write(tmp_path / "test.csv", {"click": columns["click"]} | {"other": columns["item"]})
    with pytest.raises(DataError, match="lacks 'item'"):
        draft_job(str(tmp_path / "log.csv"), tmp_path, name="mine", eval_source=str(tmp_path / "test.csv"))


def test_a_draft_names_no_algorithm(tmp_path: Path) -> None:
    """The default depends on the number of trainers."""
    _, job = draft(write(tmp_path / "log.csv", log()))
    assert job.sync.algorithm == "easgd"
    assert load_job(tmp_path / "job.toml", ["trainer.count=4"]).sync.algorithm != "none"


def _address(draw: random.Random) -> str:
    return f"{draw.randrange(1, 99)}.{draw.randrange(4)}.{draw.randrange(256)}.{draw.randrange(256)}"


def test_addresses(tmp_path: Path) -> None:
    """The table has room for the networks, of which there are more than addresses."""
    text, job = draft(write(tmp_path / "log.csv", log(client_ip=_address)))
    assert job.data.columns["client_ip"].kind == "ip"
    assert "QUESTION: client_ip" not in text
    assert read(job) == ROWS
    assert job.tables[-1].rows > 2 * ROWS


def test_texts_that_may_be_addresses_or_versions(tmp_path: Path) -> None:
    text, _ = draft(
        write(tmp_path / "log.csv", log(build=lambda draw: f"1.{draw.randrange(9)}.{draw.randrange(9)}.0"))
    )
    assert "# QUESTION: build: are these IP addresses, no versions or codes?" in text
    assert both(text, "build", tmp_path) == ("categorical", "ip")


def test_addresses_among_other_texts(tmp_path: Path) -> None:
    def one(draw: random.Random) -> str:
        return _address(draw) if draw.random() < 0.97 else "localhost"

    text, job = draft(write(tmp_path / "log.csv", log(ip=one)))
    assert "ip" not in job.data.columns or job.data.columns["ip"].kind == "categorical"
    assert "texts are no IP addresses: skip such rows? Then take this line" in text
    assert '# ip = "ip"' in text


@pytest.mark.parametrize(
    ("first", "time_format"), [(45_292.0, "excel"), (19_723.0, "days"), (0.0, ""), (58_430.0, "")]
)
def test_numbers_that_may_be_days_are_times_in_that_format(
    tmp_path: Path, first: float, time_format: str
) -> None:
    days = [first + row / 400 for row in range(ROWS)]
    log: dict[str, list[Any]] = {
        "click": [0, 1] * (ROWS // 2),
        "item": ["a", "b"] * (ROWS // 2),
        "date": days,
    }
    text, job = draft(write(tmp_path / "log.csv", log), "click")
    assert job.data.columns["date"].kind == ("timestamp" if time_format else "dense")
    if time_format:
        assert f'date = {{ kind = "timestamp", format = "{time_format}" }}' in text
        assert both(text, "date", tmp_path) == ("timestamp", "timestamp")
