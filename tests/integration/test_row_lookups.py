"""How rows are looked up, in whole jobs: ahead, each distinct one once, and with copies of hot ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.tests.support.deterministic import deterministic, digests, was_trained
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.runs import RunFolder, Settings

NONE = {"sync": {"algorithm": "none"}}


def run(cluster: Callable[..., InProcessCluster], changes: Settings) -> RunFolder:
    own = cluster(changes).start()
    assert own.wait(90.0) == 0, own.coordinator.text()
    return RunFolder(own.run.folder.resolve())


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_staleness_is_by_how_many_batches_a_worker_looks_ahead(
    cluster: Callable[..., InProcessCluster], ahead: int
) -> None:
    """Of one worker nobody else's pushes come between; each number is the control of the others."""
    trainer = {"count": 1, "lookups_ahead": ahead, "credit": 8}
    report = run(cluster, {**NONE, "trainer": trainer}).report
    assert report.staleness.embedding_max == ahead
    assert report.staleness.embedding_mean is not None
    # Where the reader is slow there is less to look ahead to.
    assert ahead / 2 < report.staleness.embedding_mean + (ahead == 0) * 0.1
    assert report.staleness.embedding_mean <= ahead


def test_copies_serve_and_are_no_older_than_their_bound(cluster: Callable[..., InProcessCluster]) -> None:
    trainer = {"count": 1, "lookups_ahead": 1, "credit": 8}
    reports = {
        bound: run(
            cluster,
            {
                **NONE,
                "run": {"name": f"bound-{bound}"},
                "trainer": {**trainer, "cache_rows": 20_000, "cache_staleness": bound},
            },
        ).report
        for bound in (0, 12)
    }
    for bound, report in reports.items():
        cache = report.row_cache
        assert cache is not None
        assert (cache.rows, cache.staleness) == (20_000, bound)
        # What the copies add, and the batch looked up ahead; the first is reached.
        assert report.staleness.embedding_max == bound + 1
        assert cache.hit_rate == cache.hits / (cache.hits + cache.misses)
        # The number of a row and its 8 floats each.
        assert cache.spared_bytes == cache.hits * (4 + 8 * 4)
        assert report.ledger.adds_up
    fresh, old = reports[0].row_cache, reports[12].row_cache
    assert fresh is not None
    assert old is not None
    assert fresh.hits == 0 < old.hits
    assert old.hit_rate is not None
    assert old.hit_rate > 0.5
    assert fresh.hits + fresh.misses == old.hits + old.misses


def test_several_trainers_pushes_count_for_the_bound(cluster: Callable[..., InProcessCluster]) -> None:
    trainer = {"count": 2, "workers": 2, "lookups_ahead": 0, "cache_rows": 20_000, "cache_staleness": 40}
    report = run(cluster, {"embedding": {"nodes": 2}, "trainer": trainer}).report
    assert report.row_cache is not None
    assert report.row_cache.hits > 0
    assert report.ledger.adds_up
    # Beyond the bound only what is pushed between a batch's lookup and its push, as without copies.
    assert report.staleness.embedding_max is not None
    assert 20 < report.staleness.embedding_max < 40 + 40


def ended(cluster: Callable[..., InProcessCluster], name: str, **trainer: object) -> RunFolder:
    return run(cluster, deterministic({**NONE, "trainer": trainer}, 1, name))


def test_asking_for_distinct_rows_changes_no_bit(cluster: Callable[..., InProcessCluster]) -> None:
    plain, distinct = ended(cluster, "plain"), ended(cluster, "distinct", distinct_rows=True)
    assert was_trained(plain)
    assert digests(plain) == digests(distinct)
    assert plain.report.row_cache is None
    assert plain.report.staleness.embedding_max == 0


def test_a_deterministic_run_with_copies_repeats(cluster: Callable[..., InProcessCluster]) -> None:
    runs = [ended(cluster, name, cache_rows=3000, cache_staleness=9) for name in ("first", "second")]
    assert was_trained(runs[0])
    assert digests(runs[0]) == digests(runs[1])
    assert runs[0].report.row_cache == runs[1].report.row_cache
    # The control: the copies were used, and old.
    assert runs[0].report.staleness.embedding_max == 9


@pytest.mark.parametrize("kind", ["categorical", "multi_hot"])
def test_every_node_knows_of_a_batch_that_has_no_row_there(
    cluster: Callable[..., InProcessCluster], tmp_path: Path, kind: str
) -> None:
    """The last batch is one example: its one row is on one of the nodes, its empty bag on none."""
    log = tmp_path / "log.csv"
    rows = [f"{number % 2},{number}.5,{number}" for number in range(64)]
    last = "1,0.5," + ("7" if kind == "categorical" else "")
    log.write_text("\n".join(["y,d,x", *rows, last]) + "\n", encoding="utf-8")
    data = {
        "format": "csv",
        "path": str(log),
        "eval_path": None,
        "columns": {"y": "label", "d": "dense", "x": kind},
        "shuffle_window": 0,
    }
    changes: Settings = {"data": data, "trainer": {"count": 1, "batch": 64}, "embedding": {"nodes": 2}}
    ended = run(cluster, {**NONE, **changes})
    assert ended.report.ledger.adds_up
    # The control: there was such a batch.
    assert ended.batches() == 2
    assert sorted(ended.report.ledger.shard_applied.values()) == [2, 2]
