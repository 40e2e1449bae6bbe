"""A first job file for undescribed data, with a comment on every guess."""

from __future__ import annotations

import glob
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ...data.files.paths import is_plain, is_url, match_files
from ...errors import JobFileError, ResourceError
from ...input.plan import check_disjoint
from ...performance.memory import total_memory_bytes
from ...text.format import counted, percent
from ..load import job_of_tree
from .columns import draft_columns, has_decimal_commas
from .entry import DraftColumn, toml_key, toml_value
from .label import with_test_labels
from .memory import RowsOnDisk, rows_on_disk
from .missing import missing_words
from .sample import InputSample, read_sample
from .tables import table_lines, with_largest_halved

_SMALL_ROWS: Final = 100_000
_LARGE_ROWS: Final = 2_000_000
_MOST_EPOCHS: Final = 10
_SORT_LIMIT_BYTES: Final = 256 << 20
# TOML refuses them also in comments.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def draft_job(
    source: str,
    folder: Path,
    *,
    name: str,
    label: str = "",
    positive: Sequence[str] = (),
    eval_source: str = "",
) -> str:
    """Return a job file for `source`.

    `source` is a file, a glob or a folder, or a URL; so is `eval_source`, files for the test, or "". `folder`
    is the folder of the job file: local paths are written relative to it. `label` is the name of the label's
    column, or "" to guess it; `positive` are the texts of it that count as 1, or empty to guess them. Raises
    DataError for files that cannot be read, and JobFileError if the columns are not clear.
    """
    sample = read_sample(source)
    columns = draft_columns(sample, label, positive)
    eval_path = ""
    if eval_source:
        tested = read_sample(eval_source, like=sample)
        check_disjoint({"path": match_files([sample.pattern]), "eval_path": match_files([tested.pattern])})
        columns = with_test_labels(columns, tested)
        eval_path = _relative(tested.pattern, folder)
    sample = replace(sample, pattern=_relative(sample.pattern, folder))
    if not any(column.has_table for column in columns):
        raise JobFileError(
            "no column looks like an id, a category or a number",
            remedy="write [data.columns] by hand, with at least one",
        )
    return _within_machine(
        columns,
        folder,
        lambda some, disk: "".join(map(_one_line, _lines(source, name, sample, some, eval_path, disk))),
    )


