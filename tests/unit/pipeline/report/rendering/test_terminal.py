"""The report on the terminal: small, plain where it is no terminal, loud where the ledger is red."""

from __future__ import annotations

import re

import pytest
from shadowsync.pipeline.report.document import Event, NodeRecord, Report
from shadowsync.pipeline.report.ledger import Identity, Ledger
from shadowsync.pipeline.report.tables.disk_rows import DiskRows

from ..conftest import altered, on_terminal


def _crowded(report: Report) -> Report:
    """30 trainers, 20 events, 20 identities, and long names."""
    nodes = [
        NodeRecord(
            name=f"trainer-{n}", role="trainer", cpu_seconds=100.0, peak_memory_bytes=mib << 20, exit="0"
        )
        for n, mib in enumerate(range(300, 330))
    ]
    events = [Event(seconds=float(n), node=f"trainer-{n}", what="died " * 40) for n in range(20)]
    identities = [Identity.of(f"embedding-{n} applied = batches", n, n) for n in range(20)]
    return altered(
        report,
        nodes=nodes,
        events=events,
        warnings=["trainer-1 synchronized once. " + "It can cost quality. " * 10],
        ledger=Ledger.of([*identities, Identity.of("read = all", 1, 2)], 0, {}),
        throughput={"per_trainer": {node.name: 900.0 for node in nodes}},
    )


def test_rows_on_disk_are_one_line_for_all_nodes(minimal_report: Report) -> None:
    counts = {"memory_rows": 5, "file_rows": 9, "reads": 1, "writes": 1, "bytes": 8}
    nodes = [
        DiskRows(name=f"embedding-{n}", requested=1000 * (n + 1), missed=100, wait_seconds=0.5, **counts)
        for n in range(4)
    ]
    text = on_terminal(altered(minimal_report, disk_rows=nodes))
    assert re.search(r"rows in memory +96\.0% of those asked for, others on disk", text)
    # The control: a job whose rows are all in memory says nothing.
    assert "rows in memory" not in on_terminal(minimal_report)


def test_a_long_reason_of_a_node_is_told_once(minimal_report: Report) -> None:
    reason = (
        "failed: log.csv: 1,001 malformed rows, more than data.max_bad_rows = 1000; " + "correct them " * 9
    )
    node = NodeRecord(name="reader-0", role="reader", cpu_seconds=1.0, peak_memory_bytes=1, exit=reason)
    event = Event(seconds=1.0, node="reader-0", what=reason)
    text = on_terminal(altered(minimal_report, nodes=[node], events=[event]), width=80)
    (line,) = [line for line in text.splitlines() if line.startswith("reader-0")]
    assert line.rstrip().endswith("...")
    assert " ".join(text.split()).count("more than data.max_bad_rows") == 1, "in the event"


def test_the_figures_are_those_of_the_model_in_the_headline(full_report: Report) -> None:
    assert "0.8765" not in on_terminal(full_report)
    best = {"model": "the best one", "ne": 0.6543, "auc": 0.8765}
    text = on_terminal(altered(full_report, eval=best, eval_last=full_report.eval))
    assert "NE 0.6543 on" in text
    assert re.search(r"AUC, held-out +0\.8765", text)


@pytest.mark.parametrize(
    ("left", "shown"), [(1, "1 <= 2   adds up"), (3, "3 > 2   DOES NOT ADD UP (off by +1)")]
)
def test_what_may_be_less_has_its_own_sign(minimal_report: Report, left: int, shown: str) -> None:
    ledger = Ledger.of([Identity.bounded("pushes known <= sent again", left, 2)], 0, {})
    text = on_terminal(altered(minimal_report, ledger=ledger))
    (line,) = [line for line in text.splitlines() if "pushes known" in line]
    assert re.sub(" +", " ", shown) in re.sub(" +", " ", line)


