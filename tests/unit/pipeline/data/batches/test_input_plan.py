"""Parts of the input: they share no row, leave none out, and end where they should."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.config.data import SplitSection
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.sections import StartSection
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batches.split import drawn_rows
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.input.plan import InputPlan, cut_rows, plan_input
from shadowsync.pipeline.jobfile.check import check_job
from shadowsync.tests.support.data.schemas import schema_job, write_lines

# The weight is the row's number in the order of time, so that rows can be told apart.
COLUMNS = {"y": "label", "x": "categorical", "t": "timestamp", "w": "weight"}
BAD = "7,u,0,0"


def _log(path: Path, times: list[int], bad_before: Sequence[int] = ()) -> Path:
    """Rows of these times, whose weights are their ranks, and bad rows before some of them."""
    ranks = np.argsort(np.argsort(times, kind="stable"), kind="stable")
    lines = []
    for at, (time, rank) in enumerate(zip(times, ranks.tolist(), strict=True)):
        lines += [BAD] * list(bad_before).count(at) + [f"{at % 2},{'u' * 20},{time},{rank}"]
    return write_lines(path, *lines, header="y,x,t,w")


def _weights(job: Job, spans: list[Span], bad_rows: BadRows | None = None) -> list[int]:
    source, bad = JobInput(job), bad_rows if bad_rows is not None else BadRows(0)
    return [int(w) for span in spans for chunk in source.chunks(span, bad) for w in chunk.examples.weights]


def _numbered(plan: InputPlan) -> bool:
    parts = (plan.train, plan.validation, plan.test)
    return all([span.number for span in part] == list(range(len(part))) for part in parts)


def _job(path: Path | str, **data: Any) -> Job:
    return schema_job(path, "parquet" if str(path).endswith("parquet") else "csv", COLUMNS, **data)


TIME = {"by": "time", "validation": 0.1, "test": 0.2}


@pytest.mark.parametrize("kind", ["plain", "gz", "unsorted", "parquet"])
def test_parts_and_progressive_by_time_to_the_row(tmp_path: Path, kind: str) -> None:
    """10,000 rows: 7,000 to train on, of which the last 1,400 are scored first, 1,000 and 2,000."""
    times = list(range(0, 20_000, 2))
    if kind == "unsorted":
        times = np.random.default_rng(1).permutation(times).tolist()
    path = _log(tmp_path / "log.csv", times)
    if kind == "gz":
        path = tmp_path / "log.csv.gz"
        path.write_bytes(gzip.compress((tmp_path / "log.csv").read_bytes()))
    if kind == "parquet":
        table = pcsv.read_csv(path)
        path = tmp_path / "log.parquet"
        pq.write_table(table, path, row_group_size=1000)
    job = _job(path, order="time", split=TIME | {"progressive": 0.2}, span_bytes=1 << 16)
    plan = plan_input(job)
    assert _numbered(plan)
    before = [span for span in plan.train if span.number not in plan.progressive]
    after = [span for span in plan.train if span.number in plan.progressive]
    assert _weights(job, before) == list(range(5600))
    assert _weights(job, after) == list(range(5600, 7000))
    assert _weights(job, plan.validation) == list(range(7000, 8000))
    assert _weights(job, plan.test) == list(range(8000, 10_000))
    assert {span.kind for span in plan.train} == {
        {"plain": "bytes", "gz": "stream", "unsorted": "sorted", "parquet": "row_groups"}[kind]
    }
    assert kind == "gz" or len(plan.train) > 2


@pytest.mark.parametrize("shuffled", [False, True])
def test_parts_by_given_times(tmp_path: Path, shuffled: bool) -> None:
    times = list(range(100))
    if shuffled:
        times = times[::-1]
    job = _job(
        _log(tmp_path / "log.csv", times),
        order="time",
        split={"by": "time", "validation_from": 60, "test_from": "1970-01-01T00:01:20"},
    )
    plan = plan_input(job)
    assert _weights(job, plan.train) == list(range(60))
    assert _weights(job, plan.validation) == list(range(60, 80))
    assert _weights(job, plan.test) == list(range(80, 100))
    only_test = _job(tmp_path / "log.csv", order="time", split={"by": "time", "test_from": 70})
    plan = plan_input(only_test)
    assert (_weights(only_test, plan.train), plan.validation) == (list(range(70)), [])
    with pytest.raises(DataError, match=r"data.split leaves no row to train on"):
        plan_input(_job(tmp_path / "log.csv", order="time", split={"by": "time", "test_from": -1}))


@settings(max_examples=40)
@given(data=st.data())
def test_ranges_of_rows_cover_all_and_tell_each_bad_row_once(tmp_path: Path, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    bad_before = data.draw(st.lists(st.integers(0, count - 1), max_size=6))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    pieces = data.draw(st.integers(1, 4))
    path = _log(tmp_path / "log.csv", list(range(count)), bad_before)
    size = path.stat().st_size
    spans = [
        Span(at, str(path), "bytes", at * size // pieces, (at + 1) * size // pieces) for at in range(pieces)
    ]
    job = _job(path)
    rows = [len(_weights(job, [span], BadRows(100))) for span in spans]
    assert sum(rows) == count
    found: list[int] = []
    bad = BadRows(100)
    bounds = [0, *cuts, count]
    for start, stop in pairwise(bounds):
        part = _weights(job, cut_rows(spans, rows, start, stop), bad)
        assert part == list(range(start, stop))
        found += part
    assert found == list(range(count))
    assert bad.count == len(bad_before)


@given(
    st.integers(0, 2**31 - 1),
    st.floats(0, 0.5, allow_nan=False),
    st.floats(0, 0.49, allow_nan=False),
    st.integers(0, 10**12),
    st.integers(0, 10**9),
    st.integers(0, 300),
)
def test_drawn_parts_share_no_row_and_leave_none_out(
    seed: int, validation: float, test: float, start: int, first_row: int, count: int
) -> None:
    if not validation and not test:
        test = 0.1
    split = SplitSection(by="fraction", validation=validation, test=test, seed=seed)
    masks = [
        drawn_rows(Span(3, "/a/b.csv", "bytes", start, start + 9, part), "b.csv", first_row, count, split)
        for part in ("train", "validation", "test")
    ]
    assert (np.sum(masks, axis=0) == 1).all()
    # Nor does a row's part depend on how many are asked for at once, or on where the file lies.
    again = drawn_rows(
        Span(0, "/c/b.csv", "bytes", start, start + 9, "train"),
        "b.csv",
        first_row + 1,
        max(count - 1, 0),
        split,
    )
    np.testing.assert_array_equal(again, masks[0][1:])


def test_drawn_parts_of_files(tmp_path: Path) -> None:
    job = _job(
        _log(tmp_path / "log.csv", list(range(20_000))),
        split={"by": "fraction", "validation": 0.1, "test": 0.2},
        span_bytes=1 << 17,
    )
    plan = plan_input(job)
    assert _numbered(plan)
    assert len(plan.train) > 2
    train, validation, test = (_weights(job, part) for part in (plan.train, plan.validation, plan.test))
    assert sorted(train + validation + test) == list(range(20_000))
    # The standard error of each share is 0.003 at most.
    assert abs(len(validation) / 20_000 - 0.1) < 0.015
    assert abs(len(test) / 20_000 - 0.2) < 0.015
    other = _job(tmp_path / "log.csv", split={"by": "fraction", "test": 0.2, "seed": 1}, span_bytes=1 << 17)
    assert _weights(other, plan_input(other).test) != test
    # Another seed of the run leaves the parts as they are.
    again = Job.model_validate(job.model_dump() | {"run": {"seed": 9}})
    assert _weights(again, plan_input(again).test) == test


def test_progressive_in_the_order_of_the_file_after_a_draw(tmp_path: Path) -> None:
    job = _job(
        _log(tmp_path / "log.csv", list(range(9000))),
        split={"by": "fraction", "test": 0.2, "progressive": 0.25},
        shuffle_window=0,
        span_bytes=1 << 16,
    )
    plan = plan_input(job)
    train = _weights(job, plan.train)
    last = _weights(job, [span for span in plan.train if span.number in plan.progressive])
    assert last == train[-len(last) :]
    assert len(last) == round(len(train) * 0.25)
    assert sorted(train + _weights(job, plan.test)) == list(range(9000))


def test_parts_by_file(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        _log(tmp_path / f"{name}.csv", [1, 2, 3])
    here = str(tmp_path)
    plan = plan_input(_job(f"{here}/a.csv", validation_path=[f"{here}/b.csv"], eval_path=[f"{here}/c.csv"]))
    parts = (plan.train, plan.validation, plan.test)
    assert [[span.path for span in part] for part in parts] == [[f"{here}/{name}.csv"] for name in "abc"]
    assert plan.progressive == frozenset()
    assert plan_input(_job(f"{here}/a.csv")).validation == []


@pytest.mark.parametrize("look", [plan_input, check_job])
@pytest.mark.parametrize(
    ("path", "others", "one", "other"),
    [
        ("*.csv", {"eval_path": ["b.csv"]}, "path", "eval_path"),
        ("a.csv", {"validation_path": ["../here/a.csv"]}, "path", "validation_path"),
        ("a.csv", {"validation_path": ["b.csv"], "eval_path": ["link.csv"]}, "validation_path", "eval_path"),
        ("a.csv", {"validation_path": ["b.csv"], "eval_path": ["same.csv"]}, "validation_path", "eval_path"),
        ("*.csv", {"eval_path": ["kept/same.csv"]}, "path", "eval_path"),
    ],
)
def test_a_file_that_is_in_two_parts_is_refused(
    tmp_path: Path,
    look: Callable[[Job], object],
    path: str,
    others: dict[str, list[str]],
    one: str,
    other: str,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("a", "b"):
        _log(here / f"{name}.csv", [1, 2, 3])
    (here / "kept").mkdir()
    if "link.csv" in others.get("eval_path", []):
        (here / "link.csv").symlink_to(here / "b.csv")
    for name in others.get("eval_path", []):
        if name.endswith("same.csv"):
            (here / name).hardlink_to(here / "b.csv")
    files = {key: [f"{here}/{name}" for name in names] for key, names in others.items()}
    with pytest.raises(
        DataError,
        match=rf"\.csv: is in data\.{one} and in data\.{other}, so its rows would be in two parts; "
        r"remove it from data",
    ):
        look(_job(f"{here}/{path}", **files))
    assert plan_input(_job(f"{here}/a.csv", eval_path=[f"{here}/b.csv"])).test, "the control"


def _ids(path: Path, user: list[Any], tags: list[Any]) -> None:
    pq.write_table(pa.table({"y": [0.0, 1.0], "u": user, "tags": tags}), path)


@pytest.mark.parametrize(
    ("part", "user", "tags", "column"),
    [
        ("path", ["1", "2"], [[1], [2]], "u"),
        ("path", [1, 2], [["1"], ["2"]], "tags"),
        ("eval_path", ["1", None], [[1], [2]], "u"),
        ("validation_path", [1, 2], ["1", "2|3"], "tags"),
    ],
)
def test_ids_are_texts_or_integers_in_all_files(
    tmp_path: Path, part: str, user: list[Any], tags: list[Any], column: str
) -> None:
    columns = {"y": "label", "u": "categorical", "tags": "multi_hot"}
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    _ids(first, [1, 2], [[1], [2, 3]])
    _ids(second, user, tags)
    others = {} if part == "path" else {part: [str(second)]}
    job = schema_job(tmp_path / "*.parquet" if part == "path" else first, "parquet", columns, **others)
    with pytest.raises(
        DataError,
        match=rf"b\.parquet: column {column} has text ids, but integer ids in .*a\.parquet: the same",
    ):
        plan_input(job)
    # Of nulls nothing is known, so they go with both.
    _ids(second, [None, None], [None, None])
    assert plan_input(job).id_classes == {"u": "integer", "tags": "integer"}


def test_click_ids_are_texts_or_integers_in_all_files(tmp_path: Path) -> None:
    names = ("a.parquet", "b.parquet")
    shape = {"dense_features": 1, "categorical_features": 1}
    job = schema_job(tmp_path / "*.parquet", "parquet", {}, **shape)
    for ids, fits in ((["1", "2"], False), ([1, 2], True)):
        for name, values in zip(names, ([1, 2], ids), strict=True):
            pq.write_table(pa.table({"label": [0, 1], "I1": [1, 2], "C1": values}), tmp_path / name)
        if fits:
            assert plan_input(job).id_classes == {"C1": "integer"}
        else:
            with pytest.raises(
                DataError, match=r"b\.parquet: column C1 has text ids, but integer ids in .*a\.parquet"
            ):
                plan_input(job)


@pytest.mark.parametrize(
    ("rows", "begin", "before", "after"),
    [([10, 0], 10, [0, 1], []), ([10, 0, 5], 10, [0], [1, 2]), ([10, 5], 10, [0], [1])],
)
def test_a_span_without_a_good_row_is_in_one_cut(
    rows: list[int], begin: int, before: list[int], after: list[int]
) -> None:
    spans = [Span(at, "x", "bytes", at, at + 1) for at in range(len(rows))]
    cuts = [cut_rows(spans, rows, 0, begin), cut_rows(spans, rows, begin, sum(rows))]
    assert [[span.number for span in cut] for cut in cuts] == [before, after]


def test_bad_rows_after_the_last_good_one_are_in_one_span(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = 400
    write_lines(path, *(f"1,{'u' * 160},{at},{at}" for at in range(rows)), *[BAD] * 9_000, header="y,x,t,w")
    job = _job(path, shuffle_window=0, split={"progressive": 0.001}, span_bytes=1 << 16, max_bad_rows=9_000)
    # As a resumed run: a new one is refused for a part without rows.
    job = job.model_copy(update={"start": StartSection(checkpoint="/run", resume=True)})
    plan = plan_input(job)
    assert plan.progressive == frozenset()
    assert len(plan.train) == len({(span.start, span.stop) for span in plan.train}) > 1
    bad = BadRows(9_000)
    assert _weights(job, plan.train, bad) == list(range(rows))
    assert bad.count == 9_000


def test_rows_of_one_time_stay_in_the_order_of_the_files(tmp_path: Path) -> None:
    _log(tmp_path / "log-0.csv", [5, 5, 1])
    write_lines(tmp_path / "log-1.csv", "1,u,5,7", "0,u,1,8", header="y,x,t,w")
    job = _job(tmp_path / "log-*.csv", order="time")
    assert _weights(job, plan_input(job).train) == [0, 8, 1, 2, 7]


def test_unsorted_input_above_the_limit_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    times = list(range(40_000))
    _log(tmp_path / "log.csv", times[::-1])
    limit = {"sort_limit_bytes": 1 << 20}
    # Of each row the label, the weight, a table's row, its time and its place: 4 + 4 + 4 + 8 + 8 bytes.
    with pytest.raises(
        DataError,
        match=r"is not sorted by time and is too large to sort in memory: 40,000 rows of about 28 B are "
        r"1\.12 MB, above "
        r"data\.sort_limit_bytes = 1048576; sort the files by timestamp first, or raise the limit",
    ):
        plan_input(_job(tmp_path / "log.csv", order="time", **limit))
    # Sorted input of the same size is streamed.
    _log(tmp_path / "sorted.csv", times)
    assert plan_input(_job(tmp_path / "sorted.csv", order="time", **limit)).train[0].kind == "bytes"


def test_bad_rows_of_sorted_input_are_those_of_the_first_span(tmp_path: Path) -> None:
    """Whoever scores the last rows sorts all of them, and what is bad among the first ones is not his."""
    path = _log(tmp_path / "log.csv", list(range(100))[::-1], bad_before=[3, 50, 99])
    job = _job(path, order="time", split=TIME | {"progressive": 0.5}, max_bad_rows=3)
    plan = plan_input(job)
    assert {span.kind for span in plan.train} == {"sorted"}
    counts = {}
    for name, spans in (("train", plan.train), ("validation", plan.validation), ("test", plan.test)):
        bad = BadRows(3)
        assert _weights(job, spans, bad)
        counts[name] = (bad.count, [row.line for row in bad.first])
    assert counts == {"train": (3, [5, 53, 103]), "validation": (0, []), "test": (0, [])}
    # The first span may come after others, as one that is given back does.
    bad = BadRows(3)
    _weights(job, plan.train[::-1], bad)
    assert bad.count == 3
    with pytest.raises(
        DataError, match=r"3 malformed rows, more than data.max_bad_rows = \d+; the first is .*log\.csv:5: "
    ):
        _weights(job, plan.train, BadRows(2))


def test_a_file_that_grows_after_the_plan_is_refused_by_the_reader(tmp_path: Path) -> None:
    job = _job(_log(tmp_path / "log.csv", list(range(30_000))[::-1]), order="time", sort_limit_bytes=1 << 20)
    plan = plan_input(job)
    _log(tmp_path / "log.csv", list(range(40_000))[::-1])
    with pytest.raises(DataError, match=r"above data\.sort_limit_bytes"):
        _weights(job, plan.train)


def test_a_span_that_is_read_twice_is_the_same(tmp_path: Path) -> None:
    """Rule "A batch is a pure function", whoever reads it: a sorted input is read anew by another reader."""
    times = np.random.default_rng(2).permutation(500).tolist()
    job = _job(_log(tmp_path / "log.csv", times), order="time", shuffle_window=64)
    (span,) = plan_input(job).train

    def labels() -> list[list[float]]:
        source = JobInput(job)
        batches = source.batches(span, epoch=0, seed=1, batch=64, shuffle_window=64, bad_rows=BadRows(0))
        return [batch.weights.tolist() for batch in batches]

    first = labels()
    assert first == labels()
    rows = list(chain.from_iterable(first))
    assert sorted(rows) == list(range(500))
    assert rows != list(range(500))


@pytest.mark.parametrize("change", ["come", "grown", "gone", ""])
@pytest.mark.parametrize("how", ["sorted", "last"])
def test_rows_that_depend_on_all_files_are_read_of_the_files_of_the_plan_alone(
    tmp_path: Path, how: str, change: str
) -> None:
    """A reader that joins later, or the process of a validation, reads all files again."""
    for number in range(3):
        _log(tmp_path / f"{number}.csv", list(range(100 - number, 0, -1)))
    section = {"order": "time"} if how == "sorted" else {"split": {"by": "last", "column": "x"}}
    job = _job(str(tmp_path / "*.csv"), **section)
    spans = plan_input(job).train
    before = _weights(job, spans)
    if change == "come":
        _log(tmp_path / "3.csv", [5])
    elif change == "grown":
        _log(tmp_path / "2.csv", list(range(500)))
    elif change:
        (tmp_path / "2.csv").unlink()
    if not change:
        assert _weights(job, spans) == before
        return
    with pytest.raises(DataError, match="files are others than when the job planned its input"):
        _weights(job, spans[:1])
