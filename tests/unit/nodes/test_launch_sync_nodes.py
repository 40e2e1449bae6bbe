"""How many sync nodes a job has, known alike by nodes with torch and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes import launch as sync_count
from shadowsync.nodes.launch import with_sync_nodes
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.sync_algos.registry import ALGORITHMS

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


@pytest.mark.parametrize("may_import", [True, False])
def test_a_plug_in(tmp_path: Path, may_import: bool) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    for name, nodes in (("Center", 2), ("Alone", 0)):
        job = with_sync_nodes(_job(f"{file}:{name}", nodes=2), may_import=may_import)
        assert job.sync_nodes == nodes


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


def test_one_that_ends_the_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import os\nos._exit(3)\n", encoding="utf-8")
    with pytest.raises(JobFileError, match=r"ended the process that imported it \(exit code 3\)"):
        with_sync_nodes(_job(f"{file}:Mine"), may_import=False)


def test_one_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_count, "PROBE_SECONDS", 0.01)
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    with pytest.raises(JobFileError, match="could not be imported in 10 ms"):
        with_sync_nodes(_job(f"{file}:Alone"), may_import=False)


def test_a_node_without_torch_stays_without(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    script = (
        "import sys\nfrom shadowsync.nodes.launch import with_sync_nodes\n"
        "from shadowsync.pipeline.config.job import Job\n"
        "job = Job.model_validate({'data': {'format': 'parquet', 'path': ['x']}, 'sync': {'algorithm': "
        "sys.argv[1]}})\nprint(with_sync_nodes(job, may_import=sys.argv[2] == '1').sync_nodes, "
        "'torch' in sys.modules)"
    )
    found = {}
    for may in ("0", "1"):
        command = [sys.executable, "-c", script, f"{file}:Alone", may]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[may] = done.stdout.splitlines()[-1]
    assert found == {"0": "0 False", "1": "0 True"}
