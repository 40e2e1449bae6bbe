"""`shadowsync compare` as a user types it: interrupted in the middle, gone on with, and what it then says."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from shadowsync.lab.comparison.record import Comparison, read_record
from shadowsync.lab.comparison.variants import REFERENCE
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.run_folders.write import read_report
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Process, Starting, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES, small_job, write_job

pytestmark = pytest.mark.matrix

ALGORITHMS = "none,easgd:elastic_rate=0.3@5"
EASGD = "easgd:elastic_rate=0.3@5"
DELAY = 0.01


class Compared:
    """A comparison that was interrupted once, and then finished."""

    def __init__(self, folder: Path, first: Process, broken: Comparison, second: Process) -> None:
        self.folder, self.first, self.broken, self.second = folder, first, broken, second
        self.whole = read_record(folder)

    def report(self, label: str) -> Report:
        (run,) = self.whole.of(label)
        return read_report(self.folder / present(run.folder) / "report.json")


@pytest.fixture(scope="module")
def compared(starting: Starting, click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("compare")
    job = write_job(folder / "job.toml", small_job(click_log, folder / "runs"), {})
    with starting(folder) as starter:
        options = ["--algorithms", ALGORITHMS, "--seeds", "1", "--delay", "10ms"]
        first = starter.fork("compare", str(job), *options)
        wait_until(lambda: "1/3" in first.text() or first.poll() is not None, "a run is made")
        first.signal(signal.SIGINT)
        first.wait()
        own = folder / "runs" / "small-compare"
        broken = read_record(own)
        paper = (own / "compare.md").read_text(encoding="utf-8")
        assert "INCOMPLETE: 2 of 3 runs have not been made." in paper
        second = starter.fork("compare", "--resume", str(own))
        second.wait()
    return Compared(own, first, broken, second)


def test_an_interrupt_keeps_what_there_is(compared: Compared) -> None:
    assert compared.first.code == 130
    assert "interrupted in none, seed 1" in compared.first.text()
    assert [run.status for run in compared.broken.runs] == ["finished", "waiting", "waiting"]
    assert not compared.broken.complete


def test_going_on_makes_the_rest(compared: Compared) -> None:
    assert compared.second.code == 0, compared.second.text()
    assert "2 of 3 runs to make" in compared.second.text()
    assert compared.whole.complete
    assert [run.label for run in compared.whole.runs] == [REFERENCE, "none", EASGD]
    assert compared.whole.runs[0] == compared.broken.runs[0], "what was made is not made again"
    assert all(run.exit_code == 0 for run in compared.whole.runs)


def test_every_run_is_of_the_whole_data(compared: Compared) -> None:
    for label in (REFERENCE, "none", EASGD):
        report = compared.report(label)
        assert report.examples.distinct == EXAMPLES
        assert report.seed == 1
    assert compared.report(REFERENCE).elp == 128
    assert compared.report("none").elp == 256


def test_the_network_was_slow(compared: Compared) -> None:
    sync = compared.report(EASGD).sync
    assert (sync.algorithm, sync.mode) == ("easgd", "fixed")
    assert sync.gap_max == 5
    for label in (REFERENCE, "none", EASGD):
        network = present(compared.report(label).network)
        assert (network.means, network.delay_seconds) == ("relay", DELAY)
        assert network.relay_cpu_seconds is not None
        assert (present(network.relay_bytes) > sync.bytes * 0.9) == (label == EASGD)
    assert compared.whole.means == "relay"


def test_what_is_told(compared: Compared) -> None:
    paper = (compared.folder / "compare.md").read_text(encoding="utf-8")
    ne = present(compared.whole.of(EASGD)[0].figures)
    for text in (paper, compared.second.text()):
        assert f"{present(ne.ne):.4f}" in text
        assert "INCOMPLETE" not in text
    assert "by relay: a delay of 10 ms one way, on the links of synchronization" in paper
    assert str(compared.folder / "compare.md") in compared.second.text()
