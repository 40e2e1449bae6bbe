"""What is wrong with the input or the job: one line that says what, where, and what would do."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.in_process_node import InProcess
from shadowsync.tests.support.jobs.node_faults import scored_on_a_thread
from shadowsync.tests.support.jobs.processes import Process, Starter
from shadowsync.tests.support.jobs.runs import JobMaker

TEXT = {"format": "criteo_tsv", "eval_path": []}
GOOD = "\t".join(["1", *["5"] * 13, *["0a1b2c3d"] * 26])


def check_error(process: Process | InProcess, code: int, *words: str) -> str:
    """It ended in time with this code and one line that has these words; gives the line."""
    assert process.wait() == code, process.text()
    text = process.text()
    assert "Traceback" not in text
    # Before the error there may be lines of progress, which begin with the time.
    lines = [line for line in text.strip().splitlines() if not line.lstrip()[:1].isdigit()]
    assert len(lines) == 1, text
    for word in words:
        assert word in lines[0], lines[0]
    return lines[0]


@pytest.fixture
def coordinator(cluster: ClusterMaker) -> Callable[..., InProcess]:
    """The coordinator of the small job with a file of text; it reads its first lines."""
    return lambda path: cluster({"data": TEXT | {"path": str(path)}}).start_coordinator()


def test_a_missing_file(starter: Starter, job_file: JobMaker, tmp_path: Path) -> None:
    """Told by `shadowsync run`, whose coordinator finds it."""
    missing = str(tmp_path / "none-*.parquet")
    check_error(starter.fork("run", str(job_file({"data": {"path": missing}}))), 3, missing)


def test_an_empty_file(coordinator: Callable[..., InProcess], tmp_path: Path) -> None:
    empty = tmp_path / "empty.tsv"
    empty.touch()
    check_error(coordinator(empty), 3, str(empty), "empty")


def test_a_wrong_number_of_columns(coordinator: Callable[..., InProcess], tmp_path: Path) -> None:
    short = tmp_path / "short.tsv"
    short.write_text("1\t2\t3\n" * 100)
    check_error(coordinator(short), 3, str(short), "40")


def test_a_parquet_file_named_as_text(coordinator: Callable[..., InProcess], click_log: Path) -> None:
    path = click_log / "train-000.parquet"
    check_error(coordinator(path), 3, str(path), 'data.format = "parquet"')


def test_a_port_in_use(starter: Starter, job_file: JobMaker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = starter.fork("coordinator", str(job_file()), "--bind", address)
        check_error(process, 4, address, "--bind", "in use")


FEW: dict[str, dict[str, object]] = {"trainer": {"count": 1}, "sync": {"algorithm": "none"}}


def test_a_number_that_is_none_past_the_limit(cluster: ClusterMaker, tmp_path: Path) -> None:
    """Malformed rows are counted; the job stops past data.max_bad_rows and says where the first ones are."""
    path = tmp_path / "bad.tsv"
    bad = GOOD.replace("5", "five", 1)
    path.write_text("".join(f"{bad if line % 10 == 3 else GOOD}\n" for line in range(1000)))
    data: dict[str, object] = TEXT | {"path": str(path), "max_bad_rows": 99}
    own = cluster(FEW | {"data": data}).start()
    assert own.wait() == 3, own.coordinator.text()
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


def test_bad_rows_below_the_limit_are_counted_and_logged(cluster: ClusterMaker, tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    bad = GOOD.replace("5", "five", 1)
    path.write_text("".join(f"{bad if line % 10 == 3 else GOOD}\n" for line in range(1000)))
    data: dict[str, object] = TEXT | {"path": str(path), "max_bad_rows": 100, "max_bad_fraction": 0.1}
    own = cluster(FEW | {"data": data}).start()
    own.ended()
    counted = own.run.report.examples
    assert counted.bad_rows == 100
    assert counted.trained == 900
    logged = [line["text"] for line in own.run.log("reader-0") if "bad row" in line["text"]]
    assert f"{path}:4:" in logged[0]
    assert "five" in logged[0]
    assert own.run.report.warnings[0].startswith("100 malformed rows (10.0%) skipped")
    # Each epoch meets the same rows again, within the same limits.
    report = finished(cluster, FEW | {"data": data | {"epochs": 3}}).report
    assert report.examples.bad_rows == 300
    assert "(10.0%) skipped, counted again in each epoch" in report.warnings[0]
    # A little less is allowed, and the same rows stop the job.
    own = cluster(FEW | {"data": data | {"max_bad_fraction": 0.099}}).start()
    assert own.wait() == 3, own.coordinator.text()
    said = "100 malformed rows, 10.0% of 1,000 rows; data.max_bad_fraction allows 0.099 of them; the first is"
    assert f"{said} {path}:4: I1 'five' is not a number" in own.coordinator.text()
    assert own.run.report.examples.bad_rows == 100


def test_no_good_row_is_an_error_and_no_result(cluster: ClusterMaker, tmp_path: Path) -> None:
    path = tmp_path / "all-bad.tsv"
    path.write_text(f"{GOOD.replace('5', 'five', 1)}\n" * 50)
    own = cluster(FEW | {"data": TEXT | {"path": str(path), "max_bad_fraction": 1.0}}).start()
    assert own.wait() == 3, own.coordinator.text()
    line = own.coordinator.text().strip().splitlines()[-1]
    assert "no example could be read" in line
    assert str(path) in line
    assert not (own.run.folder / "report.json").exists()
    assert not (own.run.folder / "checkpoint").exists()


def test_tables_that_do_not_fit_into_memory(cluster: ClusterMaker) -> None:
    large: dict[str, object] = {"table_rows": 80_000_000, "embedding_dim": 256}
    own = cluster(FEW | {"model": large}).start()
    # One that comes too late waits for the coordinator that has ended: as long as for its start.
    assert own.coordinator.wait() == 8, own.coordinator.text()
    line = own.coordinator.text().strip().splitlines()[-1]
    assert re.search(r"the tables need [\d.,]+ [GT]B \(.* optimizer state\), but", line)
    assert "embedding" in line
    assert "Traceback" not in own.coordinator.text()


def test_a_malformed_row_of_a_small_first_file_stops_nothing(cluster: ClusterMaker, tmp_path: Path) -> None:
    """It is 2% of the rows read so far, and less than a hundredth of all."""
    bad = GOOD.replace("5", "five", 1)
    (tmp_path / "a.tsv").write_text(f"{bad}\n" + f"{GOOD}\n" * 49)
    (tmp_path / "b.tsv").write_text(f"{GOOD}\n" * 950)
    data: dict[str, object] = TEXT | {"path": str(tmp_path / "*.tsv"), "shuffle_window": 0}
    own = cluster(FEW | {"data": data}).start()
    own.ended()
    counted = own.run.report.examples
    assert (counted.trained, counted.bad_rows) == (999, 1)
    # The control: of the whole input it is too much.
    own = cluster(FEW | {"data": data | {"max_bad_fraction": 0.0009}}).start()
    assert own.wait() == 3, own.coordinator.text()
    assert "1 malformed row, 0.1% of 1,000 rows" in own.coordinator.text()


@pytest.mark.parametrize("part", ["eval_path", "validation_path"])
def test_malformed_rows_that_are_held_out_are_told(cluster: ClusterMaker, tmp_path: Path, part: str) -> None:
    other = "0" + GOOD[1:]
    bad = GOOD.replace("5", "five", 1)
    (tmp_path / "train.tsv").write_text(f"{GOOD}\n{other}\n" * 100)
    held_out = tmp_path / "held-out.tsv"
    held_out.write_text(f"{GOOD}\n{other}\n{other}\n{bad}\n" * 10)
    data: dict[str, object] = {**TEXT, "path": str(tmp_path / "train.tsv"), part: str(held_out)}
    run = finished(cluster, FEW | {"data": data}, faults=(scored_on_a_thread,))
    report = run.report
    assert (report.examples.trained, report.examples.bad_rows) == (200, 0)
    if part == "eval_path":
        assert (run.evaluation.examples, run.evaluation.bad_rows) == (30, 10)
        assert report.warnings[0].startswith("10 malformed rows (25.0%) of the held-out files not scored")
        assert any(f"{held_out}:4:" in line["text"] for line in run.log("reader-0"))
    else:
        # Without [validation] the last checkpoint is scored.
        assert (report.eval, present(report.validation).count) == (None, 1)
        (event,) = (event.what for event in report.events if "malformed" in event.what)
        assert event.startswith("10 malformed rows (25.0%) of the validation part not scored; the first is")
        assert f"{held_out}:4:" in event


def test_malformed_rows_of_a_drawn_part_are_told_once(cluster: ClusterMaker, tmp_path: Path) -> None:
    other = "0" + GOOD[1:]
    (tmp_path / "all.tsv").write_text((f"{GOOD}\n{other}\n" * 200) + "one field\n")
    columns = {"y": "label"} | {f"I{at}": "ignored" for at in range(13)}
    columns |= {f"C{at}": "categorical" for at in range(26)}
    split = {"by": "fraction", "validation": 0.1, "test": 0.1}
    data: dict[str, object] = {"format": "tsv", "header": False, "columns": columns, "split": split}
    settings = FEW | {"data": data | {"path": str(tmp_path / "all.tsv"), "eval_path": []}}
    report = finished(cluster, settings, faults=(scored_on_a_thread,)).report
    assert (report.examples.bad_rows, present(report.eval).bad_rows) == (1, 0)
    assert sum("malformed" in text for text in report.warnings) == 1
    assert not any("malformed" in event.what for event in report.events)
