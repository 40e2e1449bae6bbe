"""The files that a draft names are those it looked at, whatever their folders are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.data.files.paths import match_files
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.jobfile.draft.draft import draft_job
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.tests.unit.pipeline.config.jobfile.test_draft import clicks, read, write

ROWS = 2000


@pytest.mark.parametrize("source", ["data[1]", "data[1]/*.csv", "data[1]/log[2].csv"])
def test_folders_with_the_name_of_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    here = tmp_path / "run[1]"
    for folder in (here, tmp_path / "run1"):
        for inner in ("data[1]", "data1"):
            (folder / inner).mkdir(parents=True)
            write(folder / inner / "log[2].csv", clicks())
            write(folder / inner / "log2.csv", clicks())
    monkeypatch.chdir(here)
    (here / "data1" / "log2.csv").unlink()
    done = CliRunner().invoke(main, ["init", source, "--out", "job.toml"])
    assert done.exit_code == 0, done.output
    job = load_job(here / "job.toml")
    inner = "data1" if source.endswith("*.csv") else "data[1]"
    names = ["log2.csv", "log[2].csv"] if source == "data[1]" else ["log[2].csv"]
    assert match_files(job.data.path) == [str(here / inner / name) for name in names]
    tmp_path.joinpath("run[1]").rename(tmp_path / "moved")
    assert len(match_files(load_job(tmp_path / "moved" / "job.toml").data.path)) == len(names)


def test_a_draft_in_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "deep" / "jobs").mkdir(parents=True)
    (tmp_path / "jobs").symlink_to(tmp_path / "deep" / "jobs")
    write(tmp_path / "log.csv", clicks())
    write(tmp_path / "deep" / "log.csv", {**clicks(), "other": ["a", "b"] * (ROWS // 2)})
    done = CliRunner().invoke(
        main, ["init", str(tmp_path / "log.csv"), "--out", str(tmp_path / "jobs" / "job.toml")]
    )
    assert done.exit_code == 0, done.output
    assert match_files(load_job(tmp_path / "jobs" / "job.toml").data.path)[0].endswith("/../../log.csv")
    assert read(load_job(tmp_path / "jobs" / "job.toml")) == ROWS


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_test_file_is_none_of_those_to_train_on(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    log = write(tmp_path / "log.csv", clicks())
    link(tmp_path / "test.csv", log)
    with pytest.raises(DataError, match=r"\.csv: is in data\.path and in data\.eval_path"):
        draft_job(str(log), tmp_path, name="job", eval_source=str(tmp_path / "test.csv"))