@pytest.mark.parametrize("name", ["full_report", "minimal_report", "red_report"])
@pytest.mark.parametrize("terminal", [False, True])
def test_it_fits_100_by_40(name: str, terminal: bool, request: pytest.FixtureRequest) -> None:
    text = on_terminal(request.getfixturevalue(name), terminal=terminal)
    assert ("\x1b[" in text) is terminal
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_a_crowd_fits_too_and_hides_nothing_that_is_wrong(full_report: Report) -> None:
    text = on_terminal(_crowded(full_report), terminal=True)
    assert len(text.splitlines()) <= 40
    assert "1 != 2" in text
    assert "15 more are in report.md" in text
    assert "all of them add up" in text
    assert "30 of 30 with 0" in text
    assert "345 MB at most" in text
    assert "17 more events" in text


def test_the_facts_are_there(full_report: Report) -> None:
    text = " ".join(on_terminal(full_report).split())
    for fact in [
        "demo: finished although a node died", "NE 0.8123", "85.4%", "adds up", "1,005,120 = 1,005,120",
        "1,001,024 (1,024 replayed)", "4,096, 0", "0.7654", "10,234", "5,200", "412 rounds",
        "4.7 mean, 19 at most", "31.2 ms",
        "3.46 GB", "0.0213", "1.31 mean, 9 at most",
        "killed by signal 9", "213 MB", "1 min 44 s",
    ]:  # fmt: skip
        assert fact in text, fact


def test_what_a_codec_saved(full_report: Report, minimal_report: Report) -> None:
    text = " ".join(on_terminal(full_report).split())
    assert "center_up 1.07 GB, int8, 3.75 x fewer" in text
    assert "center_down" not in text, "float32 saves nothing"
    assert "fewer" not in on_terminal(minimal_report)


def test_a_red_ledger_is_loud_and_first_among_its_equations(red_report: Report) -> None:
    text = on_terminal(red_report)
    assert "The ledger DOES NOT ADD UP" in text
    assert text.index("1,005,120 != 1,004,608") < text.index("trained = distinct + replayed")
    assert "\x1b[1;31mThe ledger DOES NOT ADD UP" in on_terminal(red_report, terminal=True)


def test_a_narrow_place_loses_no_fact(full_report: Report) -> None:
    text = on_terminal(full_report, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for fact in ["1,001,024 (1,024 replayed)", "easgd, shadow, 412 rounds", "1,024 (over all trainers)"]:
        assert fact in text


def test_a_warning_is_there_and_loud(full_report: Report) -> None:
    warned = altered(full_report, warnings=["trainer-1 synchronized 3 times [sic]"])
    assert "trainer-1 synchronized 3 times [sic]" in on_terminal(warned)
    assert "\x1b[33mtrainer-1 synchronized" in on_terminal(warned, terminal=True)
    assert "synchronized" not in on_terminal(full_report)


def test_what_was_not_measured_is_said(minimal_report: Report) -> None:
    text = " ".join(on_terminal(minimal_report).split())
    assert "gap in iterations not measured" in text
    assert "staleness not measured" in text
    assert "examples/s not measured" in text
    assert "not measured mean" not in text
    assert "None" not in text


def test_an_event_outside_a_terminal_is_not_cut(full_report: Report) -> None:
    event = Event(seconds=3.0, node="sync-0", what="stopped " * 30 + "END")
    assert "END" in on_terminal(altered(full_report, events=[event]), width=80)


def test_names_with_brackets_are_no_markup(full_report: Report) -> None:
    event = Event(seconds=3.0, node="[red]node[/red]", what="[/] broke")
    assert "[red]node[/red]: [/] broke" in on_terminal(altered(full_report, events=[event]))


def test_a_sum_over_nodes_is_not_made_of_some_of_them(full_report: Report) -> None:
    nodes = [
        NodeRecord(name=f"trainer-{n}", role="trainer", cpu_seconds=None if n == 3 else 1.0,
             peak_memory_bytes=None, exit=None)
        for n in range(9)
    ]  # fmt: skip
    text = on_terminal(altered(full_report, nodes=nodes))
    (line,) = [line for line in text.splitlines() if line.startswith("9 nodes")]
    assert line.count("not measured") == 2
    assert "0 of 9 with 0" in line
