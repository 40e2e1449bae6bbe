"""What a run that was stopped says of how to go on."""

from __future__ import annotations

from pathlib import Path

from shadowsync.pipeline.checkpoint.manifest import begin, commit
from shadowsync.pipeline.report.run_folder import resume_hint
from shadowsync.tests.support.saved_shards import manifest_of_files


def test_only_a_run_with_a_checkpoint_can_be_gone_on_with(tmp_path: Path) -> None:
    assert resume_hint(tmp_path) == ""
    commit(begin(tmp_path), manifest_of_files([]))
    hint = resume_hint(tmp_path)
    assert hint.startswith("; continue from its last checkpoint with `shadowsync resume ")
    # Killed between the two renames of the next one, it is found under its other name.
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")
    assert resume_hint(tmp_path) == hint
    (tmp_path / "checkpoint.old" / "manifest.json").write_text("{")
    assert resume_hint(tmp_path) == ""
