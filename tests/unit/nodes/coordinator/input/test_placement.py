"""How the coordinator finds the place of every row."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from shadowsync.nodes.control.membership import require_same_plan
from shadowsync.nodes.coordinator.input import planning
from shadowsync.nodes.coordinator.input.planning import place_tables
from shadowsync.nodes.coordinator.state.placement import TablePlacement
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.placement.ranges import Range
from shadowsync.pipeline.embedding.placement.row_costs import TableCost, TimedRowCosts
from shadowsync.pipeline.errors import ClusterError, DataError
from shadowsync.pipeline.input import sample as sample_module
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.input.sample import sample_batches, take_sample
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.report.rendering.terminal import print_plan
from shadowsync.pipeline.report.tables.placement import PlanRecord, read_table_plan
from shadowsync.pipeline.wire.control.messages import NodeFacts
from shadowsync.tests.support.coordinator.fake_coordinator import member
from shadowsync.watch.terminal.live import Lines, LiveTable, Silence

ROWS = 6000
TAGS = 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log in which `tags` has a bag of TAGS rows an example, and the four ids one each."""
    folder = tmp_path_factory.mktemp("bags")
    columns: dict[str, Any] = {"label": [n % 2 for n in range(ROWS)], "tags": []}
    columns["tags"] = [[(n * 31 + k * 7) % 900 for k in range(TAGS)] for n in range(ROWS)]
    for name in ("a", "b", "c", "d"):
        columns[name] = [(n * 17 + ord(name)) % 800 for n in range(ROWS)]
    pq.write_table(pa.table(columns), folder / "log.parquet", row_group_size=1000)
    return folder / "log.parquet"


def job_of(path: Path, **sections: dict[str, Any]) -> Job:
    columns = {"label": "label", "tags": "multi_hot", **dict.fromkeys("abcd", "categorical")}
    base: dict[str, dict[str, Any]] = {
        "data": {"format": "parquet", "path": str(path), "columns": columns, "span_bytes": 1 << 16},
        "model": {"table_rows": 1000, "embedding_dim": 8},
        "trainer": {"batch": 128},
        "embedding": {"nodes": 2},
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section}
    return job_of_tree(base)


def found(job: Job) -> TablePlacement:
    return place_tables(job, plan_input(job).train)


def expected(placement: TablePlacement, plan: TablePlan) -> list[float]:
    """What a plan gives each node to do, by the costs that were found."""
    costs = TablePlacement(plan, "measured", placement.profiles, placement.examples)
    return [costs.node(node).expected_ns or 0.0 for node in range(plan.nodes)]


def test_the_nodes_are_level_where_a_table_is_looked_up_often(log: Path) -> None:
    job = job_of(log)
    placement = found(job)
    assert placement.how == "measured"
    tags = placement.profiles[0].access
    assert (tags.rows_per_example, placement.profiles[1].access.rows_per_example) == (TAGS, 1.0)
    loads = expected(placement, placement.plan)
    assert max(loads) < 1.06 * sum(loads) / 2
    by_rows = expected(placement, found(job_of(log, embedding={"placement": "rows"})).plan)
    assert max(by_rows) > 1.3 * sum(by_rows) / 2, "the control"


