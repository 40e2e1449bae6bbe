"""Jobs of two towers whose held-out items are ranked among a whole catalogue: validation, report, eval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.checkpoint.manifest import Which
from shadowsync.pipeline.data.batches.cutter import batch_of
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.retrieval.items import examples_of
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.types import BatchId
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, shared_run
from shadowsync.tests.support.jobs.runs import RunFolder

USERS, FILMS, RATED, KINDS = 200, 120, 12, 6
HEADER = "user,film,at"


def write_ratings(folder: Path) -> tuple[Path, Path]:
    """Users who rate films of one kind, each once, the last one too; and a file of the films."""
    draw = np.random.default_rng(3)
    lines = []
    for user in range(USERS):
        of_kind = np.flatnonzero(np.arange(FILMS) % KINDS == user % KINDS)
        # One of the films has no row at all.
        of_kind = of_kind[of_kind != 5]
        chosen = draw.permutation(of_kind)[:RATED]
        lines += [f"u{user},f{film},{at}" for at, film in enumerate(chosen.tolist())]
    ratings, films = folder / "ratings.csv", folder / "films.csv"
    ratings.write_text("\n".join([HEADER, *(lines[n] for n in draw.permutation(len(lines)))]) + "\n")
    films.write_text("\n".join(["film", *(f"f{film}" for film in range(FILMS))]) + "\n")
    return ratings, films


def settings(ratings: Path, films: str, **validation: Any) -> dict[str, dict[str, Any]]:
    return {
        # A process that yields to all others hardly runs on a busy machine.
        "run": {"background_priority": "normal"},
        "data": {
            "format": "csv",
            "path": str(ratings),
            "eval_path": None,
            "epochs": 20,
            "columns": {
                "user": "categorical",
                "film": "categorical",
                "of": {"kind": "group", "source": "user"},
                "y": {"kind": "label", "source": "at", "expression": "at >= 0"},
                "at": "timestamp",
            },
            "split": {"by": "last", "column": "user"},
        },
        "model": {
            "name": "two_tower",
            "query": ["user"],
            "item": ["film"],
            "embedding_dim": 8,
            "table_kind": "growing",
            "top": [],
            "options": {"dim": 8, "temperature": 0.2},
        },
        "trainer": {"count": 1, "batch": 64, "optimizer": "adam", "lr": 0.01, "precision": "float32"},
        "embedding": {"optimizer": "adam", "lr": 0.02},
        "validation": {"items": films, "group": "of", "every_epochs": 7} | validation,
    }


def brute_force(folder: Path, which: Which, exclude: str) -> dict[str, float]:
    """Recall@10, NDCG@10 and MRR of the test part from all scores of the model, one user at a time."""
    model = SavedModel.open(folder, which)
    plan = plan_input(model.job)
    place = [column.name for column in model.job.embedded_columns].index("film")

    def read(spans: list[Any]) -> tuple[Any, Any, Any]:
        (examples,) = list(examples_of(model.job, spans))
        batch = batch_of(BatchId(0, 0, 0, 0), examples)
        ids = batch.keys[place] if len(batch.keys) else batch.rows[place]
        return batch, ids.tolist(), batch.groups[0].tolist()

    train, train_films, train_users = read(plan.train)
    test, test_films, test_users = read(plan.test)
    films = dict(zip(train_films, model.item_vectors(train).astype(np.float64), strict=True))
    _, watched_films, watched_users = read(plan.validation)
    before: dict[str, list[Any]] = {"": [], "trained": list(zip(train_films, train_users, strict=True))}
    before["trained and validated"] = [*before["trained"], *zip(watched_films, watched_users, strict=True)]
    figures = []
    for query, film, user in zip(model.query_vectors(test), test_films, test_users, strict=True):
        own = {f for f, u in before[exclude] if u == user}
        scores = {f: float(v @ query.astype(np.float64)) for f, v in films.items() if f not in own - {film}}
        rank = 1 + sum(score >= scores[film] for f, score in scores.items() if f != film)
        figures.append((rank <= 10, (rank <= 10) / np.log2(rank + 1), 1 / rank))
    return dict(zip(("recall", "ndcg", "mrr"), np.mean(figures, axis=0).tolist(), strict=True))


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_ratings(tmp_path_factory.mktemp("ratings"))


@pytest.fixture(scope="module")
def run(ratings: tuple[Path, Path], click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Among the films of the training part, without those that a user has there."""
    changes = settings(ratings[0], "training", exclude_trained=True)
    return shared_run(tmp_path_factory.mktemp("retrieval"), click_log, changes)


