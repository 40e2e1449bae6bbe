"""The spans that a job trains on, validates on and tests on.

For a split by time or a progressive part all rows are counted: how many there are, whether they are in the
order of time, and how many are before a given time. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Final

import numpy as np

from ..config.data import DataSection, seconds_of
from ..config.job import Job
from ..data.bad_rows import BadRows, UnreportedBadRows
from ..data.batches.shuffle import chunk_bytes, too_large_to_sort
from ..data.files.paths import linked_identity
from ..data.formats.parquet import IdClass
from ..data.span import PartName, Span, digest_of_all
from ..errors import DataError, JobFileError
from .job_input import JobInput

_TO: Final[Mapping[PartName, str]] = {
    "train": "to train on",
    "validation": "to validate on",
    "test": "to test on",
}


@dataclass
class RowCount:
    """Row counts from one pass over some spans.

    Attributes:
        of_span: good rows of each span.
        before: number of rows before each requested time.
        in_order: whether the times of rows never fall, over all spans.
        size_bytes: bytes of all rows in memory.
    """

    of_span: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    in_order: bool = True
    size_bytes: int = 0

    @property
    def rows(self) -> int:
        """Return the number of all good rows."""
        return sum(self.of_span)


def count_rows(
    source: JobInput, spans: Sequence[Span], bad_rows: BadRows, moments: Sequence[float] = ()
) -> RowCount:
    """Count the rows of all spans, in bounded memory.

    `moments` are times in seconds since 1970; `RowCount.before` has the number of rows before each. Raises
    DataError for a file that cannot be read, and past the limit of `bad_rows`.
    """
    count = RowCount(before=[0] * len(moments))
    latest = -np.inf
    for span in spans:
        rows = 0
        for chunk in source.chunks(span, bad_rows):
            rows += len(chunk.examples)
            count.size_bytes += chunk_bytes(chunk)
            if not len(chunk.times):
                continue
            rising = bool((np.diff(chunk.times, prepend=latest) >= 0).all())
            count.in_order = count.in_order and rising
            latest = chunk.times[-1]
            for place, moment in enumerate(moments):
                count.before[place] += int((chunk.times < moment).sum())
        count.of_span.append(rows)
    return count


@dataclass(frozen=True)
class InputPlan:
    """The spans of each part; no row is in two of them.

    Attributes:
        train: spans numbered from 0, in the order of the plan.
        validation, test: spans, each list numbered from 0; empty if the job has no such part.
        progressive: numbers of the spans of `train` whose batches are scored before they are trained on.
        id_classes: types of the ids of Parquet columns that have a value in any file.
    """

    train: list[Span]
    validation: list[Span] = field(default_factory=list)
    test: list[Span] = field(default_factory=list)
    progressive: frozenset[int] = frozenset()
    id_classes: Mapping[str, IdClass] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownInput:
    """What a job that follows its input, or that reads a topic, has planned before.

    Attributes:
        spans: spans numbered from 0; their files need not be there any more.
        id_classes: classes of the ids in their files.
        others: whether to plan the other files, too.
    """

    spans: Sequence[Span]
    id_classes: Mapping[str, IdClass] = field(default_factory=dict)
    others: bool = True


def plan_input(job: Job, known: KnownInput | None = None) -> InputPlan:
    """Return the plan of a job's input; `known` spans come first.

    The plan depends only on the job file and the input files. The first rows of each file are read; with
    `data.order = "time"` or `data.split.progressive` all of `data.path` is read once, and where rows are
    drawn up to the first one of each part. Raises DataError for files that cannot be used, for a file that is
    in two parts, for a part of the split without rows, unless the job resumes a run, and for a column whose
    ids are texts in one file and integers in another; JobFileError for a schema that cannot be used.
    """
    source, data = JobInput(job), job.data
    files, validation, test = plan_files(source, job, known)
    plan = InputPlan([], validation, test, id_classes=source.ids.by_column)
    if data.order == "time":
        return _by_time(source, job, files, plan)
    train = files
    if data.split.by == "order":
        count = count_rows(source, files, BadRows(data.max_bad_rows))
        return _last_rows(files, count.of_span, count, job, plan)
    if data.split.by:
        parts = _drawn(source, job, files)
        train = parts["train"]
        validation, test = parts.get("validation", validation), parts.get("test", test)
    plan = replace(plan, train=train, validation=validation, test=test)
    if not data.split.progressive:
        return plan
    count = count_rows(source, train, BadRows(data.max_bad_rows))
    return _with_progressive(train, count.of_span, count.rows, job, plan)


def plan_files(
    source: JobInput, job: Job, known: KnownInput | None = None
) -> tuple[list[Span], list[Span], list[Span]]:
    """Return the spans of the files to train on, to validate on and to test on; `known` ones come first.

    Raises DataError as `JobInput.plan`, for a file that two keys name, and unless the job resumes a run for
    one under two names whose rows are split.
    """
    data = job.data
    files = source.plan(data.path) if known is None else _after(known, source, data.path)
    validation, test = (
        source.plan(paths) if paths else [] for paths in (data.validation_path, data.eval_path)
    )
    parts = {"path": files, "validation_path": validation, "eval_path": test}
    check_disjoint({key: [span.path for span in spans] for key, spans in parts.items()})
    if (data.split.by or data.split.progressive) and not job.start.resume:
        _require_own_files(files)
    return files, validation, test


def _after(known: KnownInput, source: JobInput, patterns: Sequence[str]) -> list[Span]:
    """Return the known spans, then those of all other files and of later messages."""
    source.ids.add_known(known.id_classes, "the files before")
    return [*known.spans, *(source.plan_others(patterns, known.spans) if known.others else [])]


def require_fixed_input(job: Job) -> None:
    """Raise JobFileError for a job that follows its input.

    For uses where the job must end by itself.
    """
    if job.data.follow:
        raise JobFileError(
            "data.follow: true given; such a job does not end by itself", remedy="add --set data.follow=false"
        )


def require_ne(job: Job) -> None:
    """Raise JobFileError for a job that has no NE, for uses that compare by it."""
    if job.model.has_towers:
        raise JobFileError(
            f'model.name: "{job.model.name}" given; runs are compared by NE, which scores of towers have not',
            remedy="train the runs one after the other: `shadowsync runs` shows them side by side",
        )
    if not job.model.has_logits:
        raise JobFileError(
            f'model.scores: "{job.model.scores}" given; runs are compared by NE, which such scores have not',
            remedy='leave it out, with logits as outputs; a loss of your own may stay, as model.loss = "own"',
        )


def check_disjoint(parts: Mapping[str, Sequence[str]]) -> None:
    """Raise DataError for a file that two keys of [data] name; `parts` has the paths of each."""
    files = {
        key: {linked_identity(path): path for path in dict.fromkeys(paths)} for key, paths in parts.items()
    }
    for (first_key, mine), (other_key, yours) in combinations(files.items(), 2):
        for name in sorted(mine.keys() & yours.keys())[:1]:
            raise DataError(
                f"is in data.{first_key} and in data.{other_key}, so its rows would be in two parts",
                where=yours[name],
                remedy=f"remove it from data.{first_key}, or take a part of data.path by data.split",
            )


def cut_rows(spans: Sequence[Span], rows: Sequence[int], start: int, stop: int) -> list[Span]:
    """Cut spans to good rows `start` to `stop` - 1, counted over all spans.

    Args:
        spans: whole spans, in order.
        rows: number of good rows of each span.
    """
    if start == stop > 0:
        # The range is empty. Spans without a good row at this point belong to the rows before them.
        return []
    pieces = []
    done, total = 0, sum(rows)
    for span, count in zip(spans, rows, strict=True):
        before, done = done, done + count
        first, last = max(start - before, 0), min(stop - before, count)
        # A span without a good row has bad rows to report; it belongs to the rows that follow it.
        empty = count == 0 and start <= before and (before < stop or before == total == stop)
        if first >= last and not empty:
            continue
        if span.kind == "sorted":
            pieces.append(replace(span, start=span.start + first, stop=span.start + last))
        else:
            pieces.append(replace(span, first=first, last=-1 if last == count else last))
    return pieces


def _drawn(source: JobInput, job: Job, files: Sequence[Span]) -> dict[PartName, list[Span]]:
    """Return the spans of the parts that are drawn."""
    split = job.data.split
    is_drawn: dict[PartName, bool] = {
        "train": True,
        "validation": split.has_validation,
        "test": split.has_test,
    }
    if split.by == "last":
        files = _of_all(files)
    parts = {
        part: [replace(span, part=part) for span in files] for part, needed in is_drawn.items() if needed
    }
    if not job.start.resume:
        require_rows(source, {_TO[part]: spans for part, spans in parts.items()}, job.data.path)
    return parts


def _of_all(files: Sequence[Span]) -> list[Span]:
    """Return spans whose rows depend on all of these files; those of a prepared folder say so already."""
    digest = digest_of_all(files)
    return [replace(span, prepared=span.prepared or digest) for span in files]


def _by_time(source: JobInput, job: Job, files: list[Span], plan: InputPlan) -> InputPlan:
    data = job.data
    moments = [data.split.validation_from, data.split.test_from]
    bounds = [seconds_of(moment) for moment in moments if moment is not None]
    count = count_rows(source, files, BadRows(data.max_bad_rows), bounds)
    spans, rows = files, count.of_span
    if not count.in_order:
        if count.size_bytes > data.sort_limit_bytes:
            raise too_large_to_sort(count.size_bytes, count.rows, data.sort_limit_bytes, data.path)
        spans = _sorted_spans(_of_all(files)[0], count, data.span_bytes)
        rows = [span.stop - span.start for span in spans]
    return _last_rows(spans, rows, count, job, plan)


def _last_rows(
    spans: Sequence[Span], rows: Sequence[int], count: RowCount, job: Job, plan: InputPlan
) -> InputPlan:
    """Return the plan whose validation and test are the last rows of the spans; `rows` are those of each."""
    data = job.data
    ends = _ends(data, count)
    if not job.start.resume:
        _require_parts(data, ends)
    validation, test = (_numbered(cut_rows(spans, rows, start, stop)) for start, stop in pairwise(ends))
    plan = replace(plan, validation=validation or plan.validation, test=test or plan.test)
    return _with_progressive(spans, rows, ends[0], job, plan)


def _ends(data: DataSection, count: RowCount) -> tuple[int, int, int]:
    """Return where training, validation and all rows end, in their order.

    An end is one past the last row.
    """
    split, total = data.split, count.rows
    before = iter(count.before)
    test_from = total - round(total * split.test)
    validation_from = test_from - round(total * split.validation)
    if split.validation_from is not None:
        validation_from = next(before)
    if split.test_from is not None:
        test_from = next(before)
        validation_from = validation_from if split.validation_from is not None else test_from
    if not validation_from:
        raise DataError(
            "data.split leaves no row to train on: validation or test begins at the first row",
            where=", ".join(data.path),
            remedy="make data.split.validation_from and test_from later, or the fractions smaller",
        )
    return validation_from, test_from, total


def _require_parts(data: DataSection, ends: tuple[int, int, int]) -> None:
    """Raise DataError for a part of the last rows that has no row."""
    split = data.split
    is_given: dict[PartName, bool] = {
        "validation": split.has_validation,
        "test": split.has_test,
    }
    for (part, asked), (start, stop) in zip(is_given.items(), pairwise(ends), strict=True):
        if asked and start == stop:
            raise no_rows(_TO[part], data.path)


def _sorted_spans(file: Span, count: RowCount, span_bytes: int) -> list[Span]:
    at_once = max(1, span_bytes * count.rows // max(count.size_bytes, 1))
    starts = range(0, count.rows, at_once)
    return [
        replace(file, number=number, kind="sorted", start=start, stop=min(start + at_once, count.rows))
        for number, start in enumerate(starts)
    ]


def _with_progressive(
    spans: Sequence[Span], rows: Sequence[int], end: int, job: Job, plan: InputPlan
) -> InputPlan:
    """Return the plan with rows 0 to `end` - 1 for training.

    Spans are cut where the progressive part begins.
    """
    share = job.data.split.progressive
    begin = end - round(end * share)
    if share and begin == end and not job.start.resume:
        raise no_rows("to score before it is trained on (progressive)", job.data.path)
    before = cut_rows(spans, rows, 0, begin)
    after = cut_rows(spans, rows, begin, end) if begin < end else []
    train = _numbered([*before, *after])
    return replace(plan, train=train, progressive=frozenset(range(len(before), len(train))))


def _numbered(spans: Sequence[Span]) -> list[Span]:
    return [replace(span, number=number) for number, span in enumerate(spans)]


def require_rows(source: JobInput, parts: Mapping[str, Sequence[Span]], patterns: Sequence[str]) -> None:
    """Raise DataError for a drawn part without a row.

    `parts` are by the words that name them. Files are read up to the first row of each part.
    """
    for part, spans in parts.items():
        bad_rows = UnreportedBadRows()
        if not any(len(chunk.examples) for span in spans for chunk in source.chunks(span, bad_rows)):
            raise no_rows(part, patterns)


def no_rows(part: str, patterns: Sequence[str]) -> DataError:
    """Return the error for an empty part, such as "to test on"."""
    return DataError(
        f"data.split leaves no row {part}",
        where=", ".join(patterns),
        remedy="change the fractions or times of [data.split], leave that part out, or give more rows",
    )


def _require_own_files(spans: Sequence[Span]) -> None:
    """Raise DataError for a file under two names, whose rows would be twice in what is split."""
    names: dict[str, str] = {}
    for path in dict.fromkeys(span.path for span in spans):
        other = names.setdefault(linked_identity(path), path)
        if other != path:
            raise DataError(
                f"is the same file as {other}, so its rows would be in several parts of data.split",
                where=path,
                remedy="leave one of the two out of data.path",
            )
