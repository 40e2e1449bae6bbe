"""Paths with bytes that are no UTF-8, and locales that have few letters: an error that names them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.report.run_folders.run_folder import create_run_folder
from shadowsync.pipeline.text.format import is_unicode

JOB = '[data]\nformat = "criteo_tsv"\npath = "x.tsv"\n'


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder whose name is Latin-1."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    (folder / "job.toml").write_text(JOB, encoding="utf-8")
    return folder


def test_letters() -> None:
    assert is_unicode("é 漢 🦀")
    assert not is_unicode(os.fsdecode(b"\xe9"))


def test_a_job_in_such_a_folder(odd: Path, tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"data\.path\.0: '.*caf\\udce9/x\.tsv' given, which is not UTF-8"):
        load_job(odd / "job.toml")
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    with pytest.raises(JobFileError, match=r"run\.directory: .* is not UTF-8"):
        create_run_folder(odd / "runs", "job")
    assert not (odd / "runs").exists()
    assert create_run_folder(tmp_path / "café", "job").is_dir()


def test_commands_name_the_path(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(odd)
    result = CliRunner().invoke(main, ["compare", "job.toml", "--algorithms", "ma"])
    assert result.exit_code == 2, result.exception
    assert "caf\\udce9" in result.stderr


@pytest.mark.parametrize("coerced", [True, False], ids=["as Python has it", "without Python's help"])
def test_a_job_with_letters_in_an_ascii_locale(tmp_path: Path, *, coerced: bool) -> None:
    """Python takes UTF-8 for LC_ALL=C; only where that is switched off it cannot."""
    folder = tmp_path / "café"
    folder.mkdir()
    (folder / "job.toml").write_text(JOB.replace("x.tsv", "é.tsv"), encoding="utf-8")
    (folder / "é.tsv").write_text("1\n", encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "PYTHON"))}
    environment |= {"LC_ALL": "C"} | ({} if coerced else {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"})
    command = Path(sys.executable).with_name("shadowsync")
    arguments = [str(command), "check", str(folder / "job.toml")]
    done = subprocess.run(arguments, env=environment, capture_output=True, check=False, timeout=60)
    if coerced:
        assert done.returncode != 1, done.stderr
    else:
        assert done.returncode == 2, done.stderr
        assert b"set LC_ALL=C.UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr
