"""`shadowsync.run` and `shadowsync.load` as a user's program calls them."""

from __future__ import annotations

import json
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.processes import ENOUGH_SECONDS, Starter, wait_until
from shadowsync.tests.support.jobs.runs import EVAL_EXAMPLES, EXAMPLES, JobMaker, RunFolder

pytestmark = pytest.mark.processes

Script = Callable[..., dict[str, Any]]


@pytest.fixture
def script(tmp_path: Path, starter: Starter) -> Script:
    """Runs a program to its end; gives the JSON that it wrote last."""

    def run(text: str, *arguments: str) -> dict[str, Any]:
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        done = starter.spawn_warm(*arguments, script=file, environment={"PYTHONWARNINGS": "error"})
        # Several jobs, perhaps, one after the other on a busy machine.
        assert done.wait(2.0 * ENOUGH_SECONDS) == 0, done.text()
        result: dict[str, Any] = json.loads(done.text().rstrip("\n").rpartition("\n")[2])
        return result

    return run


def test_a_job_from_a_script(script: Script, job_file: JobMaker) -> None:
    """On the main thread; what the script had for signals is there again; the model can be loaded."""
    path = job_file({"trainer": {"count": 1}})
    found = script(
        """
        import json, signal, sys
        import shadowsync
        assert "torch" not in sys.modules
        own = lambda number, frame: None
        signal.signal(signal.SIGTERM, own)
        seen = []
        report = shadowsync.run(sys.argv[1], overrides=["run.name=mine"], progress=seen.append)
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        model = shadowsync.load(report.folder)
        print(json.dumps({
            "run": report.run, "trained": report.examples.trained, "eval": report.eval.examples,
            "model": model.manifest.model, "tables": len(model.tables), "seen": len(seen),
        }))
        """,
        str(path),
    )
    assert found["run"] == "mine"
    assert found["trained"] == EXAMPLES
    assert found["eval"] == EVAL_EXAMPLES
    assert found["model"] == "the center (easgd)"
    assert found["tables"] == 26


@pytest.mark.matrix
def test_a_job_from_a_notebook_and_one_that_its_callback_stops(script: Script, job_file: JobMaker) -> None:
    """A loop is running on the main thread. The callback's own error comes out when the job has ended."""
    path = job_file({"data": {"epochs": 100_000}})
    found = script(
        """
        import asyncio, json, sys, tomllib
        import shadowsync

        class Enough(Exception):
            pass

        def progress(status):
            if status["progress"]["trained"]:
                raise Enough

        async def cell():
            with open(sys.argv[1], "rb") as file:
                job = tomllib.load(file)
            try:
                shadowsync.run(job, progress=progress)
            except Enough:
                return "enough"

        print(json.dumps({"ended": asyncio.run(cell())}))
        """,
        str(path),
    )
    assert found["ended"] == "enough"
    report = RunFolder(path.parent / "runs" / "latest").report
    assert report.outcome == "interrupted"
    assert report.ledger.adds_up


@pytest.mark.matrix
def test_a_job_in_a_thread_that_fails(script: Script, job_file: JobMaker, tmp_path: Path) -> None:
    path = job_file({"data": {"path": str(tmp_path / "none-*.parquet")}})
    found = script(
        """
        import json, sys, threading
        import shadowsync
        caught = []

        def work(job, **more):
            try:
                shadowsync.run(job, **more)
            except shadowsync.ShadowSyncError as error:
                caught.append([type(error).__name__, str(error), int(error.exit_code)])

        for given in ({"overrides": ["trainer.wrokers=2"]}, {}):
            thread = threading.Thread(target=work, args=[sys.argv[1]], kwargs=given)
            thread.start()
            thread.join()
        print(json.dumps({"caught": caught}))
        """,
        str(path),
    )
    (first, first_text, first_code), (second, second_text, second_code) = found["caught"]
    assert (first, first_code) == ("JobFileError", ExitCode.USAGE)
    assert "did you mean 'workers'" in first_text
    assert (second, second_code) == ("RunFailed", ExitCode.DATA)
    assert "none-*.parquet" in second_text


@pytest.mark.matrix
def test_a_table_in_memory_is_trained_by_two_algorithms_and_the_runs_are_listed(script: Script) -> None:
    """A script's own rows; each comparison's runs are in a folder of their own."""
    found = script(
        """
        import json
        import numpy as np
        import polars as pl
        import shadowsync

        rng = np.random.default_rng(0)
        user = rng.integers(0, 20, 4_000)
        clicked = (rng.random(4_000) < 0.2 + 0.6 * (user % 2)).astype(int)
        rows = pl.DataFrame({"user": user, "price": rng.random(4_000), "clicked": clicked})
        columns = {"user": "categorical", "price": "dense", "clicked": "label"}
        job = {
            "data": {"path": rows[:3_000], "eval_path": rows[3_000:], "columns": columns},
            "model": {"name": "dlrm", "embedding_dim": 4, "bottom": [8, 4], "top": [8]},
            "trainer": {"batch": 32, "count": 2},
        }
        made = shadowsync.compare(job, ["ma", "ma@5"], seeds=1, quiet=True)
        runs = shadowsync.list_runs(made.folder / "runs", sort="name")
        print(json.dumps({
            "code": made.exit_code, "labels": [row.label for row in made.rows], "html": made._repr_html_(),
            "trained": [row["examples"] for row in runs.rows()], "differ": runs.differing,
            "ne": [row.ne for row in made.rows],
        }))
        """
    )
    assert found["code"] == 0
    assert found["labels"] == ["one trainer", "ma", "ma@5"]
    assert found["html"].count("<tr>") == 4
    assert found["trained"] == [3_000] * 3
    assert {"sync.algorithm", "sync.mode", "trainer.count"} <= set(found["differ"])
    # What a user's parity says of the label is learnt.
    assert all(0.5 < ne < 0.95 for ne in found["ne"])


@pytest.mark.matrix
def test_an_interrupt_of_a_script(starter: Starter, job_file: JobMaker, tmp_path: Path) -> None:
    """Ctrl-C ends the job with a checkpoint and a report, which the error has."""
    path = job_file({"data": {"epochs": 100_000}})
    file = tmp_path / "script.py"
    file.write_text(
        "import sys, shadowsync\n"
        "try:\n"
        "    shadowsync.run(sys.argv[1])\n"
        "except shadowsync.RunFailed as error:\n"
        "    print(int(error.exit_code), error.report.outcome, error.report.folder)\n",
        encoding="utf-8",
    )
    process, run = starter.spawn_warm(str(path), script=file), RunFolder(tmp_path / "runs" / "latest")
    wait_until(lambda: run.batches() >= 20 or process.poll() is not None, "it trains")
    process.signal(signal.SIGINT)
    assert process.wait() == 0, process.text()
    code, outcome, folder = process.text().rpartition("\n")[0].rpartition("\n")[2].split()
    assert (int(code), outcome) == (ExitCode.INTERRUPTED, "interrupted")
    assert (Path(folder) / "checkpoint" / "manifest.json").exists()
