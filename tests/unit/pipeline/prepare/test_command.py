"""`shadowsync prepare` as it is called: what --out may be, and what --verify compares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner, Result
from shadowsync.cli import main
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.data.prepared import csv_job, csv_lines, on_folder
from shadowsync.tests.support.jobs.runs import write_job

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the command in a folder with a job and its source."""
    monkeypatch.chdir(tmp_path)
    Path("all.csv").write_text(csv_lines(500))
    write_job(tmp_path / "job.toml", csv_job("all.csv"), {})

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["prepare", *arguments])

    return call


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty place in memory."""
    system = fsspec.filesystem("memory")
    yield f"memory://{tmp_path.name}"
    system.rm(f"/{tmp_path.name}", recursive=True)


def _copy(folder: Path, url: str) -> None:
    for path in folder.iterdir():
        with fsspec.open(f"{url}/{path.name}", "wb") as file:
            file.write(path.read_bytes())


def test_a_folder_is_read_and_verified_at_its_url(call: Call, bucket: str, tmp_path: Path) -> None:
    assert call("job.toml", "--out", "folder", "--quiet").exit_code == 0
    _copy(Path("folder"), bucket)
    done = call("job.toml", "--out", bucket, "--verify")
    assert (done.exit_code, done.stdout) == (0, f"1 part, 500 rows, all checksums match: {bucket}\n")
    assert on_folder(csv_job(tmp_path / "all.csv"), bucket).data.prepared == bucket
    with fsspec.open(f"{bucket}/train-00000.parquet", "wb") as file:
        file.write(b"other")
    assert "has 5 bytes; its manifest states" in call("job.toml", "--out", bucket, "--verify").stderr


def test_ids_that_share_rows_are_said(call: Call) -> None:
    done = call("job.toml", "--out", "folder", "--quiet")
    user, tags = json.loads(Path("folder/statistics.json").read_text())["ids"]
    assert user["expected_shared"] > tags["expected_shared"] > 0
    shares = [f"{100 * one['expected_shared']:.1f}% of {one['name']} (300 rows)" for one in (user, tags)]
    assert f"different ids expected to share rows: {', '.join(shares)}\n" in done.stdout
    again = call("job.toml", "--out", "folder", "--quiet")
    assert shares[0] in again.stdout, "also of a folder that exists already"


def test_where_no_ids_can_share_rows_nothing_is_said(call: Call) -> None:
    grow = [f'tables.{name}.kind="growing"' for name in ("user", "tags")]
    done = call("job.toml", "--out", "folder", "--quiet", "--set", grow[0], "--set", grow[1])
    assert done.exit_code == 0, done.output
    assert "share rows" not in done.stdout


def test_a_url_is_not_written_to(call: Call, tmp_path: Path) -> None:
    done = call("job.toml", "--out", "s3://bucket/clicks")
    assert done.exit_code == ExitCode.USAGE
    assert "--out s3://bucket/clicks: a prepared folder cannot be written to a URL" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.csv", "job.toml"]


def test_a_name_with_a_colon_is_a_name(call: Call) -> None:
    assert call("job.toml", "--out", "clicks:v1", "--quiet").exit_code == 0
    done = call("job.toml", "--out", "clicks:v1", "--verify")
    assert done.stdout == "1 part, 500 rows, all checksums match: clicks:v1\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["absent.toml", "--verify"], ExitCode.USAGE, "absent.toml: no such job file"),
        (
            ["job.toml", "--verify", "--force"],
            ExitCode.USAGE,
            "--verify and --force exclude each other; give one",
        ),
        (["job.toml", "--verify", "--set", "model.table_rows=9"], ExitCode.USAGE, "table user has 9 rows"),
    ],
)
def test_verify_is_of_a_job_and_writes_nothing(
    call: Call, arguments: list[str], code: int, words: str
) -> None:
    assert call("job.toml", "--out", "folder", "--quiet").exit_code == 0
    before = json.loads(Path("folder/manifest.json").read_bytes())
    done = call(*arguments, "--out", "folder")
    assert done.exit_code == code
    assert words in done.stderr
    assert json.loads(Path("folder/manifest.json").read_bytes()) == before


def test_verify_compares_which_tables_grow(call: Call) -> None:
    grows = ("--set", 'tables.user.kind="growing"')
    assert call("job.toml", "--out", "out", "--quiet", *grows).exit_code == 0
    done = call("job.toml", "--out", "out", "--verify", *grows)
    assert (done.exit_code, done.stdout) == (0, "1 part, 500 rows, all checksums match: out\n")
    done = call("job.toml", "--out", "out", "--verify")
    assert done.exit_code == ExitCode.USAGE
    assert "table user is hashed, in the folder growing" in done.output
