"""How many sync nodes a job has, known alike by nodes with torch and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.launch import make_role
from shadowsync.nodes.sync_rules import with_sync_nodes
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


def _mine(tmp_path: Path, name: str) -> str:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    return f"{file}:{name}"


@pytest.mark.parametrize(("name", "nodes"), [("Center", 2), ("Alone", 0)])
def test_a_plug_in(tmp_path: Path, name: str, nodes: int) -> None:
    job = with_sync_nodes(_job(_mine(tmp_path, name), nodes=2), may_import=True)
    assert job.sync_nodes == nodes


@pytest.mark.parametrize("nodes", [0, 2])
def test_where_it_is_not_imported_the_job_file_says_it(tmp_path: Path, nodes: int) -> None:
    """Whatever the file says is taken, though there is no such file; without a word it is refused."""
    algorithm = f"{tmp_path}/absent.py:Mine"
    job = with_sync_nodes(_job(algorithm, nodes=nodes), may_import=False)
    assert job.sync_nodes == nodes
    with pytest.raises(
        JobFileError, match=r"^sync\.nodes: not given; .* does not import .*absent\.py:Mine; give"
    ):
        with_sync_nodes(_job(algorithm), may_import=False)


@pytest.mark.parametrize("role", ["trainer", "sync"])
def test_who_imports_it_checks_what_the_job_file_said(tmp_path: Path, role: str) -> None:
    for name, nodes, said in (
        ("Alone", 2, "2 given; .* no center; give 0"),
        ("Center", 0, "0 given; .*center"),
    ):
        job = with_sync_nodes(_job(_mine(tmp_path, name), nodes=nodes), may_import=False)
        with pytest.raises(JobFileError, match=rf"^sync\.nodes: {said}"):
            make_role(role, job)


@pytest.mark.parametrize(
    ("name", "said", "known_by"),
    [
        ("easdg", "'easdg' is not an algorithm; did you mean 'easgd'?", (True, False)),
        ("./absent.py:Mine", "there is no file", (True,)),
        ("json:dumps", "is a function; make it a subclass", (True,)),
    ],
)
def test_one_that_cannot_be_used(name: str, said: str, known_by: tuple[bool, ...]) -> None:
    for may_import in known_by:
        with pytest.raises(JobFileError) as caught:
            with_sync_nodes(_job(name, nodes=1), may_import=may_import)
        assert said in str(caught.value)
        assert str(caught.value).startswith("sync.algorithm: ")


def test_a_node_without_torch_stays_without(tmp_path: Path) -> None:
    """One process: first it may not import the plug-in, then it may, which is the control."""
    script = (
        "import sys\nfrom shadowsync.nodes.sync_rules import with_sync_nodes\n"
        "from shadowsync.pipeline.config.job import Job\n"
        "job = Job.model_validate({'data': {'format': 'parquet', 'path': ['x']}, 'sync': {'algorithm': "
        "sys.argv[1], 'nodes': 2}})\nfor may in (False, True):\n"
        "    print(with_sync_nodes(job, may_import=may).sync_nodes, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, _mine(tmp_path, "Alone")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line != "a module may print"]
    assert said == ["2 False", "0 True"]
