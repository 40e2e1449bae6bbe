"""`shadowsync scale`: another number of readers and trainers while a job trains."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.nodes.clients.requests import parse_counts, scale_job
from shadowsync.nodes.clients.watched_job import address_of
from shadowsync.pipeline.errors import ClusterError, ExitCode, JobFileError
from shadowsync.tests.faults.conftest import ENDLESS
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, slowed_at
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.jobs.supervised import Supervise

pytestmark = pytest.mark.no_kill

TWO: dict[str, dict[str, Any]] = {"data": ENDLESS, "trainer": {"count": 2}}


def _scale(address: str, **counts: int) -> None:
    asyncio.run(scale_job(address, counts))


@pytest.mark.parametrize("algorithm", ["easgd", pytest.param("bmuf", marks=pytest.mark.matrix)])
def test_up_and_down_under_the_supervisor(
    supervise: Supervise, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    nodes = {"nodes": 1} if algorithm == "easgd" else {}
    job = supervise(TWO | {"sync": {"algorithm": algorithm, **nodes}})
    job.wait_for_batches(40)
    address = address_of(job.run.folder, None)
    _scale(address, trainer=4, reader=2)
    said = capsys.readouterr().out
    assert said == (
        "trainer-2 joined, trainer-3 joined; the job has 4 trainers\nreader-1 joined; the job has 2 readers\n"
    )
    assert len(job.nodes("trainer")) == 4
    for name in ("trainer-2", "trainer-3"):
        of_it = f"SELECT count(*) FROM batches WHERE trainer = '{name}'"
        wait_until(lambda of_it=of_it: job.run.query(of_it)[0][0] > 0, f"{name} trains")  # type: ignore[misc]
    _scale(address, trainer=1, reader=1)
    said = capsys.readouterr().out
    assert said.startswith("trainer-3 left, trainer-2 left, trainer-1 left; the job has 1 trainer\n")
    assert re.search(r"reader-1 left; the job has 1 reader\n$", said)
    # As many as there are.
    _scale(address, trainer=1)
    assert capsys.readouterr().out == "nothing to do; the job has 1 trainer\n"
    job.wait_for_batches(job.run.batches() + 40)
    report = job.interrupted()
    # Nobody died: those that left were told to, and no other was started for them.
    said_of = [event.what for event in report.events if event.node.startswith(("trainer", "reader"))]
    assert not any("died" in what for what in said_of), said_of


@pytest.mark.matrix
def test_without_a_supervisor_nodes_leave_and_none_is_started(
    in_process: ClusterMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    own, slowed = slowed_at(30, in_process, {"trainer": {"count": 3}})
    with pytest.raises(ClusterError, match="no supervisor") as refused:
        _scale(own.endpoint, trainer=4)
    assert "shadowsync trainer RUN/job.json --join" in refused.value.remedy
    _scale(own.endpoint, trainer=2)
    assert capsys.readouterr().out == "trainer-2 left; the job has 2 trainers\n"
    assert own.node("trainer-2").wait() == ExitCode.OK
    slowed.release()
    own.ended(distinct=EXAMPLES)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        (
            {},
            [
                ({"embedding": 2}, "a running job keeps its embedding nodes"),
                ({"sync": 2}, "a running job keeps its sync nodes"),
                ({"trainer": 0}, "trainer=0 given; the job needs one"),
            ],
        ),
        ({"trainer": {"count": 1}}, [({"trainer": 2}, "the job cannot take another trainer now")]),
    ],
    ids=["any job", "one trainer"],
)
def test_what_cannot_be_is_refused_and_the_job_goes_on(
    in_process: ClusterMaker, changes: dict[str, Any], refused: list[tuple[dict[str, int], str]]
) -> None:
    own, slowed = slowed_at(20, in_process, changes)
    for counts, what in refused:
        with pytest.raises(ClusterError, match=what):
            _scale(own.endpoint, **counts)
    slowed.release()
    own.ended()


@pytest.mark.parametrize(
    "text", ["trainer", "trainer=", "trainer=-1", "trainer=x", "trainer=\N{SUPERSCRIPT TWO}"]
)
def test_a_count_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(JobFileError, match="a role and a number are needed"):
        parse_counts([text])


def test_the_command_line(tmp_path: Any) -> None:
    said = CliRunner().invoke(main, ["scale", str(tmp_path), "trainer=2"])
    assert said.exit_code == ExitCode.CLUSTER
    assert "is not the folder of a run that has begun" in said.output
    said = CliRunner().invoke(main, ["scale", str(tmp_path)])
    assert said.exit_code == ExitCode.USAGE
    assert "no number of nodes given" in said.output
