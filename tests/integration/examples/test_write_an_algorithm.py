"""docs/write-an-algorithm.md: every block of code on it is run, in order, as a reader would run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import shadowsync
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.sync_algos.catalog.registry import make_algorithm
from shadowsync.tests.support.page_blocks import blocks_of

ROOT = Path(shadowsync.__file__).resolve().parent
PAGE = ROOT / "docs" / "write-an-algorithm.md"
EXAMPLE = ROOT / "examples" / "custom_algorithm"

if not PAGE.exists():
    pytest.skip("an installed package has no docs beside it", allow_module_level=True)


BLOCKS = blocks_of(PAGE)


def _run(command: list[str], folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment |= {"PATH": tools, "PYTHONPATH": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        command, input=text, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page in it, and the example as it is in the repository."""
    made = tmp_path_factory.mktemp("reader")
    for block in BLOCKS:
        if block.file:
            (made / block.file).write_text(block.text, encoding="utf-8")
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".*")
    shutil.copytree(EXAMPLE, made / "examples" / "custom_algorithm", ignore=skipped)
    return made


def test_the_page_has_blocks_of_known_kinds_only() -> None:
    """So that the tests below run all of them, and there are as many as fences."""
    kinds = [(block.language, block.file) for block in BLOCKS]
    assert kinds == [("python", "fedadagrad.py"), *[("python", "")] * 3, ("toml", "job.toml"), ("bash", "")]
    assert PAGE.read_text("utf-8").count("```") == 2 * len(BLOCKS)


def test_the_files_of_the_page_are_those_of_the_example() -> None:
    (block,) = [block for block in BLOCKS if block.file == "fedadagrad.py"]
    assert block.text.rstrip() == (EXAMPLE / "fedadagrad.py").read_text("utf-8").rstrip()
    entry = re.search(r"^    (\[project.entry-points.*\])\n    (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert entry
    assert "\n".join(entry.groups()) in (EXAMPLE / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize("number", [0, *(pytest.param(one, marks=pytest.mark.matrix) for one in (1, 2))])
def test_python_blocks_run(folder: Path, number: int) -> None:
    scripts = [block for block in BLOCKS if block.language == "python" and not block.file]
    done = _run([sys.executable, "-W", "error", "-"], folder, scripts[number].text)
    assert done.returncode == 0, done.stderr
    if number == 0:
        broken = scripts[number].text.replace("FedAdagrad(", "FedAdagrad(0, ")
        assert _run([sys.executable, "-"], folder, broken).returncode == 1, "the control"


def test_the_job_file_finds_the_class(folder: Path) -> None:
    job = load_job(folder / "job.toml")
    assert job.sync.algorithm == f"{folder / 'fedadagrad.py'}:FedAdagrad"
    algorithm = make_algorithm(job.sync.algorithm, job.sync.options)
    assert type(algorithm).__name__ == "FedAdagrad"
    assert algorithm.describe() == {"outer_lr": 0.5, "epsilon": 0.001}


@pytest.mark.matrix
def test_the_commands_install_list_and_test_it(folder: Path) -> None:
    (block,) = [block for block in BLOCKS if block.language == "bash"]
    done = _run(["bash", "-e", "-c", block.text], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^fedadagrad +an outer Adagrad step", done.stdout, re.M)
    assert "from the package shadowsync-fedadagrad (fedadagrad:FedAdagrad)" in done.stdout
    assert "sync.options.outer_lr = 0.1" in done.stdout
    assert re.search(r"^6 passed", done.stdout, re.M)
    _check_installed(folder)


def _check_installed(folder: Path) -> None:
    """By its name, in a process that has it and in one that hasn't; and for nodes without torch."""
    script = (
        "from shadowsync.sync_algos.catalog.registry import make_algorithm as make; "
        "print(make('fedadagrad', {}).describe())"
    )
    assert _run(["env", "PYTHONPATH=plugins", sys.executable, "-c", script], folder).stdout.strip() == (
        "{'outer_lr': 0.1, 'epsilon': 0.001}"
    )
    assert (
        "'fedadagrad' is not an algorithm; give one of bmuf"
        in _run([sys.executable, "-c", script], folder).stderr
    )
    known = "import sys; from shadowsync.sync_algos.catalog.names import require_known as known; "
    known += "known('fedadagrad'); print('torch' in sys.modules)"
    response = _run(["env", "PYTHONPATH=plugins", sys.executable, "-c", known], folder).stdout
    assert response.strip() == "False"
