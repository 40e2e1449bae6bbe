"""What rows are drawn by: another name for each file, the same wherever the files lie together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from shadowsync.nodes.coordinator.checkpoint.resume import require_same_draws, require_same_job
from shadowsync.pipeline.config.data import SplitSection
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batches.negatives import NegativeSampler
from shadowsync.pipeline.data.batches.split import drawn_rows
from shadowsync.pipeline.data.files.row_names import RowNames
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.input.sample import sample_batches
from shadowsync.pipeline.jobfile.check import check_job
from shadowsync.pipeline.jobfile.load import job_of_tree, load_resolved, validate_saved_job
from shadowsync.pipeline.prepare.preparation import prepare_folder
from shadowsync.tests.support.data.schemas import schema_job, write_lines

COLUMNS = {"y": "label", "x": "categorical", "w": "weight"}
FRACTIONS = {"by": "fraction", "validation": 0.1, "test": 0.2}
DAYS, ROWS = 100, 12


def hive(folder: Path, days: int = DAYS, rows: int = ROWS) -> str:
    """One file name in each folder; the weight is the row's number. Returns the pattern of the files."""
    for day in range(days):
        place = folder / f"date={day:04d}" / "part-0.csv"
        place.parent.mkdir(parents=True)
        numbers = range(day * rows, (day + 1) * rows)
        write_lines(place, *(f"{n % 2},u{n % 7},{n + 1}" for n in numbers), header="y,x,w")
    return str(folder / "*" / "part-*.csv")


def job_of(path: str | list[str], **data: Any) -> Job:
    section = {"format": "csv", "path": path, "columns": COLUMNS} | data
    return job_of_tree({"data": section, "model": {"table_rows": 1000}})


def weights(job: Job, spans: list[Span], negatives: NegativeSampler | None = None) -> list[int]:
    source, found = JobInput(job), list[int]()
    for span in spans:
        batches = source.batches(
            span, epoch=0, seed=1, batch=64, shuffle_window=0, bad_rows=BadRows(0), negatives=negatives
        )
        found += [int(weight) for batch in batches for weight in batch.weights]
    return found


def parts(job: Job) -> list[list[int]]:
    plan = plan_input(job)
    return [weights(job, spans) for spans in (plan.train, plan.validation, plan.test)]


@pytest.mark.parametrize(
    ("patterns", "path", "name"),
    [
        (["/d/log.csv"], "/d/log.csv", "log.csv"),
        (["/d/*.csv"], "/d/a.csv", "a.csv"),
        (["/d/*/part.csv"], "/d/day=1/part.csv", "day=1/part.csv"),
        (["/d/**"], "/d/a/b/c.csv", "a/b/c.csv"),
        (["/d/a/*.csv", "/d/b/*.csv"], "/d/b/part.csv", "b/part.csv"),
        (["/d/a/../b/x.csv"], "/d/b/x.csv", "x.csv"),
        (["/d/a*/*.csv", "/d/ab/c/*.csv"], "/d/ab/c/x.csv", "ab/c/x.csv"),
        (["/x/d/*.csv", "/y/d/*.csv"], "/y/d/a.csv", "y/d/a.csv"),
        (["file:///d/*.csv"], "/d/a.csv", "a.csv"),
        (["s3://bucket/d/*/p.csv"], "s3://bucket/d/1/p.csv", "1/p.csv"),
        (["s3a://bucket/d/*/p.csv"], "s3://bucket/d/1/p.csv", "1/p.csv"),
        (["memory://d/*/p.csv"], "memory:///d/1/p.csv", "1/p.csv"),
        (["https://host/d/a.csv?v=1"], "https://host/d/a.csv?v=1", "a.csv?v=1"),
        (["/d/*.csv", "s3://d/*.csv"], "s3://d/a.csv", "s3/d/a.csv"),
        (["/d/*.csv", "s3://d/*.csv"], "/d/a.csv", "file/d/a.csv"),
        (["kafka://h:1/clicks"], "kafka://h:1/clicks/3", "clicks/3"),
        (["kafka://h:1/clicks", "kafka://g:1/clicks"], "kafka://g:1/clicks/3", "g:1/clicks/3"),
        (["/d/*.csv"], "/elsewhere/a.csv", "file/elsewhere/a.csv"),
        (["/d/run[[]1]/*.csv"], "/d/run[1]/a.csv", "a.csv"),
        (["/d/run[[]1]/[[]x-z]/*.csv", "/d/run[[]1]/b.csv"], "/d/run[1]/[x-z]/a.csv", "[x-z]/a.csv"),
        (["/d/run[1]/*.csv"], "/d/run1/a.csv", "run1/a.csv"),
        (["/d/[[]x-z]*/*.csv"], "/d/[x-z]1/a.csv", "[x-z]1/a.csv"),
        (["/d/*/\udcff.csv"], "/d/1/\udcff.csv", "1/\udcff.csv"),
    ],
)
def test_a_name_is_the_path_below_what_the_patterns_share(patterns: list[str], path: str, name: str) -> None:
    assert RowNames(patterns, "path").of(path) == name
    assert RowNames(patterns, "name").of(path) == path.rpartition("/")[2]


