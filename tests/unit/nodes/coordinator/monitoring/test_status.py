"""The status that a coordinator makes of what nodes told it, and the ports of their metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.control.loss_sums import normalized_entropy
from shadowsync.nodes.control.monitoring import Monitoring, flat_figures
from shadowsync.nodes.control.progress import InputFacts, InputSize
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.nodes.coordinator.monitoring.status import build_status, status_body
from shadowsync.nodes.coordinator.state.job import JobState
from shadowsync.nodes.coordinator.state.outcome import Scored
from shadowsync.nodes.coordinator.state.phases import JobPhase
from shadowsync.nodes.coordinator.state.placement import TablePlacement
from shadowsync.nodes.runtime.settings import NodeSettings, metrics_address, metrics_ports
from shadowsync.nodes.supervisor.starter import SpawnStarter
from shadowsync.nodes.supervisor.supervisor import Supervisor
from shadowsync.pipeline.checkpoint.saved_ledger import SavedLedger
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.report.merged_work import merged_counts
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.messages import GetStatus, StatusReply, TrainedBatch
from shadowsync.pipeline.wire.http.hosts import names_of
from shadowsync.tests.support.coordinator import fake_coordinator
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.watch.curves import ClientCurves
from shadowsync.watch.exporters.scalars import scalars_of
from shadowsync.watch.status import Cursor, Status, read_status

SPANS = [Span(number, "nowhere.tsv", "stream", 0, 100) for number in range(4)]


def a_job(**sections: Any) -> Job:
    given: dict[str, Any] = {
        "data": {"format": "criteo_tsv", "path": ["nowhere.tsv"]},
        "trainer": {"count": 2},
    }
    return Job.model_validate(given | sections)


def coordinator(
    folder: Path,
    *,
    restored: SavedLedger | None = None,
    input_facts: InputFacts | None = None,
    **sections: Any,
) -> JobState:
    """The state of a job that has its four nodes, two of them trainers."""
    job = a_job(**sections)
    ledger = LedgerState(SPANS, epochs=1, seed=job.run.seed, shuffled=False, restored=restored)
    state = JobState(job, folder, ledger, TablePlacement.by_rows(job), input_facts=input_facts)
    for role, count in job.expected.items():
        for index in range(count):
            state.join(role, f"{role}-token-{index}", job.digest, "", "", 0)
    return state


def heartbeat(c: JobState, name: str, seconds: float, **metrics: Any) -> None:
    (member,) = [member for member in c.members.everyone() if member.info.name == name]
    member.record_heartbeat(metrics)
    c.rates.record_heartbeat(name, seconds, metrics)


def test_figures_come_from_heartbeats_and_the_ledger(tmp_path: Path) -> None:
    c = coordinator(tmp_path)
    now = c.seconds()
    for step in range(3):
        at = now - 1.0 + 0.5 * step
        for index in range(2):
            counts = {"trained_examples": 1000 * step * (index + 1), "rounds": 10, "gap_sum": 30}
            links = {"to/sync-0": 100 * step, "from/sync-0": 50 * step}
            heartbeat(c, f"trainer-{index}", at, gap_open=index, **counts, **links)
        heartbeat(
            c, "embedding-0", at, lookups=10 * step, staleness_sum=6, staleness_count=3, staleness_max=4
        )
        heartbeat(c, "reader-0", at, read_examples=900, queued_batches=7)
    c.ledger.grant("reader-0")
    c.ledger.acknowledge("trainer-0", BatchId(0, 0, 0, c.job.run.seed), 500)
    status = build_status(c, None, 0)
    assert status.speed.now == pytest.approx(6000.0)
    assert [n.examples_per_second for n in status.nodes if n.role == "trainer"] == [2000.0, 4000.0]
    assert status.sync.gap_open == 1
    assert status.sync.gap_mean == 3.0
    assert status.sync.rounds == 20
    assert status.embedding.lookups_per_second == pytest.approx(20.0)
    assert status.embedding.staleness_mean == 2.0
    edges = {(edge.source, edge.target): (edge.up, edge.down) for edge in status.edges}
    assert edges == {(f"trainer-{index}", "sync-0"): (200.0, 100.0) for index in range(2)}
    assert (status.ledger.read, status.ledger.trained, status.ledger.in_flight) == (900, 500, 400)
    assert next(node for node in status.nodes if node.name == "reader-0").queued == 7
    assert status.curves == {}


def test_training_that_waits_for_a_validation_is_not_called_training(tmp_path: Path) -> None:
    c = coordinator(tmp_path)
    for phase in (JobPhase.STARTING, JobPhase.TRAINING):
        c.lifecycle.enter(phase)
    assert build_status(c, None, 0).phase == "training"
    c.checkpointing.pause()
    waiting = build_status(c, None, 0)
    assert waiting.phase == "waiting for a validation"
    assert waiting.progress.seconds_left is None
    c.checkpointing.end_pause()
    assert build_status(c, None, 0).phase == "training"


@pytest.mark.parametrize(("warmup_iterations", "phase"), [(1, "1 of 3 workers a trainer at first"), (0, "")])
def test_training_with_workers_that_have_not_begun_is_not_called_training(
    tmp_path: Path, warmup_iterations: int, phase: str
) -> None:
    """Its speed says nothing of the number of trainers, which a user may be about to change."""
    warmup = {"warmup_iterations": warmup_iterations}
    settings: dict[str, Any] = {"trainer": {"workers": 3}, "embedding": warmup}
    nodes = [fake_coordinator.member(role, 0) for role in ("trainer", "embedding", "reader")]
    state = fake_coordinator.state_of(tmp_path, nodes, **settings)
    state.start_members()
    state.lifecycle.begin_training({})
    assert build_status(state, None, 0).phase == f"training, {phase}".removesuffix(", ")
    state.ledger.acknowledge("trainer-0", batch_id(1), 100_000)
    assert build_status(state, None, 0).phase == "training"


def test_an_embedding_node_that_has_just_joined_has_no_figures_yet(tmp_path: Path) -> None:
    c = coordinator(tmp_path, embedding={"nodes": 2})
    heartbeat(c, "embedding-0", c.seconds(), staleness_sum=6, staleness_count=3, staleness_max=4)
    embedding = build_status(c, None, 0).embedding
    assert (embedding.staleness_mean, embedding.staleness_max) == (2.0, 4)


@pytest.mark.parametrize("left_out", [0, 100])
def test_what_the_run_before_left_out_is_not_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: int
) -> None:
    spoilt = {(0, 0): {1: left_out}} if left_out else {}
    before = SavedLedger(a_job().run.seed, partial={(0, 0): {0: 100}}, left_out=spoilt)
    size = InputSize({span.number: 250.0 for span in SPANS}, 1, 1.0, exact=True)
    c = coordinator(tmp_path, restored=before, input_facts=InputFacts(size))
    c.start_members()
    c.lifecycle.enter(JobPhase.TRAINING)
    monkeypatch.setattr(c.training.metrics, "examples_per_second", lambda: 2000.0)
    status = build_status(c, None, 0)
    assert status.progress.seconds_left == pytest.approx((1000 - 100 - left_out) / 2000.0)


def test_ne_by_the_hour_is_of_the_latest_day(tmp_path: Path) -> None:
    c = coordinator(tmp_path)

    def train(hour: int) -> None:
        c.training.metrics.trained("trainer-0", 3_600.0 * hour + 1.0, 100, 50.0 + hour, 25.0)

    train(0)
    assert build_status(c, None, 0).quality.hours == [], "one hour is all"
    train(1)
    first, second = build_status(c, None, 0).quality.hours
    assert (first.hour, first.examples, second.hour) == (0, 100, 1)
    assert first.ne == normalized_entropy(100, 50.0, 25.0) != second.ne
    for hour in range(2, 40):
        train(hour)
    assert [one.hour for one in build_status(c, None, 0).quality.hours] == list(range(16, 40))


def test_each_of_several_labels_has_figures_of_its_own(tmp_path: Path) -> None:
    columns = {"clicked": "label", "bought": "label", "x": "categorical"}
    data = {"columns": columns, "format": "parquet", "path": ["nowhere.parquet"]}

    c = coordinator(tmp_path, data=data, model={"name": "mmoe"})
    c.training.metrics.trained("trainer-0", 0.0, 100, 50.0, 25.0, None, [(20.0, 5.0)])
    c.checkpointing.scored.append(Scored(100, 1.0, 0.9, {"ne/bought": 0.7, "auc": 0.6}))
    status = build_status(c, None, 0)
    assert list(status.quality.labels) == ["clicked", "bought"]
    clicked, bought = status.quality.labels.values()
    assert (clicked.ne, clicked.ne_recent) == (status.quality.ne, status.quality.ne_recent)
    assert bought.ne == normalized_entropy(100, 20.0, 5.0)
    flat = flat_figures(status)
    assert (flat["ne"], flat["ne/clicked"], flat["ne/bought"]) == (clicked.ne, clicked.ne, bought.ne)
    assert flat["ne_recent/bought"] == bought.ne_recent
    assert (flat["validation"], flat["validation/clicked"], flat["validation/bought"]) == (0.9, 0.9, 0.7)
    assert scalars_of(status)["ne/bought/all"] == bought.ne
    assert "ne/clicked/all" not in scalars_of(status)
    message = TrainedBatch(BatchId(0, 0, 0, c.job.run.seed), 100, 1.0, 2.0, 100.0, 0.0)
    with pytest.raises(ValueError, match="another number of labels than the job's 2"):
        c.training.acknowledge(c.members.alive("trainer")[0], [message], 0, 0.0)
    assert c.ledger.totals.trained_examples == 0

    c = coordinator(tmp_path)
    c.training.metrics.trained("trainer-0", 0.0, 100, 50.0, 25.0)
    status = build_status(c, None, 0)
    assert status.quality.labels == {}
    assert not [name for name in flat_figures(status) if "/" in name]


def test_a_dead_node_has_no_rates_and_no_edges(tmp_path: Path) -> None:
    c = coordinator(tmp_path)
    now = c.seconds()
    for step in range(2):
        for index in range(2):
            counts = {"trained_examples": 100 * step, "to/sync-0": 100 * step, "rounds": 7, "gap_sum": 9}
            heartbeat(c, f"trainer-{index}", now - 0.5 + 0.5 * step, **counts)
    c.members.start()
    c.members.lose("trainer-token-0", "died (killed by SIGKILL)")
    status = build_status(c, None, 0)
    dead = next(node for node in status.nodes if node.name == "trainer-0")
    assert (dead.alive, dead.why, dead.examples_per_second) == (False, "died (killed by SIGKILL)", None)
    assert [edge.source for edge in status.edges] == ["trainer-1"]
    assert status.speed.now == pytest.approx(200.0)
    assert status.sync.rounds == 14, "what it did stays done"


def test_how_late_a_trainer_is_comes_from_those_that_wait_for_it(tmp_path: Path) -> None:
    c = coordinator(tmp_path)
    now = c.seconds()
    for step in range(2):
        counts = {"waited_seconds/trainer-1": 0.3 * step, "waited_seconds/trainer-0": 0.0}
        heartbeat(c, "trainer-0", now - 1.0 + step, **counts)
        heartbeat(c, "trainer-1", now - 1.0 + step, **{"waited_seconds/trainer-0": 0.1 * step})
    nodes = {node.name: node for node in build_status(c, None, 0).nodes}
    assert [nodes[f"trainer-{index}"].late for index in range(2)] == pytest.approx([0.1, 0.3])
    assert nodes["reader-0"].late is None
    assert all(node.merge_share is None for node in nodes.values())


def test_the_share_of_merges_is_that_of_the_last_seconds(tmp_path: Path) -> None:
    c = coordinator(tmp_path)
    now = c.seconds()
    for step in range(2):
        counts = merged_counts("trainer-0", 640, 100 + 9 * step, missed_merges=100 + step)
        counts |= merged_counts(
            "trainer-1", 640, 100 + 2 * step, missed_merges=8 * step, late_seconds=4.0 * step
        )
        heartbeat(c, "sync-0", now - 1.0 + step, **counts)
    nodes = {node.name: node for node in build_status(c, None, 0).nodes}
    assert [nodes[f"trainer-{index}"].merge_share for index in range(2)] == pytest.approx([0.9, 0.2])
    # What was late counts when it comes, so it may be more than the time in which it came.
    assert [nodes[f"trainer-{index}"].late for index in range(2)] == [0.0, 1.0]


def test_two_trainers_have_one_edge_with_both_ways(tmp_path: Path) -> None:
    c = coordinator(tmp_path)
    now = c.seconds()
    for step in range(2):
        heartbeat(c, "trainer-0", now - 1.0 + step, **{"to/trainer-1": 300 * step})
        heartbeat(c, "trainer-1", now - 1.0 + step, **{"to/trainer-0": 70 * step})
    (edge,) = build_status(c, None, 0).edges
    assert (edge.source, edge.target, edge.up, edge.down) == ("trainer-0", "trainer-1", 300.0, 70.0)


def test_only_what_is_new_is_answered(tmp_path: Path) -> None:
    c = coordinator(tmp_path)
    for step in range(200):
        c.training.metrics.trained("trainer-0", 0.0, 512, 200.0, 100)
        c.divergence.add(float(step), 0.1)
    c.add_event("trainer-0", "one")
    c.add_event("trainer-0", "two")
    client = ClientCurves()
    first = read_status(status_body(c, GetStatus(curves={})))
    client.merge(first.curves)
    assert [incident.what for incident in first.incidents] == ["one", "two"]
    again = read_status(status_body(c, GetStatus(dict(client.cursor()), incidents=1)))
    assert [incident.what for incident in again.incidents] == ["two"]
    assert len(again.curves["divergence"].points) < len(first.curves["divergence"].points) / 10
    client.merge(again.curves)
    assert client.points("divergence") == c.divergence.points


def test_the_ports_of_one_machine_follow_each_other() -> None:
    ports = metrics_ports(a_job(watch={"metrics_port": 9100}))
    assert ports["coordinator", 0] == 9100
    assert sorted(ports.values()) == list(range(9100, 9100 + len(ports)))
    assert set(metrics_ports(a_job()).values()) == {0}
    with pytest.raises(JobFileError, match="65535"):
        metrics_ports(a_job(watch={"metrics_port": 65_533}))


@pytest.mark.parametrize(
    ("bind", "port", "wanted"),
    [
        ("127.0.0.1", None, ("127.0.0.1", 9100)),
        ("0.0.0.0:5555", None, ("0.0.0.0", 9100)),
        ("10.0.0.1", 7, ("10.0.0.1", 7)),
        ("tcp://10.0.0.1:*", 7, ("10.0.0.1", 7)),
        ("[::1]:5", 7, ("::1", 7)),
        ("10.0.0.1", 0, None),
    ],
)
def test_where_metrics_are_served(bind: str, port: int | None, wanted: tuple[str, int] | None) -> None:
    job = a_job(watch={"metrics_port": 9100})
    assert metrics_address(NodeSettings(job=job, bind=bind, metrics_port=port)) == wanted
    assert metrics_address(NodeSettings(job=a_job(), bind=bind)) is None


@run_by(asyncio.run)
async def test_what_cannot_be_shown_does_not_stop_the_job(tmp_path: Path) -> None:
    c = fake_coordinator.FakeServer(tmp_path, [fake_coordinator.member("trainer", 0)])
    faults = [ZeroDivisionError("of the display")] * 3

    def status(cursor: Cursor | None, known_incidents: int) -> Status:
        if faults:
            raise faults.pop()
        return build_status(c.state, cursor, known_incidents)

    watching = Monitoring(c, status)
    for _ in range(3):
        watching.publish()
    assert [what for _, what in c.reports] == [
        "the status of the job could not be published (ZeroDivisionError: of the display)"
    ]
    watching.publish()
    assert c.state.lifecycle.stop is None
    await c.close()
    await c.store.close()


def test_a_display_that_fails_is_told_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    shown: list[dict[str, Any]] = []

    class Enough(BaseException):
        pass

    class Channel:
        async def call(self, request: GetStatus, *, timeout_seconds: float) -> StatusReply:
            del timeout_seconds
            if len(shown) == 3:
                raise Enough
            return StatusReply({"asked": str(request)})

    def progress(status: dict[str, Any]) -> None:
        shown.append(status)
        raise ZeroDivisionError("of the display")

    async def main() -> None:
        supervisor = Supervisor(a_job(), progress, SpawnStarter(), progress_seconds=0.0)
        try:
            await supervisor._show_progress(Channel())  # type: ignore[arg-type]
        finally:
            supervisor._clear_scratch()

    with pytest.raises(Enough):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == ["the progress cannot be shown"]


@pytest.mark.parametrize(
    ("advertise", "shown"),
    [
        ("tcp://[fe80::1]:5000", "fe80::1"),
        ("[fe80::1]", "fe80::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("a-host:5000", "a-host"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_page_is_called_by_what_is_advertised(advertise: str, shown: str) -> None:
    assert names_of("0.0.0.0", advertise)[0] == shown
    assert names_of("0.0.0.0", "auto") == names_of("0.0.0.0", "")
