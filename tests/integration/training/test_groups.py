"""Jobs with NDCG, recall and MAP by group: of trainers that each score a part of a group, and of the best."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.trainer import role
from shadowsync.pipeline.metrics.top_k import TopKSums
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.runs import EVAL_EXAMPLES

COLUMNS: dict[str, Any] = {
    "label": "label",
    "I*": "dense",
    "C*": "categorical",
    "user": {"kind": "group", "source": "C6"},
}


def in_pieces(patch: pytest.MonkeyPatch) -> None:
    """No fault, but groups that do not fit into one message."""
    patch.setattr(role, "TOP_PIECE_BYTES", 1000)


def test_trainers_that_score_parts_of_groups_have_the_figures_of_one_pass(
    cluster: ClusterMaker, click_log: Path
) -> None:
    sent: list[TopKSums] = []

    def seen(patch: pytest.MonkeyPatch) -> None:
        from_bytes = TopKSums.from_bytes

        def note(data: bytes) -> TopKSums:
            sent.append(from_bytes(data))
            return from_bytes(data)

        patch.setattr(TopKSums, "from_bytes", note)

    (path,) = click_log.glob("eval-*.parquet")
    run = finished(
        cluster,
        {
            "data": {"columns": COLUMNS, "readers": 2, "span_bytes": 1 << 16},
            "trainer": {"count": 2, "workers": 2},
            "validation": {"group": "user", "metric": "map@3"},
        },
        faults=(in_pieces, seen),
    )
    found = present(run.evaluation.within_groups)
    assert (found.k, found.column, found.label) == (3, "user", "")
    offline = evaluate_run(run.folder, [str(path)], "last")["groups"]
    for name in ("ndcg", "recall", "map"):
        assert getattr(found, name) == pytest.approx(offline[f"{name}@3"], abs=1e-6)
    for name in ("groups", "groups_without_positive", "rows_without_group", "rows_left_out"):
        assert getattr(found, name) == offline[name]
    # Both scored rows of the same groups, and the mean of their own figures is another.
    assert len(sent) == 2
    assert sum(part.rows for part in sent) == EVAL_EXAMPLES
    parts = [asdict(part.result()) for part in sent]
    assert sum(part["groups"] for part in parts) > found.groups
    assert abs(sum(part["map"] for part in parts) / 2 - present(found.map)) > 0.002


@pytest.mark.matrix
def test_the_best_by_ndcg_is_kept_and_ends_training(cluster: ClusterMaker, validation_file: str) -> None:
    own = cluster(
        {
            # A process that yields to all others hardly runs on a busy machine.
            "run": {"background_priority": "normal"},
            "data": {"columns": COLUMNS, "validation_path": validation_file, "epochs": 10_000},
            "embedding": {"lr": 0.2},
            "validation": {
                "every_examples": 6000,
                "patience": 2,
                "wait": True,
                "metric": "ndcg@10",
                "group": "user",
            },
        }
    ).start()
    assert own.wait(240.0) == 0, own.coordinator.text()
    report = own.ended()
    assert "did not improve on ndcg@10" in report.outcome
    points = [value for _, value in report.curves.validation]
    assert present(report.validation).best == max(points) > points[-1]
    offline = evaluate_run(own.run.folder, [validation_file], "best")["groups"]
    assert offline["ndcg@10"] == pytest.approx(max(points), abs=1e-9)
