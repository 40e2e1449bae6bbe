"""Jobs that train on a Kafka topic, followed and fixed; the broker is in the test's process."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.integration.data.test_followed_input import stop, trained
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, finished
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import going_on, interrupted
from shadowsync.tests.support.outside.broker import Broker, running_broker

COLUMNS = {"clicked": "label", "ad": "categorical", "place": "categorical", "price": "dense"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running_broker() as one:
        yield one


def rows(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [
        f"{draw.randrange(2)},a{draw.randrange(50)},p{draw.randrange(5)},{draw.random():.3f}"
        for _ in range(count)
    ]


def changes(broker: Broker, **data: Any) -> dict[str, dict[str, Any]]:
    section = {
        "format": "csv",
        "header": False,
        "path": broker.url("clicks"),
        "columns": COLUMNS,
        "eval_path": None,
        "follow": True,
        "follow_seconds": 0.1,
    }
    return {"data": section | data}


def wait_for(own: InProcessCluster, examples: int) -> None:
    """Wait until so many are trained, while the job goes on."""
    wait_until(
        lambda: trained(own.run) >= examples or own.coordinator.poll() is not None, f"{examples} are trained"
    )
    assert own.coordinator.poll() is None, own.coordinator.text()


def test_messages_are_trained_on_as_they_come_and_a_resumed_run_goes_on(
    in_process: ClusterMaker, broker: Broker
) -> None:
    broker.write("clicks", rows(1, 1_000), partition=0)
    broker.write("clicks", rows(2, 500), partition=2)
    first = in_process(changes(broker)).start()
    wait_for(first, 1_500)
    broker.write("clicks", rows(3, 700), partition=2)
    wait_for(first, 2_200)
    first.interrupted()
    broker.write("clicks", rows(4, 300), partition=1)
    second = in_process(going_on(changes(broker), first.run)).start()
    wait_for(second, 300)
    stop(second)
    report = second.ended()
    assert (report.examples.distinct, report.restored_examples) == (300, 2_200)
    # Each offset of each partition is in one span.
    read: dict[str, list[tuple[int, int]]] = {}
    for run in (first.run, second.run):
        for path, start, end in run.query("SELECT path, start, stop FROM spans ORDER BY start"):
            read.setdefault(path.rpartition("/")[2], []).append((start, end))
    assert read["0"] == [(0, 1_000)]
    assert read["1"] == [(0, 300)]
    ends = [0, *(end for _, end in read["2"])]
    assert ends[-1] == 1_200
    assert [start for start, _ in read["2"]] == ends[:-1]


def test_a_resumed_run_goes_on_where_it_was_at_other_brokers(
    in_process: ClusterMaker, broker: Broker
) -> None:
    broker.write("clicks", rows(1, 1_000), partition=1)
    first = in_process(changes(broker)).start()
    wait_for(first, 1_000)
    first.interrupted()
    with running_broker() as other:
        other.write("clicks", [*rows(1, 1_000), *rows(2, 300)], partition=1)
        moved = going_on(changes(broker), first.run, {"data": {"path": other.url("clicks")}})
        second = in_process(moved).start()
        wait_for(second, 300)
        stop(second)
        second.ended()
    report = second.run.report
    assert (report.examples.distinct, report.restored_examples) == (300, 1_000)
    said = f"{other.url('clicks')} goes on where {broker.url('clicks')} was read to"
    assert any(said in event.what for event in report.events), report.events


def test_a_schema_that_changes_in_mid_stream_stops_the_job_and_is_named(
    in_process: ClusterMaker, broker: Broker
) -> None:
    broker.write("clicks", rows(1, 1_000))
    own = in_process(changes(broker)).start()
    wait_for(own, 1_000)
    broker.write("clicks", [f"{row},new" for row in rows(2, 200)])
    report = own.ended(ExitCode.DATA)
    first = f"first is {broker.url('clicks')}/0:1000: 5 columns, not 4"
    said = rf"\d+ malformed rows, [\d.]+% of 1,\d+ rows; .* {first}"
    assert re.search(said, own.coordinator.text()), own.coordinator.text()
    assert (report.examples.distinct, report.model_saved is None) == (1_000, False)


def test_a_fixed_input_is_what_the_topic_has_at_the_start(in_process: ClusterMaker, broker: Broker) -> None:
    broker.write("clicks", [*rows(1, 999), "1,a,b,no number"], partition=3)
    report = finished(in_process, changes(broker, follow=False)).report
    assert (report.examples.distinct, report.examples.bad_rows) == (999, 1)


def test_a_fixed_input_is_resumed_although_messages_have_come(
    in_process: ClusterMaker, broker: Broker
) -> None:
    broker.write("clicks", rows(1, 10_000), partition=1)
    fixed = changes(broker, follow=False, follow_seconds=None)
    first = interrupted(in_process, fixed, 20)
    broker.write("clicks", rows(2, 300), partition=0)
    broker.write("clicks", rows(3, 300), partition=1)
    second = in_process(going_on(fixed, first)).start()
    report = second.ended()
    assert report.examples.distinct + report.restored_examples == 10_000


def test_one_is_resumed_with_the_messages_of_now_and_then_ends(
    in_process: ClusterMaker, broker: Broker
) -> None:
    broker.write("clicks", rows(1, 1_000), partition=1)
    first = in_process(changes(broker)).start()
    wait_for(first, 1_000)
    first.interrupted()
    broker.write("clicks", rows(2, 300), partition=0)
    broker.write("clicks", rows(3, 500), partition=1)
    fixed = {"data": {"follow": False, "follow_seconds": None}}
    report = finished(in_process, going_on(changes(broker), first.run, fixed)).report
    assert (report.examples.distinct, report.restored_examples) == (800, 1_000)
