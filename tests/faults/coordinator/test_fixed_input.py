"""The coordinator of a job with a fixed input is killed: what comes after its start is not trained on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.integration.data import test_topic_jobs as topics
from shadowsync.tests.integration.data.test_followed_input import (
    OF_A_FILE,
    arrive,
    changes,
    incoming,  # noqa: F401
    stop,
)
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, slowed_at
from shadowsync.tests.support.outside.broker import Broker, running_broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running_broker() as one:
        yield one


def test_a_file_that_comes_later_moves_no_other(
    in_process: ClusterMaker,
    click_log: Path,
    incoming: Path,  # noqa: F811
) -> None:
    arrive(click_log, incoming, "n.parquet")
    fixed: dict[str, dict[str, Any]] = changes(incoming)
    fixed["data"] |= {"follow": False, "follow_seconds": None, "span_bytes": 1 << 16}
    own, slowed = slowed_at(30, in_process, fixed)
    own.coordinator.kill()
    # By its path it is the first.
    arrive(click_log, incoming, "a.parquet")
    own.take_over()
    slowed.release()
    own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=2 * OF_A_FILE)
    rows = own.run.query("SELECT path, sum(examples) FROM spans GROUP BY path ORDER BY path")
    assert [(Path(path).name, n) for path, n in rows] == [("m.parquet", OF_A_FILE), ("n.parquet", OF_A_FILE)]


def test_messages_that_come_later_are_not_trained_on(in_process: ClusterMaker, broker: Broker) -> None:
    broker.write("clicks", topics.rows(1, 10_000), partition=0)
    broker.write("clicks", topics.rows(2, 10_000), partition=2)
    own, slowed = slowed_at(30, in_process, topics.changes(broker, follow=False, follow_seconds=None))
    own.coordinator.kill()
    broker.write("clicks", topics.rows(3, 3_000), partition=1)
    broker.write("clicks", topics.rows(4, 3_000), partition=2)
    own.take_over()
    slowed.release()
    own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=20_000)


@pytest.mark.matrix
@pytest.mark.parametrize("follow", [True, False])
def test_a_journal_that_does_not_say_what_was_planned_is_taken_over(
    in_process: ClusterMaker,
    incoming: Path,  # noqa: F811
    follow: bool,
) -> None:
    """As those of before 2026-12-01: the input is planned again, if it is not followed."""
    settings: dict[str, dict[str, Any]] = changes(incoming)
    settings["data"] |= {} if follow else {"follow": False, "follow_seconds": None}
    own, slowed = slowed_at(30, in_process, settings)
    own.coordinator.kill()
    own.coordinator.wait()
    with closing(sqlite3.connect(own.run.folder / "ledger.sqlite")) as database, database:
        assert database.execute("DELETE FROM journal WHERE kind = 'JobPlanned'").rowcount == 1
    own.take_over()
    slowed.release()
    if follow:
        stop(own)
    own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=OF_A_FILE)