def test_what_it_takes_to_plan_nothing(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node, rows alone, and a plan that is kept, need no look at the input."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(planning, "take_sample", never)
    for job in (job_of(log, embedding={"nodes": 1}), job_of(log, embedding={"placement": "rows"})):
        placement = place_tables(job, [])
        assert (placement.how, placement.examples) == ("rows", 0)
        assert placement.record().nodes[0].expected_ns is None
    kept = TablePlan.make(job_of(log).tables, 2)
    assert place_tables(job_of(log), [], kept) == TablePlacement(kept, "kept")
    with pytest.raises(AssertionError):
        found(job_of(log))


def test_a_deterministic_job_looks_at_no_clock(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(log, run={"deterministic": True}, trainer={"count": 1}, sync={"algorithm": "none"})
    first = found(job)
    assert first.how == "counted"
    seconds: list[float | None] = []

    def noted(*args: Any, **options: Any) -> None:
        seconds.append(options["seconds"])
        take_sample(*args, **options)

    def no_clock(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(planning, "take_sample", noted)
    monkeypatch.setattr(TimedRowCosts, "measure", no_clock)
    assert found(job).record() == first.record()
    assert seconds == [None]
    with pytest.raises(AssertionError):
        found(job_of(log))


def test_what_trainers_ask_for_is_what_is_charged(log: Path) -> None:
    alike: dict[str, dict[str, Any]] = {"run": {"deterministic": True}, "sync": {"algorithm": "none"}}
    coded = {"vectors": "bfloat16", "gradients": "bfloat16"}

    def costs(trainer: dict[str, Any], codecs: dict[str, Any]) -> list[TableCost]:
        job = job_of(log, trainer={"count": 1, **trainer}, codecs=codecs, **alike)
        return [profile.cost for profile in found(job).profiles]

    plain, once, half = costs({}, {}), costs({"distinct_rows": True}, {}), costs({}, coded)
    # Of `a` a batch of 128 has fewer distinct ids than examples; of `tags`, with bags, nothing is saved.
    assert once[0] == plain[0]
    assert once[1].lookup_ns < 0.99 * plain[1].lookup_ns
    assert [cost.lookup_ns for cost in half] == [cost.lookup_ns for cost in plain]
    assert half[1].wire_ns == pytest.approx(plain[1].wire_ns * (4 + 2 * 8) / (4 + 4 * 8))


def test_the_sample_is_spread_over_the_input_and_ends(log: Path) -> None:
    job = job_of(log)
    spans = plan_input(job).train
    assert len(spans) >= 4
    taken = list(sample_batches(job, spans, 1024))
    assert len({batch.id.span for batch in taken}) == 4
    assert 1024 <= sum(map(len, taken)) < 1024 + 4 * 128
    few: list[Batch] = []

    def one(batch: Batch) -> bool:
        few.append(batch)
        return False

    take_sample(job, spans, one, examples=1024, seconds=None)
    assert len(few) == 1, "who says no gets no more"


def test_input_that_does_not_come_is_not_waited_for(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    coming, job, taken = threading.Event(), job_of(log), list[Batch]()
    one = next(sample_batches(job, plan_input(job).train, 1))

    def slow(*_: object) -> Iterator[Batch]:
        yield one
        coming.wait()
        yield one

    def broken(*_: object) -> Iterator[Batch]:
        yield one
        raise DataError("is broken")

    def add(batch: Batch) -> bool:
        taken.append(batch)
        return True

    monkeypatch.setattr(sample_module, "sample_batches", slow)
    take_sample(job, [], add, examples=1, seconds=0.05)
    # The first may be late, too.
    in_time = len(taken)
    readers = [thread for thread in threading.enumerate() if thread.name == "sample"]
    coming.set()
    for reader in readers:
        reader.join(60.0)
    assert len(taken) == in_time, "what came too late is not added"
    monkeypatch.setattr(sample_module, "sample_batches", broken)
    take_sample(job, [], add, examples=1, seconds=None)
    assert len(taken) == in_time + 1
    assert "the sample of the input ends early: is broken" in caplog.text
    monkeypatch.setattr(sample_module, "sample_batches", lambda *_: iter(()))
    assert place_tables(job, []).how == "rows", "where nothing is known"


def test_bad_rows_are_left_to_the_reader(tmp_path: Path) -> None:
    lines = "".join(f"{'x' if n < 50 else n % 2},t{n % 3},u{n % 9}\n" for n in range(400))
    (tmp_path / "log.csv").write_text("y,t,u\n" + lines, "utf-8")
    columns = {"y": "label", "t": "categorical", "u": "categorical"}
    job = job_of(tmp_path / "log.csv", data={"format": "csv", "columns": columns, "max_bad_rows": 0})
    assert found(job).examples == 350


def test_the_record_says_all_and_is_read_back(log: Path, tmp_path: Path) -> None:
    placement = found(job_of(log))
    record = placement.record()
    assert read_table_plan(tmp_path) is None
    record.write(tmp_path)
    assert read_table_plan(tmp_path) == record
    assert record.digest == placement.plan.digest
    assert sum(node.rows for node in record.nodes) == 5000
    assert sum(node.bytes for node in record.nodes) == 5000 * 4 * 9
    for table in record.tables:
        assert sum(piece.stop - piece.start for piece in table.pieces) == table.rows
    parts = [part for t in record.tables for part in (t.lookup_ns, t.update_ns, t.wire_ns)]
    costs = sum(part or 0.0 for part in parts)
    assert sum(node.expected_ns or 0 for node in record.nodes) == pytest.approx(costs, rel=1e-3)


def printed(record: PlanRecord) -> str:
    out = io.StringIO()
    print_plan(record, Console(width=100, file=out))
    return out.getvalue()


def test_the_plan_on_the_terminal(log: Path) -> None:
    text = printed(found(job_of(log)).record())
    assert "tables over 2 embedding nodes, by measured cost, from " in text
    assert "embedding-0" in text
    assert " 1.0" in text
    assert "by rows" in printed(TablePlacement.by_rows(job_of(log)).record())
    assert printed(TablePlacement.by_rows(job_of(log, embedding={"nodes": 1})).record()) == ""
    assert " of " not in text.replace("of the mean", "")
    limited = printed(TablePlacement.by_rows(job_of(log, embedding={"memory_bytes": 50_000})).record())
    assert limited.count("50.0 kB of ") == 2
    many = printed(TablePlacement.by_rows(job_of(log, embedding={"nodes": 20})).record())
    assert "4 more nodes in plan.json" in many


def test_a_node_with_another_plan_is_named(log: Path) -> None:
    tables = job_of(log).tables
    plan = TablePlan.make(tables, 2)
    held = [tuple((p.table, p.start, p.stop) for p in plan.pieces_of(node)) for node in range(2)]
    shards = [member("embedding", n, plan_digest=plan.digest, pieces=held[n]) for n in range(2)]
    trainers = [member("trainer", n, plan_digest=plan.digest) for n in range(2)]
    require_same_plan(plan, [*trainers, *shards])
    swapped = [Range(p.table, p.start, p.stop, 1 - p.node) for p in plan.pieces]
    other = TablePlan.of_ranges(tables, 2, swapped)
    trainers[1].get_ready(NodeFacts(plan_digest=other.digest))
    with pytest.raises(ClusterError, match="trainer-1 splits the tables differently: its plan is"):
        require_same_plan(plan, [*trainers, *shards])
    shards[0].get_ready(NodeFacts(plan_digest=plan.digest, pieces=held[1]))
    with pytest.raises(
        ClusterError, match=r"embedding-0 splits .*: it has .* of table .*, but the plan gives it"
    ):
        require_same_plan(plan, shards)


def test_a_job_that_starts_shows_its_plan_unless_it_is_to_be_quiet(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placement = found(job_of(log))
    placement.record().write(tmp_path)
    lines, terminal = io.StringIO(), io.StringIO()
    Lines(lines).begin(tmp_path)
    LiveTable(Console(width=100, file=terminal)).begin(tmp_path)
    for out in (lines, terminal):
        assert "tables over 2 embedding nodes, by measured cost" in out.getvalue()
    Silence().begin(tmp_path)
    nothing = io.StringIO()
    Lines(nothing).begin(tmp_path / "an older run")
    assert nothing.getvalue() == ""
    assert capsys.readouterr() == ("", "")
