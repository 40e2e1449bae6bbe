"""New files of an input that grows while the job trains (`data.follow`)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from ....pipeline.config.job import Job
from ....pipeline.data.files.kafka_client import KafkaRefused, is_topic
from ....pipeline.data.files.paths import file_identity, file_size_bytes, is_url, match_files, read_errors
from ....pipeline.data.files.topic import offset_spans, offsets_of
from ....pipeline.data.formats.parquet import IdClass
from ....pipeline.data.span import Span
from ....pipeline.errors import DataError, ExitCode, ShadowSyncError
from ....pipeline.input.job_input import JobInput
from ....pipeline.text.format import counted
from ....pipeline.wire.tasks import on_daemon_thread
from ..recovery.deaths import offer_spans
from ..server import CoordinatorServer
from ..state.changes import SpansAdded
from ..state.job import JobState
from ..state.outcome import Stop

log = logging.getLogger(__name__)
T = TypeVar("T")

# After so many failed searches in a row the job says so.
_TOLD_AFTER: Final = 2

Version = tuple[int | None, int]
"""Size of a file, None if unknown, and its time of change in ns, 0 if unknown."""


class NewFiles:
    """Detector of new files that are completely written. No I/O.

    A file counts once two calls in a row find it with the same size, not empty, and the same time of change.

    Args:
        known: identities of the files that are in the input already, see `file_identity`.
    """

    def __init__(self, known: Iterable[str]) -> None:
        # None until the first call.
        self._known: dict[str, Version | None] = dict.fromkeys(known)
        self._seen: dict[str, Version] = {}

    def find_changes(self, present: Mapping[str, Version]) -> tuple[list[str], list[str]]:
        """Return the new complete files, and the known files that changed.

        `present` has all files that are there now, by identity. Each new file and each change is returned
        once.
        """
        fresh = {file: version for file, version in present.items() if file not in self._known}
        whole = [
            file for file, version in fresh.items() if version[0] != 0 and self._seen.get(file) == version
        ]
        changed = [file for file, version in present.items() if self._known.get(file) not in (None, version)]
        self._known |= {file: version for file, version in present.items() if file in self._known}
        self._known |= {file: fresh[file] for file in whole}
        self._seen = fresh
        return whole, changed


@dataclass(frozen=True)
class FoundSpans:
    """Spans of new files.

    Attributes:
        files: number of the new files.
        id_classes: the classes of the ids of all files so far.
        notes: what will not be trained on, as events.
    """

    files: int
    spans: tuple[Span, ...]
    id_classes: Mapping[str, IdClass]
    notes: tuple[str, ...]


class GrowingInput:
    """The files of a job's input, looked for repeatedly.

    Used by one thread at a time.

    Args:
        spans: those of the files that are known.
        id_classes: the classes of their ids.
    """

    def __init__(self, job: Job, spans: tuple[Span, ...], id_classes: Mapping[str, IdClass]) -> None:
        self._patterns, self._kafka = job.data.path, job.data.kafka
        self._source = JobInput(job)
        self._source.ids.add_known(id_classes, "the files before")
        others = match_files([*job.data.validation_path, *job.data.eval_path], self._kafka)
        self._new = NewFiles(file_identity(path) for path in (*others, *(span.path for span in spans)))
        self._count = len(spans)
        # Of each partition of a topic, the offset after the last planned one.
        self._planned: dict[str, int] = {}
        self._shorter: set[str] = set()
        # Failed searches in a row.
        self._failures = 0
        for span in spans:
            if span.kind == "offsets":
                self._planned[span.path] = max(span.stop, self._planned.get(span.path, 0))

    def find_new_spans(self) -> FoundSpans:
        """Return the spans of new files, with the next numbers.

        Raises DataError for a file that does not fit the job, and for a topic whose brokers refuse the job.
        """
        spans: list[Span] = []
        notes: list[str] = []
        files = 0
        try:
            matching = match_files(self._patterns, self._kafka, may_be_none=True)
            paths = {file_identity(path): path for path in matching}
            for path in filter(is_topic, paths.values()):
                new, lost = self._messages(path, self._count + len(spans))
                spans += new
                notes += lost
            now = {file: _version(path) for file, path in paths.items() if not is_topic(path)}
            whole, changed = self._new.find_changes(now)
            notes += self._found_again()
        except KafkaRefused:
            raise
        except DataError as error:
            # What went away, or does not answer, may be there next time.
            log.warning("new files could not be looked for: %s", error)
            notes += self._not_found(error)
            whole, changed = [], []
        for file in changed:
            notes.append(f"{file} has changed since it was planned: rows that were added are not trained on")
        for file in whole:
            files += 1
            for span in self._source.plan_raw([paths[file]]):
                spans.append(replace(span, number=self._count + len(spans)))
        self._count += len(spans)
        return FoundSpans(files, tuple(spans), self._source.ids.by_column, tuple(notes))

    def _not_found(self, error: DataError) -> list[str]:
        self._failures += 1
        # One alone may be a file that went away between two calls.
        if self._failures != _TOLD_AFTER:
            return []
        return [f"new input cannot be looked for, and the job goes on trying: {error}"]

    def _found_again(self) -> list[str]:
        was_reported = self._failures >= _TOLD_AFTER
        self._failures = 0
        return ["new input can be looked for again"] if was_reported else []

    def _messages(self, path: str, number: int) -> tuple[list[Span], list[str]]:
        """Return the spans of a partition's new messages, and notes of lost ones."""
        first, end = offsets_of(path, self._kafka)
        start = self._planned.get(path, first)
        self._planned[path] = max(start, end)
        notes = []
        if first > start:
            notes.append(f"messages {start} to {first - 1} of {path} are gone: they are not trained on")
        if end < start and path not in self._shorter:
            self._shorter.add(path)
            why = "it was made anew, or lost messages"
            what = f"messages before {start} are not trained on; a new run reads all that it has"
            notes.append(f"{path} ends at message {end}, but was planned up to {start}: {why}; {what}")
        return offset_spans(path, number, max(start, first), end), notes