def test_the_report_has_the_figures_of_all_scores(run: RunFolder) -> None:
    found = present(run.evaluation.retrieval)
    want = brute_force(run.folder, "auto", "trained and validated")
    assert {name: getattr(found, name) for name in want} == pytest.approx(want, abs=1e-9)
    assert (found.catalogue, found.column, found.without_trained, found.k) == ("training", "of", True, 10)
    assert found.queries == found.rows == USERS
    assert found.items == FILMS - 1
    assert found.recall is not None
    assert found.recall == found.hit
    # By chance it is 10 of 119, and of the films of the user's kind all but the trained are 10 or fewer.
    assert found.recall > 0.5
    # The controls: with the trained films, or those validated on, among them, the figures are worse.
    assert brute_force(run.folder, "auto", "")["recall"] < found.recall - 0.1
    assert brute_force(run.folder, "auto", "trained")["mrr"] < present(found.mrr)
    assert "hit rate @10" in (run.folder / "report.md").read_text(encoding="utf-8")


def test_validations_choose_the_best_by_recall(run: RunFolder) -> None:
    validation = present(run.report.validation)
    assert validation.failed == 0
    assert validation.metric == "recall@10"
    assert validation.count >= 2
    points = [value for _, value in run.report.curves.validation]
    assert validation.best == max(points)
    assert {"recall@10", "ndcg@10", "hit@10", "mrr"} <= validation.best_metrics.keys()


def test_eval_ranks_among_a_file_and_among_training(run: RunFolder, ratings: tuple[Path, Path]) -> None:
    found: dict[str, Any] = {}
    for items in ("training", str(ratings[1])):
        command = ["eval", str(run.folder), "--data", str(ratings[0]), "--items", items, "--top", "7"]
        found[items] = json.loads(said(*command, "--json"))["retrieval"]
    assert found["training"]["items"] == FILMS - 1
    assert found[str(ratings[1])]["items"] == FILMS
    assert "recall@7" in found["training"]
    # All rows of a user are here, those trained on, too; none is left out for another.
    assert all(
        figures[f"{name}@7"] <= 1.0 for figures in found.values() for name in ("recall", "ndcg", "hit")
    )
    text = (
        CliRunner()
        .invoke(main, ["eval", str(run.folder), "--data", str(ratings[0]), "--by", "user", "--slices", "1"])
        .output
    )
    assert "recall@10" in text
    assert "not defined" not in text, "AUC has no meaning where all rows are positives"
    assert "with a positive" not in text, "nor has an order of positives alone"
    assert f"over {USERS} queries and {FILMS - 1} items" in text


def test_eval_has_its_other_figures_without_the_training_data(
    run: RunFolder, ratings: tuple[Path, Path], tmp_path: Path
) -> None:
    data, gone = tmp_path / "data.csv", tmp_path / "gone.csv"
    data.write_text(ratings[0].read_text())
    ratings[0].rename(gone)
    command = ["eval", str(run.folder), "--data", str(data)]
    try:
        result = CliRunner().invoke(main, command, catch_exceptions=False)
        named = CliRunner().invoke(main, [*command, "--items", "training"], catch_exceptions=False)
    finally:
        gone.rename(ratings[0])
    assert result.exit_code == 0, result.output
    assert "figures over a catalogue are left out" in result.output
    assert "matches no file" in result.output
    assert f"over {USERS} queries" not in result.output
    assert named.exit_code == 3
    assert f"over {USERS} queries" in CliRunner().invoke(main, command).output, "the control"


def test_a_file_of_items_that_lacks_some_counts_them_as_missed(
    run: RunFolder, ratings: tuple[Path, Path], tmp_path: Path
) -> None:
    few = tmp_path / "few.csv"
    few.write_text("film\n" + "".join(f"f{film}\n" for film in range(0, FILMS, 2)))
    command = ["eval", str(run.folder), "--data", str(ratings[0]), "--items", str(few), "--json"]
    found = json.loads(CliRunner().invoke(main, command, catch_exceptions=False).output)["retrieval"]
    lines = ratings[0].read_text().splitlines()[1:]
    odd = sum(int(line.split(",")[1][1:]) % 2 for line in lines)
    assert found["rows_not_in_catalogue"] == odd > 0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["f1", "f2", "f1"], "films.csv:4: has the item 'f1'"),
        (["f1", '""', "f2"], "films.csv:3: the item has"),
    ],
)
def test_a_file_of_items_that_cannot_be_used_is_refused_before_anything_starts(
    cluster: ClusterMaker, ratings: tuple[Path, Path], tmp_path: Path, lines: list[str], said: str
) -> None:
    films = tmp_path / "films.csv"
    films.write_text("\n".join(["film", *lines]) + "\n")
    own = cluster(settings(ratings[0], str(films)))
    coordinator = own.start_coordinator()
    assert coordinator.wait() == 3
    assert said in coordinator.text()
    assert not list(tmp_path.glob("runs/*")), "no run has begun"


def test_items_of_a_model_without_towers_are_refused(saved_run: Path, validation_file: str) -> None:
    text = said("eval", str(saved_run), "--data", validation_file, "--items", "training", code=3)
    assert "has no vectors of queries and items" in text
