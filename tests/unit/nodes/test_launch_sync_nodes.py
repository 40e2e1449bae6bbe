"""How many sync nodes a job has, known alike by nodes with torch and without."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes import launch
from shadowsync.nodes.launch import with_sync_nodes
from shadowsync.nodes.runtime.process import PROBE
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.sync_algos.catalog.registry import ALGORITHMS

MINE = """
from shadowsync.sync_algos.base import ModelOrigin
from shadowsync.sync_algos.easgd import EASGD
from shadowsync.sync_algos.none import NoSync
print("a module may print")
class Center(EASGD): pass
class Alone(NoSync): pass
"""


def _job(algorithm: str, **sync: Any) -> Job:
    data = {"format": "parquet", "path": ["x"]}
    return Job.model_validate({"data": data, "sync": {"algorithm": algorithm, **sync}})


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_built_in_ones(name: str) -> None:
    job = with_sync_nodes(_job(name, nodes=3), may_import=False)
    assert job.expected["sync"] == (3 if ALGORITHMS[name].needs_center else 0)
    assert with_sync_nodes(job, may_import=False) == job
    assert job.digest == with_sync_nodes(_job(name, nodes=3), may_import=True).digest


def test_only_the_number_changes() -> None:
    job = _job("ma", nodes=2, every=7, options={"weighted": True})
    assert with_sync_nodes(job, may_import=False) == _job("ma", nodes=0, every=7, options={"weighted": True})


@pytest.fixture
def probe_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe in this process: a new one imports torch first. What it says is on its way the same."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        option, module, name = command[-3:]
        assert (option, module) == ("-m", PROBE)
        with redirect_stdout(io.StringIO()) as written, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [module, name])
            # As a copy, so that the module that others may hold stays.
            patch.delitem(sys.modules, module, raising=False)
            runpy.run_module(module, run_name="__main__")
        return subprocess.CompletedProcess(command, 0, written.getvalue(), "")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("name", "nodes", "may_import"),
    # The fourth is in `test_a_node_without_torch_stays_without`.
    [("Center", 2, True), ("Alone", 0, True), ("Center", 2, False)],
)
def test_a_plug_in(tmp_path: Path, name: str, nodes: int, may_import: bool) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    job = with_sync_nodes(_job(f"{file}:{name}", nodes=2), may_import=may_import)
    assert job.sync_nodes == nodes


@pytest.mark.usefixtures("probe_here")
@pytest.mark.parametrize("may_import", [True, False])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("easdg", "sync.algorithm: 'easdg' is not an algorithm; did you mean 'easgd'?"),
        ("./absent.py:Mine", "there is no file"),
        ("json:dumps", "is a function; make it a subclass"),
    ],
)
def test_one_that_cannot_be_used(name: str, said: str, may_import: bool) -> None:
    with pytest.raises(JobFileError) as caught:
        with_sync_nodes(_job(name), may_import=may_import)
    assert said in str(caught.value)
    assert str(caught.value).startswith("sync.algorithm: ")


def test_one_that_cannot_be_used_in_a_process_of_its_own() -> None:
    """The control of the test above: the real probe says the same."""
    with pytest.raises(JobFileError, match=r"^sync\.algorithm: .*is a function; make it a subclass"):
        with_sync_nodes(_job("json:dumps"), may_import=False)


def test_one_that_ends_the_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import os\nos._exit(3)\n", encoding="utf-8")
    with pytest.raises(JobFileError, match=r"ended the process that imported it \(exit code 3\)"):
        with_sync_nodes(_job(f"{file}:Mine"), may_import=False)


def test_one_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PROBE_SECONDS", 0.01)
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    with pytest.raises(JobFileError, match="could not be imported in 10 ms"):
        with_sync_nodes(_job(f"{file}:Alone"), may_import=False)


def test_a_node_without_torch_stays_without(tmp_path: Path) -> None:
    """One process: first it may not import the plug-in, then it may, which is the control."""
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    script = (
        "import sys\nfrom shadowsync.nodes.launch import with_sync_nodes\n"
        "from shadowsync.pipeline.config.job import Job\n"
        "job = Job.model_validate({'data': {'format': 'parquet', 'path': ['x']}, 'sync': {'algorithm': "
        "sys.argv[1], 'nodes': 2}})\nfor may in (False, True):\n"
        "    print(with_sync_nodes(job, may_import=may).sync_nodes, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, f"{file}:Alone"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line != "a module may print"]
    assert said == ["0 False", "0 True"]
