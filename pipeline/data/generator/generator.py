"""Generator of Criteo-shaped click logs with a planted teacher, of any size.

A row has a label, 13 counts I1..I13, and 26 ids C1..C26 of 8 hexadecimal digits. columns.py draws the counts
and ids, teacher.py decides what is a click. Rows are streamed to disk.

Row i of a part is a pure function of (seed, part, i): more rows, several files or other chunks change no row.
The parts are disjoint streams of one teacher.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np

from ...atomic_file import sync_file
from ...errors import DataError, JobFileError, ResourceError
from .columns import BLOCK_EXAMPLES, ClickColumns, draw_block
from .manifest import (
    GENERATOR_VERSION,
    MANIFEST_NAME,
    DataFormat,
    LogCompression,
    LogFile,
    LogManifest,
    PartManifest,
    PartTally,
    read_manifest,
    read_manifest_file,
    write_manifest,
)
from .teacher import LARGEST_CLICK_RATE, LEAST_CLICK_RATE, MEAN_LABEL, Teacher
from .writer import TableMaker, data_file_suffix, open_writer

__all__ = ["LogManifest", "generate_log", "read_manifest"]

CHUNK_EXAMPLES: Final = 8 * BLOCK_EXAMPLES
_DATA_FILE: Final = re.compile(r"\.?(train|eval)-\d{3,}\.(tsv(\.gz|\.zst)?|parquet)(\.partial)?")
_LARGEST_SEED: Final = 2**63 - 1

ProgressCallback = Callable[[int, int], None]


def generate_log(
    directory: str | Path,
    *,
    examples: int,
    eval_examples: int,
    seed: int,
    data_format: DataFormat,
    files: int = 1,
    compression: LogCompression = "none",
    click_rate: float = MEAN_LABEL,
    reuse: bool = False,
    progress: ProgressCallback | None = None,
) -> LogManifest:
    """Write the data files of a log and, last, log.json.

    The files are train-000... and eval-000...; log.json is written whole or not at all.

    Args:
        directory: made if it is missing. An older generated log in it is removed first.
        examples, eval_examples: rows of either part; `eval_examples` may be 0.
        seed: 0 to 2**63 - 1. The same seed gives the same bytes.
        files: number of files of the train part; the eval part is one file.
        compression: compression of the whole file for text, inside the file for Parquet.
        click_rate: mean of the true probabilities, LEAST_CLICK_RATE to LARGEST_CLICK_RATE.
        reuse: if log.json states the same request and its files have the stated sizes, write nothing and
            return its manifest with `reused` set.
        progress: called in this thread with rows done and rows in all, after each chunk of at most
            `CHUNK_EXAMPLES` rows.

    Returns:
        The manifest. Any thread may call; two calls at once need two directories.

    Raises:
        JobFileError: an argument out of range.
        DataError: the folder cannot be written, or has files of these names that its log.json does not list.
        ResourceError: the disk is full.
        After an error or an interrupt the folder has neither log.json nor files that this call began.
    """
    request = _LogRequest(
        Path(directory), examples, eval_examples, seed, data_format, files, compression, click_rate
    )
    manifest = read_manifest_file(request.directory / MANIFEST_NAME) if reuse else None
    if manifest and request.is_satisfied_by(manifest):
        return manifest.model_copy(update={"reused": True})
    try:
        request.directory.mkdir(parents=True, exist_ok=True)
        _remove_older(request.directory)
        return _Generation(request, progress).run()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(
                "the disk is full",
                where=str(request.directory),
                remedy="free space, or ask for fewer examples",
            ) from None
        raise DataError(
            f"cannot be written ({error.strerror or error})",
            where=str(request.directory),
            remedy="choose another directory",
        ) from None


def draw_rows(
    seed: int, part: Literal["train", "eval"], rows: range, chunk_examples: int = CHUNK_EXAMPLES
) -> Iterator[ClickColumns]:
    """Yield the rows of a range in order, in chunks of `chunk_examples`.

    The last chunk may be shorter.
    """
    for first in range(rows.start, rows.stop, chunk_examples):
        stop = min(first + chunk_examples, rows.stop)
        pieces = []
        for block in range(first // BLOCK_EXAMPLES, -(-stop // BLOCK_EXAMPLES)):
            start = block * BLOCK_EXAMPLES
            drawn = draw_block(seed, part, block)
            cut = slice(max(first - start, 0), min(stop - start, BLOCK_EXAMPLES))
            pieces.append((drawn.counts[:, cut], drawn.ranks[:, cut], drawn.chance[cut]))
        counts, ranks, chance = zip(*pieces, strict=True)
        yield ClickColumns(np.hstack(counts), np.hstack(ranks), np.hstack(chance))


@dataclass(frozen=True)
class _LogRequest:
    """The checked arguments of `generate_log`."""

    directory: Path
    examples: int
    eval_examples: int
    seed: int
    data_format: DataFormat
    files: int
    compression: LogCompression
    click_rate: float

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("examples", self.examples, 1, _LARGEST_SEED),
            ("eval_examples", self.eval_examples, 0, _LARGEST_SEED),
            ("seed", self.seed, 0, _LARGEST_SEED),
            ("files", self.files, 1, self.examples),
            ("click_rate", self.click_rate, LEAST_CLICK_RATE, LARGEST_CLICK_RATE),
        ):
            if not least <= value <= most:
                raise JobFileError(f"{value} given", where=name, remedy=f"give {least} to {most}")
        for name, word, known in (
            ("data_format", self.data_format, get_args(DataFormat)),
            ("compression", self.compression, get_args(LogCompression)),
        ):
            if word not in known:
                raise JobFileError(f"{word!r} given", where=name, remedy=f"give one of {', '.join(known)}")

    def names(self, part: Literal["train", "eval"]) -> list[tuple[str, range]]:
        """Return the files of a part and the rows of each.

        The eval part is one file, or none without rows.
        """
        total, files = (self.examples, self.files) if part == "train" else (self.eval_examples, 1)
        suffix = data_file_suffix(self.data_format, self.compression)
        return [
            (f"{part}-{file:03d}{suffix}", range(total * file // files, total * (file + 1) // files))
            for file in range(files if total else 0)
        ]

    def is_satisfied_by(self, manifest: LogManifest) -> bool:
        """Return whether the manifest and its files' sizes fit this request."""
        stated = (*_settings(manifest), manifest.version)
        if stated != (*_settings(self), GENERATOR_VERSION):
            return False
        for part, rows in ((manifest.train, self.names("train")), (manifest.eval, self.names("eval"))):
            if [(file.name, file.examples) for file in part.files] != [(n, len(r)) for n, r in rows]:
                return False
            if not all(_has_size(self.directory / file.name, file.bytes) for file in part.files):
                return False
        return True


