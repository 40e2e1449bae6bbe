"""Input from a prepared folder: the same spans, rows and split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..config.job import Job
from ..data.batches.split import RowDraw
from ..data.files.paths import absolute_path, file_size_bytes, match_files, read_errors
from ..data.files.row_names import RowNames
from ..data.formats.parquet import IdClass
from ..data.formats.records import RecordChunk
from ..data.prepared.agreement import check_agreement, role_paths
from ..data.prepared.manifest import DataRole, PreparedManifest, PreparedPart, in_folder, read_prepared
from ..data.prepared.part_reader import REMEDY, read_part
from ..data.span import Span
from ..errors import DataError


class PreparedInput:
    """Read the folder `data.prepared`; used by one thread at a time.

    No file is opened before the first call. Each part is a span, in the order of the source's spans, and its
    rows are drawn (`data.split`) as in the source. So a part that is a whole span of the source gives the
    same batches as the source. A compressed file, which is one span, has several parts.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._folder = job.data.prepared
        self._manifest: PreparedManifest | None = None
        self._parts: dict[str, PreparedPart] = {}

    @property
    def id_classes(self) -> Mapping[str, IdClass]:
        """Return the id classes of the source's columns, if it was Parquet."""
        return self._read().id_classes

    def has(self, span: Span) -> bool:
        """Return whether a span's path is a part of the folder."""
        return span.path.startswith(in_folder(self._folder, "")) and span.path in self._parts_by_path()

    def role_of(self, patterns: Sequence[str]) -> DataRole | None:
        """Return the job's role of these patterns; None for others."""
        absolute = [absolute_path(pattern) for pattern in patterns]
        return next((role for role, paths in role_paths(self._job.data).items() if paths == absolute), None)

    def plan(self, role: DataRole) -> list[Span]:
        """Return the spans of a role.

        The job's settings and the sizes of the role's parts are checked. Raises JobFileError if the job does
        not fit the folder, DataError for a part that is absent or has another size.
        """
        manifest = self._read()
        check_agreement(self._job, manifest)
        spans: list[Span] = []
        for part in manifest.parts:
            if part.role == role:
                spans.append(self._span(len(spans), part))
        return spans

    def parts(self, patterns: Sequence[str]) -> list[Span]:
        """Return the spans of files that are parts of the folder.

        Returns [] unless all files are parts; their role does not matter. Raises DataError for a pattern that
        matches no file, and as `plan`.
        """
        files = [absolute_path(file) for file in match_files(patterns, self._job.data.kafka)]
        folder = in_folder(self._folder, "")
        if not all(file.startswith(folder) and file in self._parts_by_path() for file in files):
            return []
        check_agreement(self._job, self._read())
        parts = self._parts_by_path()
        return [self._span(number, parts[file]) for number, file in enumerate(files)]

    def check_same(self, span: Span) -> None:
        """Raise DataError if a span was planned from another manifest."""
        if span.prepared and span.prepared != self._read().digest:
            raise DataError(
                "differs from the folder that the job was planned with: it was prepared again, or this "
                "machine has another copy",
                where=self._folder,
                remedy="do not change it while a job runs, and give all nodes the same folder",
            )

    def chunks(self, span: Span) -> Iterator[RecordChunk]:
        """Yield all rows of a span; raises DataError as `read_part`."""
        part = self._parts_by_path()[span.path]
        rows = {column.name: column.table.rows for column in self._job.embedded_columns if column.grows}
        return read_part(span.path, part, self._read(), rows)

    def draw_of(self, span: Span) -> Callable[[int, int], RowDraw]:
        """Return what rows of a span are drawn by: the source file, and their place in the source's span."""
        part = self._parts_by_path()[span.path]
        source = replace(span, path=part.source, start=part.start)
        split = self._job.data.split
        name = RowNames(self._read().order.paths.get("train", []), split.draw_by).of(part.source)
        return lambda done, count: (source, name, part.first_row + done, count)

    def _span(self, number: int, part: PreparedPart) -> Span:
        path = in_folder(self._folder, part.name)
        _check_size(path, part)
        return Span(number, path, "row_groups", 0, part.row_groups, prepared=self._read().digest)

    def _parts_by_path(self) -> dict[str, PreparedPart]:
        if not self._parts:
            self._parts = {in_folder(self._folder, part.name): part for part in self._read().parts}
        return self._parts

    def _read(self) -> PreparedManifest:
        if self._manifest is None:
            self._manifest = read_prepared(self._folder)
        return self._manifest


def _check_size(path: str, part: PreparedPart) -> None:
    with read_errors(path):
        size = file_size_bytes(path)
    if size is not None and size != part.bytes:
        raise DataError(f"has {size} bytes; its manifest states {part.bytes}", where=path, remedy=REMEDY)
