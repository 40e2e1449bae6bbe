"""One trainer with one worker learns what a plain torch loop learns, however far ahead it looks rows up.

The loop shares the model, the first values and the batches with the job, and none of its training.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.benchmarks.quality.data_sets.plain_loop import plain_loop
from shadowsync.lab.virtual.job import run_virtual
from shadowsync.lab.virtual.timing import Timing
from shadowsync.nodes.sync_rules import with_sync_nodes
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.runs import JobMaker, Settings, small_job, write_job

SAME_TO = 1e-5
"""NE. Sums of floats in another order are this close; rows that are one batch old are not."""


def one_trainer(algorithm: str | None, lookups_ahead: int = 0, *, exact_rows: bool = True) -> Settings:
    return {
        "trainer": {"count": 1, "lookups_ahead": lookups_ahead, "exact_rows": exact_rows},
        "embedding": {"nodes": 2},
        # Near the rate of the labels. A job takes that of a sample, which a busy machine makes smaller.
        "model": {"output_bias": -1.13},
        "sync": {"algorithm": algorithm, "gap": 4, "duty": 1.0},
    }


def plain_ne(job: Job) -> float:
    return present(plain_loop(job).test.ne)


@pytest.fixture(scope="module")
def plain(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """NE of the loop with hashed tables: it is the same under every algorithm, with rows of any age."""
    folder = tmp_path_factory.mktemp("plain")
    job = write_job(folder / "job.toml", small_job(click_log, folder / "runs"), one_trainer("none"))
    return plain_ne(load_job(job))


@pytest.mark.parametrize(
    ("algorithm", "kind", "lookups_ahead"),
    [
        (None, "hashed", 0),
        ("none", "hashed", 16),
        pytest.param("none", "hashed", 1, marks=pytest.mark.matrix),
        pytest.param("none", "hashed", 4, marks=pytest.mark.matrix),
        pytest.param("none", "growing", 4, marks=pytest.mark.matrix),
    ],
)
def test_a_job_learns_what_a_plain_loop_learns(
    cluster: ClusterMaker, plain: float, algorithm: str | None, kind: str, lookups_ahead: int
) -> None:
    """Also with the default algorithm of one trainer, whose rounds leave it as it is."""
    settings = dict(one_trainer(algorithm, lookups_ahead))
    # Growing tables of few rows would free some.
    rows = {"table_rows": 20_000} if kind == "growing" else {}
    settings["model"] = {**settings["model"], "table_kind": kind, **rows}
    own = cluster(settings).start()
    own.ended()
    wanted = plain_ne(own.job) if kind == "growing" else plain
    assert wanted < 0.95
    assert own.run.ne == pytest.approx(wanted, abs=SAME_TO)
    assert run_virtual(own.job, Timing()).ne == pytest.approx(wanted, abs=SAME_TO)


@pytest.mark.parametrize("kind", ["hashed", pytest.param("growing", marks=pytest.mark.matrix)])
def test_rows_that_decay_in_flight_are_those_of_a_plain_loop(cluster: ClusterMaker, kind: str) -> None:
    settings = dict(one_trainer("none", lookups_ahead=4))
    settings["embedding"] = {"nodes": 2, "weight_decay": 0.5}
    rows = {"table_rows": 20_000} if kind == "growing" else {}
    settings["model"] = {**settings["model"], "table_kind": kind, **rows}
    own = cluster(settings).start()
    own.ended()
    wanted = plain_ne(own.job)
    assert own.run.ne == pytest.approx(wanted, abs=SAME_TO)
    assert run_virtual(own.job, Timing()).ne == pytest.approx(wanted, abs=SAME_TO)
    # The control: without decay the loop learns something else.
    rows_keep = own.job.embedding.model_copy(update={"weight_decay": 0.0})
    assert abs(plain_ne(own.job.model_copy(update={"embedding": rows_keep})) - wanted) > 10 * SAME_TO


@pytest.mark.parametrize(
    "control", [one_trainer("none", lookups_ahead=1, exact_rows=False), one_trainer("easgd")]
)
def test_what_changes_the_training_learns_something_else(
    job_file: JobMaker, plain: float, control: Settings
) -> None:
    """The controls: rows that are one batch old, and a center that draws the replica back."""
    emulated = present(
        run_virtual(with_sync_nodes(load_job(job_file(control)), may_import=True), Timing()).ne
    )
    assert abs(emulated - plain) > 10 * SAME_TO


TOWERS: Settings = {
    "model": {
        "name": "two_tower",
        "bottom": None,
        "output_bias": None,
        "query": [f"{kind}{number}" for kind, most in (("C", 27), ("I", 14)) for number in range(1, most, 2)],
        "item": [f"{kind}{number}" for kind, most in (("C", 27), ("I", 14)) for number in range(2, most, 2)],
        # So many that no two items have the same slots of the estimate of their frequencies.
        "table_rows": 20_000,
        "options": {"dim": 8, "temperature": 0.2},
    },
    # Not the ranks among the items of the training part.
    "validation": {"metric": "auc"},
}


@pytest.mark.parametrize("kind", ["hashed", pytest.param("growing", marks=pytest.mark.matrix)])
def test_two_towers_learn_what_a_plain_loop_learns(cluster: ClusterMaker, kind: str) -> None:
    """The log has no items to retrieve; the same AUC to 1e-5 takes the same order of the scores."""
    settings = {**one_trainer("none", lookups_ahead=4), **TOWERS}
    settings["model"] = {**settings["model"], "table_kind": kind}
    own = cluster(settings).start()
    own.ended()
    evaluation = own.run.evaluation
    wanted = present(plain_loop(own.job).test.auc)
    assert evaluation.auc == pytest.approx(wanted, abs=SAME_TO)
    assert run_virtual(own.job, Timing()).auc == pytest.approx(wanted, abs=SAME_TO)
    # The control: without the correction the loop learns something else.
    options = own.job.model.options | {"frequency_rate": 0}
    model = own.job.model.model_copy(update={"options": options})
    control = present(plain_loop(own.job.model_copy(update={"model": model})).test.auc)
    assert abs(control - wanted) > 10 * SAME_TO