def _one_line(line: str) -> str:
    """Return a line of the draft with its end; a comment may have names and values of the data."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], line) + "\n"


def _within_machine(
    columns: list[DraftColumn],
    folder: Path,
    text_of: Callable[[list[DraftColumn], RowsOnDisk | None], str],
) -> str:
    """Return the text of a job that this machine's memory holds, rows on disk where it must.

    Growing tables are halved, the largest first, while not even that helps.
    """
    machine_bytes = total_memory_bytes()
    while True:
        text = text_of(columns, None)
        try:
            disk = rows_on_disk(job_of_tree(tomllib.loads(text), folder=folder.resolve()), machine_bytes)
        except ResourceError:
            smaller = with_largest_halved(columns)
            if smaller == columns:
                return text
            columns = smaller
        else:
            return text if disk is None else text_of(columns, disk)


def _relative(pattern: str, folder: Path) -> str:
    """Return a path relative to the job file's folder; a URL as it is.

    A path that shares nothing with the folder but the root stays absolute.
    """
    if is_url(pattern):
        return pattern
    base = str(folder.resolve())
    if not is_plain(pattern, pattern):
        base = glob.escape(base)
    return pattern if os.path.commonpath([pattern, base]) == os.sep else os.path.relpath(pattern, base)


def _lines(
    source: str,
    name: str,
    sample: InputSample,
    columns: list[DraftColumn],
    eval_path: str,
    disk: RowsOnDisk | None,
) -> Iterator[str]:
    rows = counted(sample.rows, "row")
    spread = "from places all over it" if sample.to_end else "none of them near the end: there was no time"
    some = f"{len(sample.frame):,} of about {rows}, {spread}, of"
    looked = f"all {rows} of" if sample.whole else some
    yield f"# Drafted by `shadowsync init` from {looked} {source}."
    yield "# Every line with a comment is a guess: check it. docs/job-file.md has all keys."
    if asked := sum(len(column.questions) for column in columns):
        yield f"# {counted(asked, 'QUESTION')} below: the line under it, if any, is the other answer."
    yield "[run]"
    yield f"name = {toml_value(name)}"
    yield ""
    time = next((column for column in columns if column.kind == "timestamp"), None)
    by_time = time is not None and not time.missing_share and sample.bytes <= _SORT_LIMIT_BYTES
    yield from _data(sample, time, eval_path, by_time=by_time)
    yield from _without_label(sample, columns)
    yield ""
    # One pass over few rows is scored at its end alone.
    during = sample.rows >= _SMALL_ROWS or not by_time
    yield from _split(eval_path, by_time=by_time, during=during)
    yield ""
    yield "[data.columns]"
    yield from _columns(sample, columns)
    yield ""
    yield from _model(sample, columns)
    if disk is not None:
        yield ""
        yield from disk.lines()
    if during:
        yield ""
        yield from _validation(sample)
    yield from _tables(columns)


def _data(sample: InputSample, time: DraftColumn | None, eval_path: str, *, by_time: bool) -> Iterator[str]:
    yield "[data]"
    yield f'format = "{sample.format}"'
    yield f"path = {toml_value(sample.pattern)}"
    if eval_path:
        yield f"eval_path = {toml_value(eval_path)}  # scored once, at the end"
    if sample.format != "parquet":
        if sample.delimiter:
            yield f"delimiter = {toml_value(sample.delimiter)}"
        if not sample.header:
            twice = f"has {sample.repeated[0]!r} more than once" if sample.repeated else "looks like a row"
            yield f"header = false  # the first line {twice}; give the columns their names below"
        if sample.encoding != "utf-8":
            yield f'encoding = "{sample.encoding}"  # it is not UTF-8'
        if sample.strip:
            yield "strip = true  # blanks around the fields"
        if words := missing_words(sample.frame):
            yield f"missing = {toml_value(['', *words])}  # words that stand for no value"
        if has_decimal_commas(sample.frame):
            yield 'decimal = ","  # as in 1,5'
    if by_time:
        yield 'order = "time"  # trained in the order of time, and tested on the last rows'
    elif time is not None and time.missing_share:
        gone = f"{percent(time.missing_share, 1)} of the rows have no time, and would be malformed."
        yield f'# order = "time" would train in the order of time, but {gone}'
    elif time is not None:
        yield '# order = "time" would train in the order of time, but sorts all rows in memory.'
    # Not in the order of time: a second pass would see the first rows after the last.
    if sample.rows < _SMALL_ROWS and not by_time:
        yield f"epochs = {_MOST_EPOCHS}  # at most: validation stops it, and the best model is kept"
    else:
        yield "epochs = 1"


def _split(eval_path: str, *, by_time: bool, during: bool) -> Iterator[str]:
    yield "[data.split]"
    yield f'by = "{"time" if by_time else "fraction"}"'
    when = "while and after training; the best model is kept" if during else "after training"
    yield f"validation = 0.1  # scored {when}"
    if not eval_path:
        yield "test = 0.1  # scored once, at the end"


def _without_label(sample: InputSample, columns: list[DraftColumn]) -> Iterator[str]:
    """Allow for the rows that have no label, with some to spare."""
    share = 1.25 * max(column.missing_share for column in columns if column.kind == "label")
    if not share:
        return
    yield "# Rows without a label are malformed, and skipped; these are the limits of such rows."
    yield f"max_bad_rows = {max(1000, int(share * sample.rows))}"
    yield f"max_bad_fraction = {min(1.0, share + 0.01):.3f}"


def _columns(sample: InputSample, columns: list[DraftColumn]) -> Iterator[str]:
    left_out_names = sample.header or sample.format == "parquet"
    for column in columns:
        key = toml_key(column.name)
        if column.kind:
            yield f"{key} = {column.setting}  # {column.why}"
            if column.kind == "timestamp":
                yield from _parts_of_time(column)
        elif left_out_names:
            yield f"# {key} is left out: {column.why}"
        else:
            # Without a header columns are found by their place, so this one needs an entry.
            yield f'{key} = "ignored"  # {column.why}'
        for question in column.questions:
            end = " in place of the line above:" if column.kind or not left_out_names else ":"
            yield f"# QUESTION: {column.name}: {question.text}{end if question.line else ''}"
            if question.line:
                yield f"# {question.line}"


def _parts_of_time(column: DraftColumn) -> Iterator[str]:
    """Propose the hour and the weekday of a time as columns."""
    of_time = tomllib.loads(f"column = {column.setting}")["column"]
    form = of_time.get("format", "") if isinstance(of_time, dict) else ""
    more = f", format = {toml_value(form)}" if form else ""
    for part in ("hour", "weekday"):
        of = f'source = {toml_value(column.name)}, part = "{part}"{more}'
        key = toml_key(f"{column.name}_{part}")
        yield f'# {key} = {{ kind = "categorical", {of} }}  # its {part}, in UTC'


def _model(sample: InputSample, columns: list[DraftColumn]) -> Iterator[str]:
    small, large = sample.rows < _SMALL_ROWS, sample.rows > _LARGE_ROWS
    dim = 8 if small else 16
    top = 32 if small else 128
    trainers = 2 if large else 1
    dense = any(column.kind == "dense" for column in columns)
    vectors = sum(column.has_table for column in columns) + dense
    yield "[model]"
    if small:
        yield 'name = "wide_deep"  # overfits small data less than "dlrm"'
    elif vectors < 2:
        yield 'name = "wide_deep"  # "dlrm" multiplies pairs of columns, and here is one alone'
    yield f"embedding_dim = {dim}"
    if not small and dense:
        yield f"bottom = [{top}]"
    yield f"top = [{top}]"
    yield ""
    yield "[trainer]"
    yield f"count = {trainers}"
    yield f"batch = {64 if small else 256 if not large else 512}"
    if not large:
        yield "lookups_ahead = 0  # small tables: vectors requested ahead of time would be outdated"


def _validation(sample: InputSample) -> Iterator[str]:
    small = sample.rows < _SMALL_ROWS
    yield "[validation]"
    yield "every_epochs = 1" if small else f"every_examples = {max(10_000, sample.rows // 10)}"
    yield f"patience = {2 if small else 3}  # stops after so many validations without a better one"
    if small:
        yield "wait = true  # training waits for a validation, which takes longer than an epoch"


def _tables(columns: list[DraftColumn]) -> Iterator[str]:
    for column in columns:
        if column.table is not None:
            yield ""
            yield f"[tables.{toml_key(column.name)}]"
            yield from table_lines(column.table)
