"""The table of a terminal, the lines of what is none, and attaching to a job."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from shadowsync.nodes.clients.watched_job import address_of, show_job
from shadowsync.pipeline.errors import ClusterError, JobFileError, ProtocolError
from shadowsync.pipeline.text.format import MISSING
from shadowsync.pipeline.wire.keys.job_key import JobKey
from shadowsync.tests.support.coordinator.statuses import a_status
from shadowsync.watch.status import (
    Incident,
    LedgerFigures,
    NodeStatus,
    Progress,
    Quality,
    Speed,
    ValidationStatus,
)
from shadowsync.watch.terminal.live import Lines, LiveTable, NotebookBar, Silence, display, line_of
from shadowsync.watch.terminal.table import MOST_NODES, table_of

WIDTH = 80


def drawn(status: object, width: int = WIDTH) -> list[str]:
    """The lines of the table."""
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(table_of(status))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_fits_and_has_the_figures(width: int) -> None:
    lines = drawn(a_status(page="http://127.0.0.1:8080/"), width)
    assert max(len(line) for line in lines) <= width
    text = "\n".join(lines)
    for figure in (
        *("a-job", "training", "easgd, in the background", "25%", "12,288 of 50,000 examples", "30 s left"),
        *("31,000, mean 30,000", "0.8000, now 0.7000", "2.5, open 3", "0.0200", "2.00 MB/s out"),
        *("trainer-1", "90%", "300 MB", "15,000", "20 rounds", "4 batches queued", "60 lookups/s"),
        "http://127.0.0.1:8080/",
    ):
        assert figure in text, figure
    assert "…" not in text


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("trainers", [2, 20])
def test_a_late_trainer_has_its_share_of_the_time_in_a_column(width: int, trainers: int) -> None:
    status = a_status(trainers)
    assert "late" not in "\n".join(drawn(status, width))
    late = {"trainer-0": 0.0, "trainer-1": 0.37}
    nodes = [node.model_copy(update={"late": late.get(node.name)}) for node in status.nodes]
    lines = drawn(status.model_copy(update={"nodes": nodes}), width)
    assert max(len(line) for line in lines) <= width
    assert "…" not in "".join(lines)
    (head,) = [line for line in lines if "late" in line]
    row = next(line for line in lines if line.startswith("trainer-1" if trainers == 2 else "20 trainers"))
    assert row[: head.index("late") + 4].endswith(" 37%")


@pytest.mark.parametrize("width", [80, 100])
def test_malformed_rows_are_told_while_the_job_trains(width: int) -> None:
    def told(rows: int) -> tuple[list[str], str]:
        status = a_status(ledger=LedgerFigures(trained=12_288, bad_rows=rows))
        stream = io.StringIO()
        Lines(stream)(status.model_dump(mode="json"))
        return [line for line in drawn(status, width) if "malformed" in line], stream.getvalue()

    table, line = told(1_234)
    assert len(table) == 1
    assert "1,234 rows" in table[0]
    assert len(table[0]) <= width
    assert "1,234 malformed rows" in line
    assert told(0)[0] == []
    assert "malformed" not in told(0)[1]


def test_what_a_node_refused_stands_at_its_end() -> None:
    def last(**refused: Any) -> str:
        (line,) = drawn(a_status(nodes=[NodeStatus(name="sync-0", role="sync", index=0, **refused)]))[-1:]
        return line

    assert "refused" not in last()
    assert last(refused_messages=3).endswith("  refused 3 messages")
    assert last(refused_connections=2).endswith("  refused 2 connections")
    assert last(refused_messages=3, refused_connections=2).endswith("3 messages, 2 connections")


def test_lines_tell_each_event_once() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    died = Incident(number=1, seconds=31.2, node="reader-0", what="died (killed by SIGKILL)")
    joined = Incident(number=2, seconds=32.0, node="reader-1", what="joined the running job")
    for incidents in ([], [died], [died, joined], [died, joined]):
        lines(a_status(incidents=incidents).model_dump(mode="json"))
    shown = stream.getvalue().splitlines()
    assert len(shown) == 4 + 2
    assert shown[1] == "      31 s  reader-0: died (killed by SIGKILL)"
    assert shown[3] == "      32 s  reader-1: joined the running job"


@pytest.mark.parametrize("width", [80, 100])
def test_an_address_with_its_token_is_whole(width: int) -> None:
    address = f"http://a-host-in-a-network:8080/?token={JobKey.generate().http_token}"
    lines = drawn(a_status(page=address), width)
    assert lines[-1].strip() == address


def test_scores_without_ne_have_the_metric_of_the_last_validation() -> None:
    def text(**changes: Any) -> str:
        return "\n".join(drawn(a_status(**changes)))

    scored = [ValidationStatus(examples=at, value=value) for at, value in ((1_000, 0.05), (2_000, 0.125))]
    ranks = {"quality": Quality(), "validation_metric": "recall@10"}
    assert re.search(rf"recall@10 +{MISSING}", text(**ranks))
    assert "NE" not in text(**ranks)
    assert re.search(r"recall@10 +0\.1250 at 2,000", text(**ranks, validation=scored))
    for controls in ({"validation_metric": "auc"}, {"quality": Quality()}):
        assert re.search(r"NE +\S+, now", text(**controls, validation=scored))


def test_what_was_not_measured_is_no_zero() -> None:
    unknown = a_status(progress=Progress(trained=0, distinct=0), speed=Speed())
    text = "\n".join(drawn(unknown))
    assert "0 examples" in text
    assert f"{MISSING}, mean {MISSING}" in text
    assert "left" not in text
    assert "%  0 examples" not in text


def test_a_line_has_the_speed_of_now_and_else_the_mean() -> None:
    idle = line_of(a_status(speed=Speed(now=0.0, mean=31_000.0)))
    assert " 0 examples/s" in idle
    assert "31,000" not in idle
    assert "mean" not in idle
    assert re.search(r"mean +31,000 examples/s", line_of(a_status(speed=Speed(mean=31_000.0))))


def test_a_line_counts_what_its_share_is_of() -> None:
    resumed = a_status(progress=Progress(trained=0, distinct=23_296, total=50_994, exact=True))
    assert re.search(r" 23,296 trained +46%", line_of(resumed))


def test_an_estimate_is_called_one() -> None:
    estimated = a_status(progress=Progress(trained=10, distinct=10, total=100))
    assert any("10 of about 100 examples" in line for line in drawn(estimated))


def test_many_nodes_are_a_row_a_role() -> None:
    few, many = drawn(a_status(trainers=8)), drawn(a_status(trainers=MOST_NODES))
    assert any(line.startswith("trainer-7") for line in few)
    assert not any(line.startswith("trainer-") for line in many)
    (row,) = [line for line in many if line.startswith(f"{MOST_NODES} trainers")]
    assert f"{15_000 * MOST_NODES:,}" in row
    assert len(many) < len(few)


def test_the_dead_and_what_happened_are_shown() -> None:
    status = a_status()
    dead = NodeStatus(name="trainer-9", role="trainer", index=9, alive=False, why="died (killed by SIGKILL)")
    incidents = [Incident(number=n, seconds=n, node="trainer-9", what=f"incident {n}") for n in range(1, 6)]
    changes = {"nodes": [*status.nodes, dead], "incidents": incidents}
    text = "\n".join(drawn(status.model_copy(update=changes)))
    assert re.search(r"trainer-9 +✗ died", text)
    assert "incident 5" in text
    assert "incident 1" not in text
    # A long text has its reason at its end.
    long = Incident(number=6, seconds=6, node="trainer-9", what=f"{'figure ' * WIDTH}and its reason")
    changes["incidents"] = [long]
    assert "and its reason" in " ".join(drawn(status.model_copy(update=changes)))


def test_lines_say_the_page_once() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    for seconds in (5.0, 10.0):
        lines(a_status(seconds=seconds, page="http://127.0.0.1:1/").model_dump(mode="json"))
    first, *rest = stream.getvalue().splitlines()
    assert first == "page: http://127.0.0.1:1/"
    assert len(rest) == 2
    assert re.match(r"       5 s  training +12,288 trained +25%, 30 s left", rest[0])
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_a_table_and_is_left_as_it_was() -> None:
    stream = io.StringIO()
    table = LiveTable(Console(file=stream, force_terminal=True, width=WIDTH, height=40))
    for seconds in (1.0, 2.0):
        table(a_status(seconds=seconds).model_dump(mode="json"))
    table.close()
    table.close()
    text = stream.getvalue()
    assert "\x1b[?25l" in text, "the cursor is hidden"
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "and comes back"
    # What was drawn is erased, line by line, so that the report begins where the table did.
    assert text.count("\x1b[2K") >= 2 * 10


def test_what_suits_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(display(quiet=True), Silence)
    assert isinstance(display(quiet=False), Lines)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(display(quiet=False), LiveTable)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(display(quiet=False), Lines)


def test_another_version_s_status_is_refused() -> None:
    with pytest.raises(ProtocolError, match="version"):
        Lines(io.StringIO())({"version": 0})


def test_where_to_attach(tmp_path: Path) -> None:
    assert address_of(None, "tcp://h:1") == "tcp://h:1"
    (tmp_path / "coordinator.json").write_text('{"endpoint": "tcp://h:2"}', encoding="utf-8")
    assert address_of(tmp_path, None) == "tcp://h:2"
    for folder, join in ((None, None), (tmp_path, "tcp://h:1")):
        with pytest.raises(JobFileError, match="--join"):
            address_of(folder, join)
    with pytest.raises(ClusterError, match="not the folder of a run"):
        address_of(tmp_path / "nowhere", None)


def test_an_address_that_is_none() -> None:
    with pytest.raises(ClusterError, match="tcp://HOST:PORT"):
        asyncio.run(show_job("nowhere", once=True, as_json=False))


def test_nobody_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowsync.nodes.clients.watched_job.FIRST_REPLY_SECONDS", 0.3)
    with pytest.raises(ClusterError, match=r"no coordinator answered within 300 ms"):
        asyncio.run(show_job("tcp://127.0.0.1:9", once=True, as_json=False))


def test_the_bar_of_a_notebook_has_figures_and_the_latest_events_and_goes_at_the_end() -> None:
    shown: list[str] = []
    bar = NotebookBar(shown.append)
    happened = [Incident(number=k, seconds=k, node=f"trainer-{k}", what="died <here>") for k in range(1, 8)]
    bar(a_status(page="http://127.0.0.1:8080/", incidents=happened[:6]).model_dump(mode="json"))
    assert shown[-1].startswith('<progress max="1" style="width:100%" value="0.2458"></progress><pre>')
    assert '<a href="http://127.0.0.1:8080/">' in shown[-1]
    bar(a_status(incidents=happened[6:]).model_dump(mode="json"))
    assert [f"trainer-{k}: died &lt;here&gt;" in shown[-1] for k in range(1, 8)] == [False] * 2 + [True] * 5
    bar(a_status(progress=Progress(trained=5, distinct=5)).model_dump(mode="json"))
    assert shown[-1].startswith('<progress max="1" style="width:100%"></progress>')
    bar.close()
    assert shown[-1] == ""
