"""Which code of a saved job this user has named on this machine."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.jobfile.named_code import code_of, is_in_run_folder, note_named_code, require_trusted


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the notes in a state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "shadowsync" / "named-code"


def allowed(name: str, *, trust: bool = False) -> bool:
    """Whether a run that names it as its model may be opened."""
    try:
        require_trusted({"model.name": name}, "runs/job", trust=trust)
    except JobFileError:
        return False
    return True


def test_what_was_named_here_needs_no_trust(notes: Path, tmp_path: Path) -> None:
    mine, module = f"{tmp_path}/mine é.py:Net", "pack.age:Net"
    assert not allowed(mine)
    assert not allowed(module)
    note_named_code([mine, module])
    assert allowed(mine)
    assert allowed(f"{tmp_path}/x/../mine é.py:Other")
    assert allowed(module)
    assert not allowed(f"{tmp_path}/mine.py:Net")
    assert not allowed("pack:Net")
    assert notes.stat().st_mode & 0o777 == 0o600


def test_what_nobody_named_is_said_and_can_be_trusted(notes: Path, tmp_path: Path) -> None:
    del notes
    with pytest.raises(
        JobFileError, match=rf"runs/job: its model.name executes the file {tmp_path}/a.py \(Net\).*--trust"
    ):
        require_trusted({"model.name": f"{tmp_path}/a.py:Net"}, "runs/job", trust=False)
    with pytest.raises(JobFileError, match=r"its sync.algorithm executes the Python module a\.b \(Algo\)"):
        require_trusted({"sync.algorithm": "a.b:Algo"}, "runs/job", trust=False)
    assert allowed(f"{tmp_path}/a.py:Net", trust=True)
    assert not allowed(f"{tmp_path}/a.py:Net")


def test_the_code_of_a_job(tmp_path: Path) -> None:
    job_file = tmp_path / "job.toml"
    job_file.write_text('[data]\nformat = "criteo_tsv"\npath = "x"\n', encoding="utf-8")
    assert code_of(load_job(job_file)) == {}
    own = ["model.name=a.b:Net", "sync.algorithm=./x.py:Algo"]
    assert code_of(load_job(job_file, own)).keys() == {"model.name", "sync.algorithm"}
    assert code_of(load_job(job_file, own), "model.name") == {"model.name": "a.b:Net"}


def test_notes_that_others_can_write_count_for_nothing(notes: Path) -> None:
    note_named_code(["a:Net"])
    notes.chmod(0o622)
    assert not allowed("a:Net")
    notes.chmod(0o600)
    assert allowed("a:Net")


def test_a_damaged_line_costs_only_itself(notes: Path) -> None:
    note_named_code(["a:Net", "b:Net"])
    notes.write_bytes(notes.read_bytes().replace(b'"a"', b'"\xff') + b'"c')
    assert [allowed(f"{name}:Net") for name in "abc"] == [False, True, False]


def test_notes_of_several_processes_are_all_kept(notes: Path) -> None:
    threads = [threading.Thread(target=note_named_code, args=([f"m{n}:Net"],)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(allowed(f"m{n}:Net") for n in range(20))
    note_named_code(["m3:Net"])
    assert len(notes.read_text("utf-8").splitlines()) == 20


def test_training_goes_on_without_a_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        note_named_code(["a:Net"])
    assert "will need --trust" in caplog.text
    assert not allowed("a:Net")


def test_a_job_in_a_run_folder(tmp_path: Path) -> None:
    assert not is_in_run_folder(tmp_path / "job.json")
    (tmp_path / "checkpoint").mkdir()
    assert is_in_run_folder(tmp_path / "job.json")
