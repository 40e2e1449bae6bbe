"""Jobs whose processes are forked, and jobs whose processes are spawned."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import JobMaker
from shadowsync.tests.support.jobs.supervised import Supervised

ROLES = {"coordinator": False, "reader": False, "trainer": True, "embedding": True, "sync": True}


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.matrix)])
def test_a_job_trains_and_only_some_of_its_nodes_have_torch(
    method: str, starter: Starter, job_file: JobMaker, tmp_path: Path
) -> None:
    path = job_file({"data": {"epochs": 10_000}, "trainer": {"count": 1}})
    process = starter.fork("run", str(path), "--quiet", environment={"SHADOWSYNC_START_METHOD": method})
    job = Supervised(process, tmp_path / "runs")
    job.wait_for_batches(5)
    for role, torch in ROLES.items():
        node = job.node(role)
        assert ("libtorch" in Path(f"/proc/{node.pid}/maps").read_text()) == torch, role
        parent = present(node.parent())
        assert parent.pid in ([process.pid] if method == "spawn" else process.servers)
    job.interrupted()


MODEL = """
import torch
from torch import nn
from layers_beside import Head


class Net(nn.Module):
    def __init__(self, dense_features, embedding_dims):
        super().__init__()
        self.out = Head(dense_features + sum(embedding_dims), 1)

    def forward(self, dense, embeddings):
        return self.out(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
"""
ALGORITHM = """
from shadowsync.sync_algos.ma import MA


class Own(MA):
    name = "own"
"""


@pytest.mark.matrix
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_no_process_takes_a_module_of_python_from_the_working_directory(
    method: str, starter: Starter, job_file: JobMaker, tmp_path: Path, validation_file: str
) -> None:
    """But a model in that folder takes the one beside it; a scoring process, too.

    Each spawned process imports for itself, so there is one of each kind.
    """
    sync = {"algorithm": "./own.py:Own", "nodes": None} if method == "forkserver" else {"algorithm": "none"}
    for name in ("queue", "select", "signal", "typing", "nodes/__init__", "numpy/__init__", "torch/__init__"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hidden by the folder')\n", encoding="utf-8")
    (tmp_path / "net.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "own.py").write_text(ALGORITHM, encoding="utf-8")
    (tmp_path / "layers_beside.py").write_text("from torch.nn import Linear as Head\n", encoding="utf-8")
    path = job_file(
        {
            "data": {"validation_path": validation_file},
            "validation": {"every_epochs": 1},
            "model": {"name": "./net.py:Net", "bottom": None, "top": None},
            "sync": sync,
            "trainer": {"count": 2 if method == "forkserver" else 1, "batch": 512},
        }
    )
    command = Path(sys.executable).with_name("shadowsync")
    run = ["run", path.name, "--quiet"]
    process = starter.spawn(*run, script=command, environment={"SHADOWSYNC_START_METHOD": method})
    assert process.wait() == 0, process.text()
    process = starter.spawn(script=tmp_path / "net.py")
    assert process.wait() == 1, "the control: a program in that folder is hindered"
    assert "hidden by the folder" in process.text()


def test_the_command_as_a_module_takes_none_either(starter: Starter, tmp_path: Path) -> None:
    for name in ("queue", "typing", "click"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hidden by the folder')\n", encoding="utf-8")
    script = tmp_path / "main.py"
    script.write_text(
        "import subprocess, sys\n"
        "sys.exit(subprocess.call([sys.executable, '-m', 'shadowsync', 'run', 'none.toml']))\n",
        encoding="utf-8",
    )
    process = starter.spawn(script=script)
    assert process.wait() == 2, process.text()
    assert "none.toml: no such job file" in process.text()