def test_files_of_one_name_are_drawn_apart(tmp_path: Path) -> None:
    """By their name alone the rows at one place of every file go to one part."""
    pattern = hive(tmp_path / "d")
    train, validation, test = parts(job_of(pattern, split=FRACTIONS))
    assert sorted(train + validation + test) == list(range(1, DAYS * ROWS + 1))
    # Standard errors are 16, 10 and 14.
    assert abs(len(train) - 840) < 64
    assert abs(len(validation) - 120) < 42
    assert abs(len(test) - 240) < 56
    by_name = {"by": "fraction", "test": 0.5, "draw_by": "name"}
    assert all(len(part) % DAYS == 0 for part in parts(job_of(pattern, split=by_name)))


def test_moved_data_are_drawn_as_before(tmp_path: Path) -> None:
    """Elsewhere, on another file system, and listed in another way."""
    first = job_of(hive(tmp_path / "d", 20, 50), split=FRACTIONS)
    want = parts(first)
    shutil.move(tmp_path / "d", tmp_path / "e" / "f")
    assert parts(job_of(str(tmp_path / "e/f/*/part-*.csv"), split=FRACTIONS)) == want
    listed = [str(path) for path in sorted((tmp_path / "e/f").glob("*/*.csv"))]
    assert parts(job_of([*listed, listed[0]], split=FRACTIONS)) == want
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "e/f"), "/moved", recursive=True)
    try:
        there = ["memory://moved/*/part-*.csv", "memory://moved/date=0000/part-0.csv"]
        assert parts(job_of(there, split=FRACTIONS)) == want
    finally:
        memory.rm("/moved", recursive=True)
    renamed = tmp_path / "e/f/date=0003/part-1.csv"
    (renamed.parent / "part-0.csv").rename(renamed)
    train, *_ = parts(job_of(str(tmp_path / "e/f/*/part-*.csv"), split=FRACTIONS))
    of_others = [number for number in train if not 150 < number <= 200]
    assert of_others == [number for number in want[0] if not 150 < number <= 200]
    assert train != want[0]


def test_prepared_rows_are_drawn_like_those_of_the_files(tmp_path: Path) -> None:
    tree = job_of(hive(tmp_path / "d", 30, 20), split=FRACTIONS).model_dump(mode="json", by_alias=True)
    prepare_folder(job_of_tree(tree), tmp_path / "prepared")
    raw = job_of_tree(tree)
    tree["data"]["prepared"] = str(tmp_path / "prepared")
    assert parts(job_of_tree(tree)) == parts(raw)


def test_negatives_of_files_of_one_name_are_drawn_apart(tmp_path: Path) -> None:
    def kept(draw_by: str) -> list[int]:
        job = job_of(str(tmp_path / "d/*/*.csv"), split={"draw_by": draw_by})
        return weights(job, plan_input(job).train, NegativeSampler(0.5, 0))

    hive(tmp_path / "d", 100, 4)
    # Numbers 1, 3, ... are negatives: two in each file.
    places = {number % 4 for number in kept("name") if number % 2}
    assert len(places) < 2
    negatives = [number for number in kept("path") if number % 2]
    assert {number % 4 for number in negatives} == {1, 3}
    assert 60 < len(negatives) < 140


def test_a_sample_has_as_many_examples_as_wanted_from_small_files(tmp_path: Path) -> None:
    job = job_of(hive(tmp_path / "d"))
    spans = plan_input(job).train
    assert sum(map(len, sample_batches(job, spans, 600))) == 600
    assert sum(map(len, sample_batches(job, spans, 5_000))) == DAYS * ROWS
    batches = list(sample_batches(job, spans, 5_000))
    seen = sorted(int(weight) for batch in batches for weight in batch.weights)
    assert seen == list(range(1, DAYS * ROWS + 1))


