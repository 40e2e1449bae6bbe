"""A storage that a job cannot have is refused before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from shadowsync.nodes.coordinator.checkpoint import claim
from shadowsync.nodes.coordinator.checkpoint.claim import claim_storage, take_over_storage, with_start_of
from shadowsync.nodes.coordinator.checkpoint.resume import RestoredRun
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.checkpoint.storage import CheckpointStorage
from shadowsync.pipeline.checkpoint.store.addresses import part_target
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.sections import RunSection
from shadowsync.pipeline.errors import ExitCode, JobFileError
from shadowsync.tests.support.outside.s3_server import ENVIRONMENT, s3_url
from shadowsync.tests.support.tables.saved_shards import manifest_of_files

DATA = {"format": "parquet", "path": ["/x"]}


def job_at(url: str, seed: int = 1) -> Job:
    return Job.model_validate({"run": {"name": "clicks", "storage": url, "seed": seed}, "data": DATA})


def resumed(address: str) -> RestoredRun:
    return cast("RestoredRun", SimpleNamespace(folder=address))


def with_checkpoint(url: str) -> CheckpointStorage:
    storage = CheckpointStorage.open(url)
    prefix = storage.begin()
    target = part_target(f"{url}/{prefix}")
    storage.commit(prefix, manifest_of_files(write_tensors(target, "dense", {"t": np.zeros(3)}, {})))
    return storage


def test_a_job_without_a_storage_has_none() -> None:
    assert claim_storage(job_at(""), None) is None
    assert take_over_storage(job_at(""), None) is None


def test_the_first_job_gets_it_and_another_does_not(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/s"
    assert claim_storage(job_at(url), None) is not None
    # The same job again, which ended before its first checkpoint.
    assert claim_storage(job_at(url), None) is not None
    with pytest.raises(
        JobFileError, match="is in use by another job, of the run clicks; give the job a prefix"
    ):
        claim_storage(job_at(url, seed=2), None)


def test_one_with_checkpoints_is_only_for_who_resumes_them(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/s"
    storage = with_checkpoint(url)
    with pytest.raises(JobFileError, match=f"of another run; .* `shadowsync resume {url}`") as caught:
        claim_storage(job_at(url), None)
    assert caught.value.exit_code == ExitCode.USAGE
    with pytest.raises(JobFileError, match="has checkpoints of"):
        claim_storage(job_at(url), resumed(f"file://{tmp_path}/other/checkpoint-000001"))
    assert claim_storage(job_at(url), resumed(storage.address(1))) is not None
    owner = storage.owner()
    assert owner is not None
    assert owner.first == 2


@pytest.mark.parametrize("by_folder", [False, True])
def test_who_takes_over_finds_what_the_job_had_resumed(tmp_path: Path, by_folder: bool) -> None:
    """The last checkpoint of the storage that it resumed is its own by then."""
    url, folder = f"file://{tmp_path}/s", tmp_path / "run"
    folder.mkdir()
    folder.joinpath("job.json").write_text(job_at(url).model_dump_json())
    start = {"checkpoint": str(folder) if by_folder else url, "resume": True}
    job = Job.model_validate(job_at(url).model_dump(mode="json") | {"start": start})
    storage = with_checkpoint(url)
    with_checkpoint(url)
    # A kept one, which is not the last.
    digest = storage.read(1).digest
    claim_storage(job, resumed(storage.address(1)))
    for _ in range(2):
        pinned = with_start_of(job, digest)
        assert pinned.start.checkpoint == storage.address(1)
        assert with_start_of(pinned, digest) == pinned
        with_checkpoint(url)
    assert with_start_of(job_at(url), digest) == job_at(url)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobFileError, match=r"run\.storage, .*file.*: the storage cannot be used"):
        claim_storage(job_at(f"file://{tmp_path}/file/s"), None)


def test_a_bucket_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_url(monkeypatch) as url:
        assert claim_storage(job_at(url), None) is not None, "the control"
        bucket = url.split("/")[2]
        with pytest.raises(
            JobFileError, match=r"run\.storage, s3://nowhere.*NoSuchBucket.*check that the bucket"
        ):
            claim_storage(job_at(url.replace(bucket, "nowhere-at-all")), None)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(JobFileError, match=r"s3://.*does not answer.*AWS_ENDPOINT_URL"):
            claim_storage(job_at(url), None)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/x", "write s3://BUCKET/PREFIX"),
        ("runs/x", "write s3://BUCKET/PREFIX"),
        ("s3://bucket", "it needs a bucket and a prefix"),
        ("s3://key:secret@bucket/x", "credentials by environment variables"),
        ("s3://bucket/x?AWSAccessKeyId=1", "credentials by environment variables"),
        ("file://relative/x", "with an absolute path"),
    ],
)
def test_a_url_that_is_none_is_refused_by_the_job_file(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        job_at(url)
    assert job_at("s3://bucket/x").run.storage == "s3://bucket/x"


def test_one_that_cannot_be_opened_is_refused_with_the_variables_of_its_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(JobFileError, match="Account must be specified") as caught:
        claim_storage(job_at("az://container/run"), None)
    assert caught.value.where == "run.storage, az://container/run"
    assert "AZURE_STORAGE_ACCOUNT_KEY" in caught.value.remedy
    assert "AWS" not in caught.value.remedy


def test_a_server_that_never_answers_is_told_of_before_the_start_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("obstore")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # Of a whole start, which waits for much else.
    assert RunSection().start_timeout_seconds > 4 * claim.FIRST_SECONDS
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        # The control: one that does not listen, at a port that nobody else gets.
        with pytest.raises(JobFileError, match=f"{address}: no connection, Connection refused"):
            claim_storage(job_at("s3://bucket/run"), None)
        silent.listen()
        monkeypatch.setattr(claim, "FIRST_SECONDS", 0.1)
        with pytest.raises(JobFileError, match=f"{address}: no answer in time"):
            claim_storage(job_at("s3://bucket/run"), None)
