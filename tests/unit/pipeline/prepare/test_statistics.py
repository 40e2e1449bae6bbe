"""Statistics of prepared data against the plain way, in bounded memory, and as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.data.generator.manifest import DataFormat
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare import part_values
from shadowsync.pipeline.prepare.preparation import Prepared, prepare_folder
from shadowsync.pipeline.prepare.statistics import IdStatistics, NumberStatistics, Statistics, shared_rows
from shadowsync.pipeline.prepare.statistics_page import render_statistics
from shadowsync.tests.support.data.prepared import Tree, csv_job

Made = tuple[Path, Prepared]


def _statistics(folder: Path) -> Statistics:
    return Statistics.model_validate_json((folder / "statistics.json").read_bytes())


def _rows(source: Tree) -> pl.DataFrame:
    """The good rows as polars reads them."""
    frames = []
    for path in sorted(Path(source["data"]["path"]).parent.glob("*.csv")):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("not")]
        frames.append(pl.read_csv("\n".join(lines).encode()))
    return pl.concat(frames)


def _check_presence(found: NumberStatistics | IdStatistics, missing: pl.Series, labels: pl.Series) -> None:
    assert found.missing == pytest.approx(missing.mean())
    absent = labels.filter(missing).mean()
    assert found.label_rate_missing == (None if absent is None else pytest.approx(absent))
    assert found.label_rate_present == pytest.approx(labels.filter(~missing).mean())


def test_against_the_plain_way(source: Tree, prepared: Made) -> None:
    statistics, rows = _statistics(prepared[0]), _rows(source)
    assert statistics.rows == len(rows)
    assert statistics.label_rate == pytest.approx(rows["y"].mean())
    assert statistics.weight_mean == pytest.approx(rows["w"].mean())
    assert (statistics.time_first, statistics.time_last) == (rows["at"].min(), rows["at"].max())
    price = next(column for column in statistics.numbers if column.name == "price")
    values = rows["price"].drop_nulls()
    _check_presence(price, rows["price"].is_null(), rows["y"])
    assert price.mean == pytest.approx(values.mean(), rel=1e-6)
    # The way there and back is float32's.
    assert price.least == pytest.approx(values.min(), rel=1e-6)
    assert price.largest == pytest.approx(values.max(), rel=1e-6)
    for percent, value in price.quantiles.items():
        want = values.quantile(float(percent[:-1]) / 100, "lower")
        assert want is not None
        assert value == pytest.approx(want, rel=statistics.quantile_error + 1e-6), percent
    user, tags = statistics.ids
    _check_presence(user, rows["user"].is_null(), rows["y"])
    counts = rows["user"].drop_nulls().value_counts(sort=True)["count"].to_numpy()
    assert (user.distinct, user.distinct_exact, user.values) == (len(counts), True, int(counts.sum()))
    assert user.head == {
        str(head): pytest.approx(counts[:head].sum() / counts.sum()) for head in (1, 10, 100, 1000)
    }
    bags = rows["tags"].fill_null("").str.split("|").list.eval(pl.element().filter(pl.element() != ""))
    kept = bags.list.head(3)
    _check_presence(tags, bags.list.len() == 0, rows["y"])
    assert (tags.kind, tags.longest) == ("multi_hot", 3)
    assert tags.mean_length == pytest.approx(kept.list.len().mean())
    assert tags.distinct == 30


def test_many_values_are_estimated_within_the_stated_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With smaller bounds; a column with few different values is counted whole."""
    monkeypatch.setattr(part_values, "EXACT_VALUES", 10_000)
    monkeypatch.setattr(part_values, "EXACT_DISTINCT", 2000)
    rng = np.random.default_rng(1)
    ids = np.where(rng.random(40_000) < 0.3, rng.integers(0, 5, 40_000), rng.integers(5, 10**9, 40_000))
    lines = "".join(f"{at % 2},{value},{value % 7}\n" for at, value in enumerate(ids.tolist()))
    (tmp_path / "all.csv").write_text("y,user,few\n" + lines)
    columns = {"y": "label", "user": "categorical", "few": "categorical"}
    tree = csv_job(tmp_path / "all.csv", columns=columns)
    prepare_folder(job_of_tree(tree), tmp_path / "out")
    statistics = _statistics(tmp_path / "out")
    user, few = statistics.ids
    assert (few.distinct, few.distinct_exact, few.values) == (7, True, 40_000)
    assert not user.distinct_exact
    truth = len(np.unique(ids))
    assert user.distinct == pytest.approx(truth, rel=4 * statistics.distinct_error)
    assert user.distinct != pytest.approx(truth / 2, rel=4 * statistics.distinct_error), "the control"
    counts = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
    share = counts[:10].sum() / len(ids)
    assert user.head["10"] == pytest.approx(share, rel=0.05), "of a fourth of the values"
    text = (tmp_path / "out" / "statistics.md").read_text()
    assert f"~{user.distinct:,}" in text
    assert "with more than 10,000 values" in text


def test_figures_are_the_same_to_the_bit_each_time(tmp_path: Path) -> None:
    """However many threads add numbers up."""
    values = np.random.default_rng(3).random((20_000, 2)) * 1000
    lines = "".join(f"{at % 2},{x!r},{y!r},u{at % 9}\n" for at, (x, y) in enumerate(values.tolist()))
    (tmp_path / "all.csv").write_text("y,price,size,user\n" + lines)
    number = {"kind": "dense", "transform": "log"}
    columns = {"y": "label", "price": number, "size": number, "user": "categorical"}
    job = job_of_tree(csv_job(tmp_path / "all.csv", columns=columns))
    written = []
    for time in range(4):
        prepare_folder(job, tmp_path / str(time))
        written.append((tmp_path / str(time) / "statistics.json").read_bytes())
    assert len(set(written)) == 1