def _version(path: str) -> Version:
    with read_errors(path):
        return file_size_bytes(path), 0 if is_url(path) else os.stat(path).st_mtime_ns


class InputFollower:
    """Task that adds the spans of new files to the ledger.

    Runs on the coordinator's loop until the input is ended.
    """

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self._state: JobState = server.state

    async def run(self) -> None:
        """Look for new files until the input is ended.

        A file that does not fit stops the job.
        """
        state = self._state
        if not state.ledger.queue.follows:
            return
        try:
            queue, classes = state.ledger.queue, state.training.input.id_classes
            growing = await self._elsewhere(lambda: GrowingInput(state.job, queue.spans, classes))
            while state.ledger.queue.follows:
                new = await self._elsewhere(growing.find_new_spans)
                for note in new.notes:
                    self._server.event("coordinator", note)
                if new.spans and state.ledger.queue.follows:
                    await self._add(new)
                await asyncio.sleep(state.job.data.follow_seconds)
        except ShadowSyncError as error:
            what = "the topic" if isinstance(error, KafkaRefused) else "a new file of data.path"
            why = f"{what} cannot be trained on: {error}"
            self._server.request_stop(Stop("failed", why, ExitCode.DATA))

    async def _elsewhere(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; silent brokers delay no end of the job."""
        return await on_daemon_thread(work, "input")

    async def _add(self, new: FoundSpans) -> None:
        self._state.add_spans(new.spans, new.id_classes)
        await self._server.journal.decided(SpansAdded(new.spans, dict(new.id_classes)))
        log.info("%s more, of %s", counted(len(new.spans), "span"), counted(new.files, "new file"))
        await offer_spans(self._server)
