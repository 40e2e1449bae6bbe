"""The claim of a job to its storage, before anything starts.

Imports no torch.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from ....pipeline.checkpoint.run_checkpoints import StoredCheckpoints
from ....pipeline.checkpoint.saved import storage_of
from ....pipeline.checkpoint.storage import CheckpointStorage, Owner, split_address
from ....pipeline.checkpoint.store.addresses import root_of
from ....pipeline.checkpoint.store.contract import StorageError
from ....pipeline.config.job import Job
from ....pipeline.errors import JobFileError, ResourceError
from .resume import RestoredRun

FIRST_SECONDS: Final = 6.0
_ACCESS: Final = {
    "s3": "the bucket is there and may be written to, and the endpoint, region and credentials in the"
    " environment (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)",
    "gs": "the bucket is there and may be written to, and the credentials in the environment"
    " (GOOGLE_SERVICE_ACCOUNT, a file)",
    "az": "the container is there and may be written to, and account and key in the environment"
    " (AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY)",
    "file": "the folder may be written to",
}


def claim_storage(job: Job, restored: RestoredRun | None) -> StoredCheckpoints | None:
    """Make a job the owner of its storage; None if it has none.

    Writes to the storage, so that one that cannot be written is found now. Raises JobFileError for a storage
    that cannot be used, or that has checkpoints of another run than the one that the job resumes.
    """
    if not job.run.storage:
        return None
    try:
        # With a short limit: the user, who waits for the start, soon hears of a server that never answers.
        numbers = CheckpointStorage.open(job.run.storage, FIRST_SECONDS).numbers()
        storage = CheckpointStorage.open(job.run.storage)
        owner = Owner(job.run.name, job.digest, max(numbers, default=0) + 1)
        if restored is not None and (start := _start_in(storage, restored)) is not None:
            storage.pass_to(owner)
            return StoredCheckpoints(storage, start, keep=job.run.keep_checkpoints)
        if numbers:
            raise _taken(storage.url, storage.owner(), numbers)
        if not storage.claim(owner):
            before = storage.owner()
            if before is None or before.job_digest != job.digest:
                raise _taken(storage.url, before, numbers)
            # The same job, which ended before its first checkpoint.
            storage.pass_to(owner)
    except (StorageError, ResourceError) as error:
        raise JobFileError(
            f"the storage cannot be used: {error.what}",
            where=f"run.storage, {error.where}",
            remedy=f"check that {_ACCESS[urlsplit(job.run.storage).scheme]}",
        ) from error
    return StoredCheckpoints(storage, keep=job.run.keep_checkpoints)


def take_over_storage(job: Job, restored: RestoredRun | None) -> StoredCheckpoints | None:
    """Return the storage of a job whose coordinator died; None if it has none."""
    if not job.run.storage:
        return None
    storage = CheckpointStorage.open(job.run.storage)
    start = None if restored is None else _start_in(storage, restored)
    return StoredCheckpoints(storage, start, keep=job.run.keep_checkpoints)


def with_start_of(job: Job, resumes: str) -> Job:
    """Return a dead coordinator's job, with the checkpoint it resumed, of this digest, by its own address.

    `start.checkpoint` may lead to the job's own storage, whose last checkpoint can be the job's own by now.
    Raises as `open_saved`.
    """
    url = storage_of(job.start.checkpoint) if job.start.resume else ""
    if not url or split_address(url) != (root_of(job.run.storage), None):
        return job
    storage = CheckpointStorage.open(url)
    resumed = [number for number in storage.numbers() if storage.read(number).digest == resumes]
    if not resumed:
        return job
    start = job.start.model_copy(update={"checkpoint": storage.address(resumed[-1])})
    return job.model_copy(update={"start": start})


def _start_in(storage: CheckpointStorage, restored: RestoredRun) -> int | None:
    """Return the number of the resumed checkpoint, if it is in this storage."""
    root, number = split_address(str(restored.folder))
    return number if root == storage.url else None


def _taken(url: str, owner: Owner | None, numbers: list[int]) -> JobFileError:
    whose = f"of the run {owner.run}" if owner is not None else "of another run"
    what = f"has checkpoints {whose}" if numbers else f"is in use by another job, {whose}"
    resume = f", or continue that run with `shadowsync resume {url}`" if numbers else ", or remove this one"
    return JobFileError(what, where=f"run.storage, {url}", remedy=f"give the job a prefix of its own{resume}")