class _Generation:
    """Generate the files of one request."""

    def __init__(self, request: _LogRequest, progress: ProgressCallback | None) -> None:
        self._request, self._progress = request, progress
        self._teacher = Teacher(request.seed, request.click_rate)
        self._tables = TableMaker(request.seed)
        self._done = 0

    def run(self) -> LogManifest:
        request = self._request
        started: list[Path] = []
        try:
            train, evaluation = self._part("train", started), self._part("eval", started)
            for path in started:
                path.replace(path.with_name(path.name[1 : -len(".partial")]))
            manifest = LogManifest(
                version=GENERATOR_VERSION,
                seed=request.seed,
                click_rate=request.click_rate,
                data_format=request.data_format,
                compression=request.compression,
                train=train,
                eval=evaluation,
            )
            write_manifest(request.directory, manifest)
        except BaseException:
            for path in started:
                path.unlink(missing_ok=True)
                path.with_name(path.name[1 : -len(".partial")]).unlink(missing_ok=True)
            raise
        return manifest

    def _part(self, part: Literal["train", "eval"], started: list[Path]) -> PartManifest:
        request, tally, written = self._request, PartTally(), []
        for name, rows in request.names(part):
            path = request.directory / f".{name}.partial"
            started.append(path)
            with open_writer(path, request.data_format, request.compression) as writer:
                for chunk in draw_rows(request.seed, part, rows):
                    chances = self._teacher.probabilities(chunk.counts, chunk.ranks)
                    labels = chunk.chance < chances
                    writer.write(self._tables.table(labels, chunk))
                    tally.add(labels, chances, chunk.ranks)
                    self._report(len(labels))
            # log.json is on the disk after them, and a later call reuses files by it.
            sync_file(path)
            written.append(LogFile(name=name, examples=len(rows), bytes=path.stat().st_size))
        return tally.manifest(tuple(written))

    def _report(self, examples: int) -> None:
        self._done += examples
        if self._progress:
            self._progress(self._done, self._request.examples + self._request.eval_examples)


def _settings(of: _LogRequest | LogManifest) -> tuple[object, ...]:
    return of.seed, of.click_rate, of.data_format, of.compression


def _remove_older(directory: Path) -> None:
    """Remove a log made earlier, its manifest first.

    Raises DataError, and removes nothing, if there are files that are not the generator's.
    """
    older = read_manifest_file(directory / MANIFEST_NAME)
    listed = {file.name for part in (older.train, older.eval) for file in part.files} if older else set()
    old_files = [path for path in directory.iterdir() if _DATA_FILE.fullmatch(path.name)]
    for path in old_files:
        if path.name not in listed and not path.name.endswith(".partial"):
            raise DataError(
                f"contains {path.name}, which is not listed in {MANIFEST_NAME}",
                where=str(directory),
                remedy=f"remove {path.name}, or choose another directory",
            )
    if older:
        (directory / MANIFEST_NAME).unlink()
    for path in old_files:
        path.unlink()


def _has_size(path: Path, size_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == size_bytes