def test_a_folder_with_the_name_of_a_pattern(source: Tree, prepared: Made, tmp_path: Path) -> None:
    folder = tmp_path / "day=*" / "p[1]"
    prepare_folder(job_of_tree(source), folder)
    assert _statistics(folder) == _statistics(prepared[0])


def test_shared_rows_against_a_draw() -> None:
    rng = np.random.default_rng(2)
    for distinct, table_rows in ((10, 1000), (1000, 1000), (5000, 1000)):
        rows = rng.integers(0, table_rows, (200, distinct))
        alone = np.mean([(np.bincount(row, minlength=table_rows)[row] == 1).mean() for row in rows])
        assert shared_rows(distinct, table_rows) == pytest.approx(1 - alone, abs=0.01)
    assert shared_rows(1, 5) == shared_rows(0, 5) == 0


def test_each_of_several_labels_has_its_figures(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = pl.DataFrame(
        {
            "y": rng.integers(0, 2, 1_000),
            "bought": rng.integers(0, 10, 1_000) // 9,
            "price": np.where(rng.random(1_000) < 0.2, "", "3.5"),
            "user": np.where(rng.random(1_000) < 0.3, "", "u1"),
        }
    )
    rows.write_csv(tmp_path / "all.csv")
    columns = {"y": "label", "bought": "label", "price": "dense", "user": "categorical"}
    tree = csv_job(tmp_path / "all.csv", columns=columns)
    tree["model"] |= {"name": "shared_bottom"}
    prepare_folder(job_of_tree(tree), tmp_path / "out")
    found = _statistics(tmp_path / "out")
    assert list(found.labels) == ["y", "bought"]
    assert found.labels["y"].positives == found.positives == rows["y"].sum()
    assert found.labels["bought"].positives == rows["bought"].sum()
    assert found.labels["bought"].label_rate == pytest.approx(rows["bought"].mean())
    for column in (*found.numbers, *found.ids):
        missing = rows[column.name].is_null() | (rows[column.name] == "")
        for name, one in column.labels.items():
            assert one.label_rate_missing == pytest.approx(rows[name].filter(missing).mean()), name
            assert one.label_rate_present == pytest.approx(rows[name].filter(~missing).mean()), name
        assert column.label_rate_missing == column.labels["y"].label_rate_missing
        assert column.labels["bought"] != column.labels["y"], "the control"
    text = (tmp_path / "out" / "statistics.md").read_text()
    assert f"- of them with bought: {rows['bought'].sum()} (" in text
    assert "| column | rate where missing | bought where missing | missing |" in text


def test_one_label_is_stated_as_before(prepared: Made) -> None:
    assert "labels" not in (prepared[0] / "statistics.json").read_text()
    assert " where missing |" in (text := (prepared[0] / "statistics.md").read_text())
    assert "y where missing" not in text


def test_text(prepared: Made) -> None:
    folder, done = prepared
    text = (folder / "statistics.md").read_text()
    for words in (
        "| user |",
        "| tags |",
        "| price |",
        "## Rows that were left out",
        "3 columns, not 6",
        "mean weight",
    ):
        assert words in text
    bare = render_statistics(_statistics(folder).model_copy(update={"numbers": ()}), done.manifest)
    assert "## Numbers" not in bare


def test_a_hostile_name_stays_in_its_cell_and_line(prepared: Made) -> None:
    folder, done = prepared
    statistics = _statistics(folder)
    name, shown = "a|b\n# <script>`", "a\\|b # &lt;script>`"
    number = statistics.numbers[0].model_copy(update={"name": name})
    bags = next(column for column in statistics.ids if column.kind == "multi_hot")
    odd = statistics.model_copy(
        update={"numbers": (number,), "ids": (bags.model_copy(update={"name": name}),)}
    )
    lines = render_statistics(odd, done.manifest).splitlines()
    assert sum(line.startswith(f"| {shown} |") for line in lines) == 2
    assert [line for line in lines if line.startswith(f"{shown}: ") and "ids per row" in line]
    assert not [line for line in lines if "<script>" in line or line.startswith("# <")]


@pytest.mark.parametrize("data_format", ["criteo_tsv", "parquet"])
def test_click_logs_against_the_plain_way(tmp_path: Path, data_format: DataFormat) -> None:
    """Whose readers do not go by a schema; with a malformed row in the text."""
    kinds: tuple[DataFormat, ...] = ("parquet", data_format)
    for made in dict.fromkeys(kinds):
        generate_log(tmp_path / made, examples=3000, eval_examples=0, seed=1, data_format=made)
    (source,) = (tmp_path / data_format).glob("train-*")
    if data_format == "criteo_tsv":
        lines = source.read_text().splitlines(keepends=True)
        source.write_text("".join([*lines[:1000], "1\tbad\n", *lines[1000:]]))
    tree = {"data": {"format": data_format, "path": str(source), "span_bytes": 1 << 17}}
    prepare_folder(job_of_tree(tree), tmp_path / "out")
    statistics = _statistics(tmp_path / "out")
    rows = pl.read_parquet(tmp_path / "parquet" / "train-*.parquet")
    assert statistics.rows == len(rows) == 3000
    for number in statistics.numbers:
        _check_presence(number, rows[number.name].is_null(), rows["label"])
        values = rows[number.name].drop_nulls()
        assert number.mean == pytest.approx(values.mean(), rel=1e-5)
        assert number.quantiles["50%"] == pytest.approx(values.quantile(0.5, "lower"), rel=0.01)
    for column in statistics.ids:
        _check_presence(column, rows[column.name].is_null(), rows["label"])
        assert column.distinct == rows[column.name].drop_nulls().n_unique()
