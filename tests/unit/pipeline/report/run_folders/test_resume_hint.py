"""What a run that was stopped says of how to go on."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from shadowsync.pipeline.checkpoint.manifest import begin, commit
from shadowsync.pipeline.checkpoint.store.contract import StorageError
from shadowsync.pipeline.report.run_folders import run_folder
from shadowsync.pipeline.report.run_folders.run_folder import resume_hint
from shadowsync.tests.support.outside.s3_server import ENVIRONMENT
from shadowsync.tests.support.tables.saved_shards import manifest_of_files


def test_only_a_run_with_a_checkpoint_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resume_hint(tmp_path) == ""
    commit(begin(tmp_path), manifest_of_files([]))
    hint = resume_hint(tmp_path)
    assert hint.startswith("; continue from its last checkpoint with `shadowsync resume ")
    elsewhere = resume_hint(tmp_path, supervised=False)
    assert "shadowsync resume" not in elsewhere, "it would start the nodes on one machine"
    assert elsewhere.endswith("`--set start.checkpoint=" + str(tmp_path) + " --set start.resume=true`")
    monkeypatch.chdir(tmp_path.parent)
    assert resume_hint(tmp_path).endswith(f" {tmp_path.name}`")
    assert resume_hint(tmp_path, supervised=False) == elsewhere, "they are started from another folder"
    monkeypatch.undo()
    # Killed between the two renames of the next one, it is found under its other name.
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")
    assert resume_hint(tmp_path) == hint
    (tmp_path / "checkpoint.old" / "manifest.json").write_text("{")
    assert resume_hint(tmp_path) == ""


def test_what_the_checkpoint_holds_decides_what_to_do_with_it(tmp_path: Path) -> None:
    """And not what was trained, of which the checkpoint may lack some."""
    for complete in (True, False):
        commit(begin(tmp_path), manifest_of_files([]).model_copy(update={"ledger": {"complete": complete}}))
        command = "eval" if complete else "resume"
        assert f"`shadowsync {command} {tmp_path}`" in resume_hint(tmp_path)


def test_of_a_storage_that_does_not_answer_it_says_what_to_do_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/storage"
    assert resume_hint(tmp_path, url) == "", "the control: it answers, and there is none"

    def silent(location: str) -> None:
        raise StorageError("does not answer", where=location)

    monkeypatch.setattr(run_folder, "open_saved", silent)
    assert resume_hint(tmp_path, url) == (
        "; once the storage answers, continue from its last checkpoint, if it has one,"
        f" with `shadowsync resume {url}`"
    )


def test_the_folder_of_a_killed_run_leads_to_its_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing listens there: that is not a run without a checkpoint."""
    pytest.importorskip("obstore")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(run_folder, "_STORAGE_SECONDS", 0.1)
        (tmp_path / "job.json").write_text(json.dumps({"run": {"storage": "s3://bucket/run"}}))
        assert resume_hint(tmp_path).startswith(
            "; once the storage answers, continue from its last checkpoint, if it has one,"
        )
    (tmp_path / "job.json").write_text(json.dumps({"run": {}}))
    assert resume_hint(tmp_path) == "", "the control: a run without a storage"
