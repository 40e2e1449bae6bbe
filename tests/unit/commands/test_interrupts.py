"""Ctrl-C in a command's first second, which is an import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic_core import SchemaError
from shadowsync.cli import main
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.processes import ENOUGH_SECONDS

INTERRUPTED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize(
    "module", ["click", "shadowsync/commands/lab/simulate", "rich/console", "pydantic", "torch", "pyarrow"]
)
def test_an_interrupted_import_is_no_traceback(tmp_path: Path, module: str) -> None:
    """A module of that name in front of the others is interrupted by itself."""
    finder = f"""
import importlib.abc, importlib.util, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module.replace("/", ".")!r}:
            return importlib.util.spec_from_file_location(name, {str(tmp_path / "interrupted.py")!r})

sys.meta_path.insert(0, Interrupting())
"""
    (tmp_path / "sitecustomize.py").write_text(finder, encoding="utf-8")
    (tmp_path / "interrupted.py").write_text(INTERRUPTED, encoding="utf-8")
    (tmp_path / "job.toml").write_text('[sync]\nalgorithm = "own:Own"\n[data]\npath = "x.parquet"\n', "utf-8")
    command = [sys.executable, str(Path(sys.executable).with_name("shadowsync"))]
    done = subprocess.run(
        [*command, "compare", "job.toml", "--algorithms", "ma"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=ENOUGH_SECONDS,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == ExitCode.INTERRUPTED, done.stderr
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_that_pydantic_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*given: object) -> None:
        del given
        raise SchemaError('Error building "literal" validator:\n  KeyboardInterrupt: ')

    monkeypatch.setattr("shadowsync.pipeline.jobfile.load.load_job", load)
    result = CliRunner().invoke(main, ["compare", "job.toml", "--algorithms", "ma"])
    assert (result.exit_code, result.stderr) == (ExitCode.INTERRUPTED, "shadowsync compare: interrupted\n")


def test_a_program_keeps_its_own_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    CliRunner().invoke(main, ["run", "none.toml"])
    assert signal.getsignal(signal.SIGINT) is before
