"""What is wrong with the input or the job: one line that says what, where, and what would do."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.processes import Process, Starter, wait_until
from shadowsync.tests.support.runs import JobMaker

SECONDS = 60.0
TEXT = {"format": "criteo_tsv", "eval_path": []}
GOOD = "\t".join(["1", *["5"] * 13, *["0a1b2c3d"] * 26])


def check_error(process: Process, code: int, *words: str, seconds: float = SECONDS) -> str:
    """It ended in time with this code and one line that has these words; gives the line."""
    wait_until(lambda: process.poll() is not None, f"it ends; it wrote {process.text()}", seconds)
    assert process.code == code, process.text()
    text = process.text()
    assert "Traceback" not in text
    # Before the error there may be lines of progress, which begin with the time.
    lines = [line for line in text.strip().splitlines() if not line.lstrip()[:1].isdigit()]
    assert len(lines) == 1, text
    for word in words:
        assert word in lines[0], lines[0]
    return lines[0]


@pytest.fixture
def coordinator(starter: Starter, job_file: JobMaker) -> Callable[..., Process]:
    """The coordinator of the small job with changes; it reads the first lines of the input."""

    def start(changes: dict[str, dict[str, object]]) -> Process:
        return starter.fork("coordinator", str(job_file(changes)), "--bind", "127.0.0.1:0")

    return start


@pytest.mark.light
def test_a_missing_file(starter: Starter, job_file: JobMaker, tmp_path: Path) -> None:
    """Told by `shadowsync run`, whose coordinator finds it."""
    missing = str(tmp_path / "none-*.parquet")
    check_error(starter.fork("run", str(job_file({"data": {"path": missing}}))), 3, missing)


@pytest.mark.light
def test_an_empty_file(coordinator: Callable[..., Process], tmp_path: Path) -> None:
    empty = tmp_path / "empty.tsv"
    empty.touch()
    check_error(coordinator({"data": TEXT | {"path": str(empty)}}), 3, str(empty), "empty")


@pytest.mark.light
def test_a_wrong_number_of_columns(coordinator: Callable[..., Process], tmp_path: Path) -> None:
    short = tmp_path / "short.tsv"
    short.write_text("1\t2\t3\n" * 100)
    check_error(coordinator({"data": TEXT | {"path": str(short)}}), 3, str(short), "40")


@pytest.mark.light
def test_a_parquet_file_named_as_text(coordinator: Callable[..., Process], click_log: Path) -> None:
    path = str(click_log / "train-000.parquet")
    check_error(coordinator({"data": TEXT | {"path": path}}), 3, path, 'data.format = "parquet"')


@pytest.mark.light
def test_a_port_in_use(starter: Starter, job_file: JobMaker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = starter.fork("coordinator", str(job_file()), "--bind", address)
        check_error(process, 4, address, "--bind", "in use")


FEW: dict[str, dict[str, object]] = {"trainer": {"count": 1}, "sync": {"algorithm": "none"}}


def test_a_number_that_is_none_past_the_limit(
    cluster: Callable[..., InProcessCluster], tmp_path: Path
) -> None:
    """Malformed rows are counted; the job stops past data.max_bad_rows and says where the first ones are."""
    path = tmp_path / "bad.tsv"
    bad = GOOD.replace("5", "five", 1)
    path.write_text("".join(f"{bad if line % 10 == 3 else GOOD}\n" for line in range(1000)))
    data: dict[str, object] = TEXT | {"path": str(path), "max_bad_rows": 99}
    own = cluster(FEW | {"data": data}).start()
    assert own.wait(60.0) == 3, own.coordinator.text()
    line = own.coordinator.text().strip().splitlines()[-1]
    assert "100 malformed rows" in line
    assert f"{path}:4:" in line
    assert "max_bad_rows" in line
    # Within the first 1000 rows nothing was trained, and that is no model to keep.
    assert own.run.report.examples.trained == 0
    assert own.run.report.model_saved is None
    # The span in which they are was not read to its end.
    assert own.run.report.examples.bad_rows == 100
    assert own.run.report.examples.reasons == {"malformed rows": 100}
    assert not (own.run.folder / "checkpoint").exists()
    assert "Traceback" not in own.coordinator.text()


def test_bad_rows_below_the_limit_are_counted_and_logged(
    cluster: Callable[..., InProcessCluster], tmp_path: Path
) -> None:
    path = tmp_path / "bad.tsv"
    bad = GOOD.replace("5", "five", 1)
    path.write_text("".join(f"{bad if line % 10 == 3 else GOOD}\n" for line in range(1000)))
    data: dict[str, object] = TEXT | {"path": str(path), "max_bad_rows": 100, "max_bad_fraction": 0.1}
    own = cluster(FEW | {"data": data}).start()
    assert own.wait() == 0, own.coordinator.text()
    counted = own.run.report.examples
    assert counted.bad_rows == 100
    assert counted.trained == 900
    logged = [line["text"] for line in own.run.log("reader-0") if "bad row" in line["text"]]
    assert f"{path}:4:" in logged[0]
    assert "five" in logged[0]
    assert own.run.report.warnings[0].startswith("100 malformed rows (10.0%) skipped")
    # Each epoch meets the same rows again, within the same limits.
    more = cluster(FEW | {"data": data | {"epochs": 3}}).start()
    assert more.wait() == 0, more.coordinator.text()
    assert more.run.report.examples.bad_rows == 300
    assert "(10.0%) skipped, counted again in each epoch" in more.run.report.warnings[0]
    # A little less is allowed, and the same rows stop the job.
    own = cluster(FEW | {"data": data | {"max_bad_fraction": 0.099}}).start()
    assert own.wait() == 3, own.coordinator.text()
    said = "100 malformed rows, 10.0% of 1,000 rows; data.max_bad_fraction allows 0.099 of them; the first is"
    assert f"{said} {path}:4: I1 'five' is not a number" in own.coordinator.text()
    assert own.run.report.examples.bad_rows == 100


def test_no_good_row_is_an_error_and_no_result(
    cluster: Callable[..., InProcessCluster], tmp_path: Path
) -> None:
    path = tmp_path / "all-bad.tsv"
    path.write_text(f"{GOOD.replace('5', 'five', 1)}\n" * 50)
    own = cluster(FEW | {"data": TEXT | {"path": str(path), "max_bad_fraction": 1.0}}).start()
    assert own.wait() == 3, own.coordinator.text()
    line = own.coordinator.text().strip().splitlines()[-1]
    assert "no example could be read" in line
    assert str(path) in line
    assert not (own.run.folder / "report.json").exists()
    assert not (own.run.folder / "checkpoint").exists()


def test_tables_that_do_not_fit_into_memory(cluster: Callable[..., InProcessCluster]) -> None:
    large: dict[str, object] = {"table_rows": 80_000_000, "embedding_dim": 256}
    own = cluster(FEW | {"model": large}).start()
    # One that comes too late waits for the coordinator that has ended: as long as for its start.
    assert own.coordinator.wait(60.0) == 8, own.coordinator.text()
    line = own.coordinator.text().strip().splitlines()[-1]
    assert re.search(r"the tables need [\d.,]+ [GT]B \(.* optimizer state\), but", line)
    assert "embedding" in line
    assert "Traceback" not in own.coordinator.text()
