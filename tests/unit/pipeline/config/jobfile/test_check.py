"""`shadowsync check`: rows as they are trained, shared rows of tables, what has no effect; nothing starts."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.jobfile import check as checking
from shadowsync.pipeline.jobfile.check import check_job
from shadowsync.pipeline.jobfile.load import job_of_tree, load_job

ROWS = 2000


def columns() -> dict[str, list[Any]]:
    draw = random.Random(1)
    return {
        "click": [draw.randrange(2) for _ in range(ROWS)],
        "item": [f"i{draw.randrange(300)}" for _ in range(ROWS)],
        "tags": ["|".join(draw.sample("abc", draw.randrange(3))) for _ in range(ROWS)],
        "price": [10.0 + draw.randrange(5) for _ in range(ROWS)],
        "at": [f"0{1 + at % 9}/12/2024" for at in range(ROWS)],
    }


JOB = """
[data]
format = "{kind}"
path = "log.{kind}"
[data.columns]
click = "label"
item = "categorical"
tags = "multi_hot"
price = {{ kind = "dense", transform = "none", shift = 12, scale = 2 }}
at = {{ kind = "timestamp", format = "%d/%m/%Y" }}
[tables.item]
rows = {rows}
[tables.tags]
kind = "growing"
rows = 8
"""


def job_file(folder: Path, *, kind: str = "csv", rows: int = 600, more: str = "") -> Path:
    frame = pl.DataFrame(columns())
    frame.write_csv(folder / "log.csv") if kind == "csv" else frame.write_parquet(folder / "log.parquet")
    (folder / "job.toml").write_text(JOB.format(kind=kind, rows=rows) + more)
    return folder / "job.toml"


def said(file: Path, *options: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["check", str(file), *options])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_first_rows_are_shown_as_they_are_trained(tmp_path: Path, kind: str) -> None:
    job = load_job(job_file(tmp_path, kind=kind))
    found = check_job(job)
    assert (found.files, found.looked_at, found.bad) == (1, ROWS, 0)
    given = columns()
    for at, row in enumerate(found.rows):
        assert row.fault == ""
        assert row.values["click"] == (str(given["click"][at]), str(given["click"][at]))
        assert row.values["price"] == (f"{given['price'][at]}", f"{(given['price'][at] - 12) / 2:.4g}")
        assert row.values["item"][0] == given["item"][at]
        assert row.values["at"][1].endswith(f"2024-12-0{1 + at} 00:00")
    # Equal ids have equal rows.
    assert len({row.values["item"][1] for row in found.rows}) == len(
        {row.values["item"][0] for row in found.rows}
    )
    text = said(tmp_path / "job.toml")
    assert "job: fits 1 file; looked at 2,000 rows" in text
    assert "label click: mean 0.5" in text


def test_shared_rows_are_those_of_the_job(tmp_path: Path) -> None:
    few, many = (check_job(load_job(job_file(tmp_path, rows=rows))).tables[0] for rows in (300, 1 << 24))
    assert (few.name, few.ids, few.grows) == ("item", 300, False)
    assert few.share > 0.5
    assert many.share == 0
    text = said(job_file(tmp_path, rows=300))
    assert 'of the values: give tables.item more rows, or kind = "growing"' in text
    assert "none: the table grows" in text


def test_what_has_no_effect_is_told(tmp_path: Path) -> None:
    file = job_file(tmp_path)
    assert "take note" not in said(file)
    text = said(file, "--set", "trainer.lookups_ahead=16", "--set", "trainer.credit=4")
    assert "trainer.lookups_ahead: 16" in text
    text = said(file, "--set", "sync.algorithm=none", "--set", "trainer.count=4")
    assert 'sync.algorithm: "none" leaves 4 trainers without synchronization' in text
    assert "without synchronization" not in said(file, "--set", "sync.algorithm=none")


def test_two_towers_learn_from_positives_alone(tmp_path: Path) -> None:
    towers = '[model]\nname = "two_tower"\nquery = ["tags", "price"]\nitem = ["item"]\n'
    file = job_file(tmp_path, more=towers)
    file.write_text(file.read_text().replace('click = "label"', 'click = "ignored"'))
    text = said(file)
    assert "label label: mean 1.0000" in text
    assert "nothing can be learned" not in text
    always = """data.columns.click={kind="label", expression="click >= 0"}"""
    assert "nothing can be learned" not in said(file, "--set", always)
    never = """data.columns.click={kind="label", expression="click < 0"}"""
    assert "mean 0.0000: all the same, so nothing can be learned" in said(file, "--set", never)
    control = job_file(tmp_path)
    assert "mean 1.0000: all the same, so nothing can be learned" in said(control, "--set", always)


def test_what_does_not_fit_is_refused_as_at_the_start_of_a_job(tmp_path: Path) -> None:
    file = job_file(tmp_path)
    assert "no column 'itm'" in said(file, "--set", "data.columns.item.source=itm", code=3)
    assert "unknown key" in said(file, "--set", "trainer.cuont=3", code=2)
    pl.DataFrame({"click": [1]}).write_csv(tmp_path / "test.csv")
    assert "test.csv" in said(file, "--set", f"data.eval_path={tmp_path / 'test.csv'}", code=3)


def test_malformed_rows_and_their_reason(tmp_path: Path) -> None:
    file = job_file(tmp_path)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    lines[2] = "x" + lines[2][1:]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    text = said(file)
    assert "malformed: 1 (0.1%), for example" in text
    assert "row 2 is malformed: click is neither 0 nor 1" in text
    # Rows after those shown are looked at, too.
    lines[2], lines[900] = lines[3], "x" + lines[900][1:]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    text = said(file)
    assert "malformed: 1 (0.1%), for example" in text
    assert "row 2 is malformed" not in text


def test_a_large_input_is_looked_at_all_over_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_PLACE_BYTES", 1 << 10)
    monkeypatch.setattr(checking, "CHECK_SECONDS", 600.0)
    frame = pl.DataFrame(columns())
    labels = [pl.lit(label, pl.Int64).alias("click") for label in (0, 0, 1)]
    job = load_job(job_file(tmp_path))
    pl.concat([frame.with_columns(label) for label in labels]).write_csv(tmp_path / "log.csv")
    found = check_job(job)
    assert found.looked_at < ROWS
    assert found.label_means["click"] == pytest.approx(1 / 3, abs=0.1)
    # The control: no time for more than one place, the first.
    monkeypatch.setattr(checking, "CHECK_SECONDS", -1.0)
    assert check_job(job).label_means["click"] == 0


def test_prepared_and_criteo_input(tmp_path: Path) -> None:
    rows = "".join(f"{at % 2}\t{at}\tab{at % 7}\n" for at in range(200))
    (tmp_path / "log.tsv").write_text(rows)
    (tmp_path / "job.toml").write_text(
        '[data]\nformat = "criteo_tsv"\npath = "log.tsv"\ndense_features = 1\ncategorical_features = 1\n'
    )
    text = said(tmp_path / "job.toml")
    assert "label label: mean 0.5" in text
    assert "C1" in text
    assert "I1" in text
    done = CliRunner().invoke(
        main, ["prepare", str(tmp_path / "job.toml"), "--out", str(tmp_path / "folder")]
    )
    assert done.exit_code == 0, done.output
    text = said(tmp_path / "job.toml", "--set", f"data.prepared={tmp_path / 'folder'}")
    assert "label label: mean 0.5" in text


def test_neither_torch_nor_a_process(tmp_path: Path) -> None:
    code = (
        "import subprocess, os, sys\n"
        "def no(*_, **__): raise AssertionError('started a process')\n"
        "subprocess.Popen.__init__ = no; os.fork = no\n"
        "from shadowsync.cli import main\n"
        f"main(['check', {str(job_file(tmp_path))!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "the first 3 rows" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.toml", "log.csv"]


def test_the_first_rows_of_texts_and_times_that_python_does_not_know(tmp_path: Path) -> None:
    texts = pa.array([b"a\xff", b"b", b"c", b"d"], pa.binary()).view(pa.string())
    table = {
        "click": [0, 1, 0, 1],
        "item": texts,
        "category": texts.dictionary_encode(),
        "tags": pa.ListArray.from_arrays([0, 2, 3, 3, 4], texts),
        "at": pa.array([1, 1000, None, 0]).view(pa.timestamp("ns", "Mars/Olympus")),
        "until": pa.array([0, 4_000_000, 0, 0], pa.int32()).view(pa.date32()),
    }
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    kinds = {"click": "label", "item": "categorical", "category": "categorical", "tags": "multi_hot"}
    kinds |= {"at": "timestamp"}
    until = {"kind": "categorical", "part": "day"}
    data = {"format": "parquet", "path": str(tmp_path / "log.parquet"), "columns": kinds | {"until": until}}
    found = check_job(job_of_tree({"data": data, "model": {"table_rows": 50}}))
    first, second, third = ({name: seen for name, (seen, _) in row.values.items()} for row in found.rows)
    assert (first["item"], first["category"], first["tags"]) == (r"a\\xff", r"a\\xff", r"[a\\xff, b]")
    assert (first["at"], third["at"]) == ("1970-01-01 00:00:00.0...", "none")
    assert (first["until"], second["until"]) == ("1970-01-01", "12921-08-18")
    assert [row.fault for row in found.rows] == ["", "until is not a time in the years 1 to 9999", ""]


def test_times_of_96_bits_are_shown_as_they_are_trained(tmp_path: Path) -> None:
    moments = pa.array([datetime(2300, 1, 1)] * 4, pa.timestamp("us"))
    columns = {"click": [0, 1, 0, 1], "item": ["a", "b"] * 2, "at": moments}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet", use_deprecated_int96_timestamps=True)
    kinds = {"click": "label", "item": "categorical", "at": "timestamp"}
    data = {"format": "parquet", "path": str(tmp_path / "log.parquet"), "columns": kinds}
    found = check_job(job_of_tree({"data": data, "model": {"table_rows": 50}}))
    assert found.rows[0].values["at"] == ("2300-01-01 00:00:00", "Mon 2300-01-01 00:00")