@pytest.mark.parametrize("look", [plan_input, check_job])
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_one_file_under_two_names_is_refused(
    tmp_path: Path, link: Callable[[Path, Path], None], look: Callable[[Job], object]
) -> None:
    path = write_lines(tmp_path / "a.csv", *["1,u,1"] * 50, header="y,x,w")
    link(tmp_path / "b.csv", path)
    for split in (FRACTIONS, {"by": "order", "test": 0.1}, {"progressive": 0.1}):
        with pytest.raises(
            DataError, match=r"b\.csv: is the same file as .*a\.csv, so its rows would be in several"
        ):
            look(job_of(str(tmp_path / "*.csv"), split=split, shuffle_window=0))
    assert len(plan_input(job_of(str(tmp_path / "*.csv"))).train) == 2


@pytest.mark.parametrize(("given", "part"), [("validation", "to validate on"), ("test", "to test on")])
def test_an_empty_part_is_refused(tmp_path: Path, given: str, part: str) -> None:
    path = write_lines(tmp_path / "a.csv", *(f"{n % 2},u,{n}" for n in range(20)), header="y,x,w")
    with pytest.raises(DataError, match=f"data.split leaves no row {part}; change the fractions"):
        plan_input(job_of(str(path), split={"by": "fraction", given: 0.0001}))
    with pytest.raises(DataError, match="leaves no row to train on"):
        plan_input(job_of(str(path), split={"by": "fraction", given: 0.9999}))
    assert plan_input(job_of(str(path), split={"by": "fraction", given: 0.5}))


@pytest.mark.parametrize(
    ("split", "part"),
    [
        ({"validation": 0.01}, "to validate on"),
        ({"test": 0.01, "validation": 0.5}, "to test on"),
        ({"test_from": 21}, "to test on"),
        ({"validation_from": 21}, "to validate on"),
        ({"validation_from": 15, "test_from": 15}, "to validate on"),
    ],
)
def test_an_empty_part_by_time_is_refused(tmp_path: Path, split: dict[str, Any], part: str) -> None:
    path = write_lines(tmp_path / "a.csv", *(f"{n % 2},u,{n}" for n in range(20)), header="y,x,t")
    columns = {"y": "label", "x": "categorical", "t": "timestamp"}
    with pytest.raises(DataError, match=f"data.split leaves no row {part}"):
        plan_input(schema_job(path, columns=columns, order="time", split={"by": "time", **split}))


def test_a_run_from_before_the_key_keeps_its_draws(tmp_path: Path) -> None:
    tree = job_of(str(tmp_path / "train.csv")).model_dump(mode="json", by_alias=True)
    assert validate_saved_job(tree, where="here").data.split.draw_by == "path"
    del tree["data"]["split"]["draw_by"]
    assert validate_saved_job(tree, where="here").data.split.draw_by == "name"
    file = tmp_path / "job.json"
    file.write_text(json.dumps(tree), encoding="utf-8")
    assert load_resolved(file).data.split.draw_by == "name"
    # As they were drawn.
    split = SplitSection(by="fraction", test=0.5, seed=3, draw_by="name")
    drawn = drawn_rows(Span(0, "/d/x=1/p.csv", "bytes", 7, 99, "test"), "p.csv", 0, 12, split)
    assert np.flatnonzero(drawn).tolist() == [0, 2, 3, 4, 6, 8, 11]


def test_a_resumed_run_is_not_drawn_anew(tmp_path: Path) -> None:
    then = job_of([str(tmp_path / "d/*/p.csv")], split=FRACTIONS)
    spans = [Span(0, str(tmp_path / "d/1/p.csv"), "bytes", 0, 9)]
    require_same_draws(then.data, then.data, spans)
    now = job_of(str(tmp_path / "d/1/p.csv"), split=FRACTIONS)
    with pytest.raises(
        DataError, match=r"would be drawn by 'p\.csv', and the resumed run drew them by '1/p\.csv'"
    ):
        require_same_draws(now.data, then.data, spans)
    plain = job_of(str(tmp_path / "d/1/p.csv"))
    require_same_draws(plain.data, plain.data, spans)
    by_name = job_of([str(tmp_path / "d/*/p.csv")], split=FRACTIONS | {"draw_by": "name"})
    with pytest.raises(JobFileError, match=r"data\.split\.draw_by is 'path' instead of 'name'"):
        require_same_job(then, by_name)
    require_same_job(plain, job_of(str(tmp_path / "d/1/p.csv"), split={"draw_by": "name"}))
