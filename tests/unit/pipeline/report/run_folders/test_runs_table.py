"""The list of a folder's runs: figures, what differs, and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from shadowsync import list_runs
from shadowsync.cli import main
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.run_folders.run_folder import point_latest
from shadowsync.pipeline.report.run_folders.runs_table import SORTS, rows_beside
from shadowsync.pipeline.report.run_folders.write import JSON_NAME, rewrite_texts

from ..conftest import altered, among_a_catalogue, within_groups


def add_run(directory: Path, name: str, report: Report | None, **trainer: Any) -> Path:
    folder = directory / name
    folder.mkdir(parents=True)
    tree = {
        "run": {"name": name, "directory": str(directory)},
        "trainer": {"lr": 0.01, **trainer},
        "sync": {"options": {}},
    }
    (folder / "job.json").write_text(json.dumps(tree), encoding="utf-8")
    if report is not None:
        rewrite_texts(folder, report)
    return folder


@pytest.fixture
def directory(full_report: Report, tmp_path: Path) -> Path:
    add_run(tmp_path, "b", altered(full_report, eval={"ne": 0.8}, started_at="2026-01-02T00:00:00+00:00"))
    newest = altered(full_report, eval={"ne": 0.7}, started_at="2026-01-03T00:00:00+00:00")
    point_latest(tmp_path, add_run(tmp_path, "a", newest, lr=0.02))
    add_run(tmp_path, "c", None, lr=0.01)
    (tmp_path / "data").mkdir()
    return tmp_path


def test_a_row_has_the_figures_and_the_settings_that_differ(directory: Path, full_report: Report) -> None:
    runs = list_runs(directory)
    assert [run.name for run in runs] == ["b", "a", "c"]
    assert runs.differing == ("trainer.lr",)
    row = runs.rows()[0]
    assert full_report.eval is not None
    assert row == {
        "run": "b",
        "outcome": full_report.outcome,
        "examples": 1_000_000,
        "examples/s": full_report.throughput.examples_per_second,
        "NE": 0.8,
        "AUC": full_report.eval.auc,
        "recall": None,
        "NDCG": None,
        "MRR": None,
        "NE in training": full_report.train.ne_progressive,
        "trainer.lr": 0.01,
    }
    assert runs.rows()[2]["outcome"] == "no report"
    assert runs.rows()[2]["NE"] is None


def test_of_a_ranked_catalogue_there_are_recall_ndcg_and_mrr(tmp_path: Path, full_report: Report) -> None:
    """They are what such runs are sorted by, and NE, which none has, is left out of what is shown."""
    for name, recall in (("a", 0.1), ("b", 0.3), ("c", 0.2)):
        ranks = among_a_catalogue(recall=recall, ndcg=recall / 2, hit=recall, mrr=recall / 3)
        evaluation = {"retrieval": ranks, "within_groups": None, "ne": None, "auc": None}
        add_run(tmp_path, name, altered(full_report, eval=evaluation, train={"ne_progressive": None}))
    runs = list_runs(tmp_path, sort="recall")
    assert [run.name for run in runs] == ["b", "c", "a"]
    assert [run.name for run in list_runs(tmp_path, sort="MRR")] == ["b", "c", "a"]
    best = runs.rows()[0]
    assert [best[name] for name in ("recall", "NDCG", "MRR")] == pytest.approx([0.3, 0.15, 0.1])
    assert best["NE"] is None
    # A job without a catalogue may have those within groups.
    groups = within_groups(ndcg=0.2, recall=0.4, map=0.1)
    add_run(tmp_path / "grouped", "d", altered(full_report, eval={"within_groups": groups}))
    (row,) = list_runs(tmp_path / "grouped").rows()
    assert (row["recall"], row["NDCG"], row["MRR"]) == (0.4, 0.2, None)
    assert list(runs.texts()[0]) == ["run", "outcome", "examples", "examples/s", "recall", "NDCG", "MRR"]
    assert "<th>recall" in runs._repr_html_()
    assert "<th>NE" not in runs._repr_html_()


def test_some_of_the_runs_have_less_that_differs(directory: Path) -> None:
    assert list_runs(directory)[:1].differing == ()


@pytest.mark.parametrize(
    ("sort", "names"), [("NE", "abc"), ("name", "abc"), ("start", "bac"), ("examples", "abc")]
)
def test_the_best_is_first_and_what_has_no_figure_last(directory: Path, sort: str, names: str) -> None:
    assert "".join(run.name for run in list_runs(directory, sort=sort)) == names


def test_a_setting_that_only_one_run_has_differs(directory: Path, full_report: Report) -> None:
    add_run(directory, "d", full_report, schedule={"kind": "cosine"})
    runs = list_runs(directory)
    assert runs.differing == ("trainer.lr", "trainer.schedule.kind")
    assert [row["trainer.schedule.kind"] for row in runs.rows()].count(None) == 3


def test_a_long_outcome_is_cut_in_texts_only(directory: Path, full_report: Report) -> None:
    outcome = "stopped: " + "x" * 300
    add_run(directory, "d", altered(full_report, outcome=outcome))
    runs = list_runs(directory, sort="name")
    assert runs.rows()[-1]["outcome"] == outcome
    assert runs.texts()[-1]["outcome"] == outcome[:59] + "…"


def test_of_a_column_that_some_runs_lack_its_kind_is_what_differs(tmp_path: Path) -> None:
    def add(name: str, **columns: Any) -> None:
        folder = add_run(tmp_path, name, None)
        (folder / "job.json").write_text(json.dumps({"data": {"columns": columns}}), encoding="utf-8")

    add("a")
    add("b", age={"kind": "dense", "scale": 1.0, "transform": "log"})
    assert list_runs(tmp_path).differing == ("data.columns.age.kind",)
    add("c", age={"kind": "dense", "scale": 2.0, "transform": "log"})
    assert list_runs(tmp_path).differing == ("data.columns.age.kind", "data.columns.age.scale")


def test_a_report_that_cannot_be_read_is_said(directory: Path) -> None:
    (directory / "a" / JSON_NAME).write_text("{", encoding="utf-8")
    (run,) = [run for run in list_runs(directory) if run.name == "a"]
    assert run.outcome == "report.json cannot be read"


def test_a_notebook_shows_them_escaped(directory: Path, full_report: Report) -> None:
    add_run(directory, "d", full_report, device="<b>")
    shown = list_runs(directory)._repr_html_()
    assert shown.count("<tr>") == 5
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown


def test_the_page_of_a_run_has_those_beside_it_the_newest_first(directory: Path) -> None:
    assert [row["run"] for row in rows_beside(directory / "a")] == ["c", "a", "b"]
    assert rows_beside(directory / "data" / "x") == []
    assert rows_beside(directory / "absent" / "x") == []


def test_what_has_no_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no run"):
        list_runs(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        list_runs(tmp_path / "absent")
    with pytest.raises(ValueError, match="sort='x': one of name, start"):
        list_runs(tmp_path, sort="x")


def test_the_command_prints_a_table(directory: Path) -> None:
    result = CliRunner().invoke(main, ["runs", str(directory), "--sort", "ne"])
    assert result.exit_code == 0, result.output
    head, *lines = result.output.splitlines()
    assert head.split()[:2] == ["run", "outcome"]
    assert head.endswith("trainer.lr")
    assert [line.split()[0] for line in lines] == ["a", "b", "c"]


def test_the_command_sorts_by_what_the_list_can_be_sorted_by() -> None:
    (sort,) = [option for option in main.commands["runs"].params if option.name == "sort"]
    assert isinstance(sort.type, click.Choice)
    assert set(sort.type.choices) == set(SORTS)


def test_the_command_prints_json(directory: Path) -> None:
    result = CliRunner().invoke(main, ["runs", str(directory), "--json"])
    assert json.loads(result.output) == list_runs(directory).rows()


def test_a_narrow_terminal_has_the_settings_below(
    directory: Path, full_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(directory, "d", full_report, device="cpu", precision="bfloat16", optimizer="adagrad")
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    result = CliRunner().invoke(main, ["runs", str(directory)])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 90
    assert "trainer.precision = bfloat16" in result.output
