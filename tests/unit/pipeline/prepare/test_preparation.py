"""Making a prepared folder: interrupted and gone on with, beside others, over others, and what it states."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.data.prepared.manifest import read_prepared
from shadowsync.pipeline.errors import DataError, ResourceError
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.folder import PROGRESS_NAME, SavedProgress
from shadowsync.pipeline.prepare.preparation import PreparationStatus, Prepared, prepare_folder
from shadowsync.pipeline.prepare.run import PreparationRun
from shadowsync.tests.support.data.prepared import Tree, batches_of, csv_job, csv_lines

from .conftest import BAD_EVERY, ROWS


class Killed(BaseException):
    """Ends a preparation anywhere, as a signal would."""


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _killed_after(calls: int) -> Callable[[PreparationStatus], None]:
    left = calls

    def on_progress(_: PreparationStatus) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    return on_progress


def _until_done(job: Job, folder: Path, calls: int) -> int:
    """Calls `prepare` again and again, each killed after so many chunks; gives how often."""
    for times in range(200):
        try:
            prepare_folder(job, folder, on_progress=_killed_after(calls))
        except Killed:
            assert not (folder / "manifest.json").exists()
            continue
        return times
    raise AssertionError("it never came to its end")


def test_interrupted_anywhere_it_gives_the_same_bytes(
    source: Tree, prepared: tuple[Path, Prepared], tmp_path: Path
) -> None:
    times = _until_done(job_of_tree(source), tmp_path / "out", 2)
    assert times > 2, "it was interrupted, and went on"
    found, want = _files(tmp_path / "out"), _files(prepared[0])
    assert found == want
    assert PROGRESS_NAME not in found
    assert len([name for name in found if name.endswith(".parquet")]) > 5


def test_a_compressed_file_goes_on_within_itself(tmp_path: Path) -> None:
    """Its complete parts are not written again."""
    (tmp_path / "all.csv.gz").write_bytes(gzip.compress(csv_lines(9000, 3, 300).encode()))
    job = job_of_tree(csv_job(tmp_path / "all.csv.gz"))
    prepare_folder(job, tmp_path / "once")
    with pytest.raises(Killed):
        prepare_folder(job, tmp_path / "out", on_progress=_killed_after(2))
    first = tmp_path / "out" / "train-00000.parquet"
    before = first.stat().st_mtime_ns, first.stat().st_ino
    done = prepare_folder(job, tmp_path / "out")
    assert 0 < done.parts_before < len(done.manifest.parts)
    assert (first.stat().st_mtime_ns, first.stat().st_ino) == before
    assert _files(tmp_path / "out") == _files(tmp_path / "once")
    # Parts cut chunks, and what is counted of their ids with them.
    (tmp_path / "all.csv").write_text(csv_lines(9000, 3, 300))
    prepare_folder(job_of_tree(csv_job(tmp_path / "all.csv")), tmp_path / "plain")
    folders = ("plain", "out")
    plain, cut = (json.loads((tmp_path / name / "statistics.json").read_bytes())["ids"] for name in folders)
    assert plain == cut


def test_what_it_states(source: Tree, prepared: tuple[Path, Prepared]) -> None:
    folder, done = prepared
    manifest = read_prepared(str(folder))
    assert manifest == done.manifest
    assert not done.reused
    train = manifest.roles[0]
    job, bad = job_of_tree(source), BadRows(1000)
    batches = list(batches_of(job))
    assert train.rows == sum(map(len, batches)) == ROWS + ROWS // 2 - ROWS // BAD_EVERY
    assert train.positives == sum(int(batch.labels.sum()) for batch in batches)
    assert train.bad_rows == ROWS // BAD_EVERY
    assert len(train.bad_samples) == 5
    assert f"a.csv:{BAD_EVERY + 1}: 3 columns, not 6: not,a,row" in train.bad_samples[0]
    assert [Path(file.path).name for file in manifest.order.files] == ["a.csv", "b.csv"]
    assert [file.bytes for file in manifest.order.files] == [
        Path(file.path).stat().st_size for file in manifest.order.files
    ]
    columns = {column.name: column for column in manifest.columns}
    assert list(columns) == ["y", "price", "hour", "user", "tags", "at", "w"]
    assert columns["price"].transform == "sign(y) log(1 + |y|), y = (x - 1) / 2; 0 where missing"
    assert (columns["tags"].stored, columns["tags"].table_rows) == ("list<int32>", 300)
    assert bad.count == 0


def test_a_complete_folder_is_left_alone_and_another_order_refused(
    source: Tree, prepared: tuple[Path, Prepared]
) -> None:
    before = _files(prepared[0])
    assert prepare_folder(job_of_tree(source), prepared[0]).reused
    assert prepare_folder(job_of_tree(source | {"trainer": {"batch": 7}}), prepared[0]).reused
    missing, spans = (source["data"] | change for change in ({"missing": ["?"]}, {"span_bytes": 1 << 17}))
    for change, word in (
        ({"model": {"table_rows": 301, "embedding_dim": 4}}, "differs: the rows of the tables"),
        ({"data": missing}, r"differs: the settings of \[data\] that define a row"),
        ({"data": spans}, "what differs: data.span_bytes"),
    ):
        with pytest.raises(DataError, match=word):
            prepare_folder(job_of_tree(source | change), prepared[0])
    assert _files(prepared[0]) == before


def test_force_begins_anew(source: Tree, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        prepare_folder(job_of_tree(source), tmp_path / "out", on_progress=_killed_after(3))
    other = job_of_tree(source | {"model": {"table_rows": 301, "embedding_dim": 4}})
    with pytest.raises(DataError, match="was prepared with other settings"):
        prepare_folder(other, tmp_path / "out")
    done = prepare_folder(other, tmp_path / "out", force=True)
    assert done.parts_before == 0
    assert done.manifest.order.tables == {"user": 301, "tags": 301}


def test_force_removes_nothing_for_a_job_that_cannot_be_prepared(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(csv_lines(100))
    job, out = job_of_tree(csv_job(tmp_path / "all.csv")), tmp_path / "out"
    prepare_folder(job, out)
    before = _files(out)
    (tmp_path / "all.csv").unlink()
    with pytest.raises(DataError, match=r"all\.csv: matches no file"):
        prepare_folder(job, out, force=True)
    assert _files(out) == before


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "all.csv", tmp_path / "out"
    path.write_text(csv_lines(4000))
    job = job_of_tree(csv_job(path))

    def touched(reported: PreparationStatus) -> None:
        if reported.bytes_done:
            os.utime(path, ns=(1, 1))

    with pytest.raises(DataError, match=r"all\.csv: changed while it was prepared; .*--force"):
        prepare_folder(job, out, on_progress=touched)
    assert not (out / "manifest.json").exists()
    with pytest.raises(DataError, match=r"what differs: the source files, their sizes .*--force"):
        prepare_folder(job, out)
    assert prepare_folder(job, out, force=True).manifest.rows == 4000


@pytest.mark.parametrize(("share", "least", "most"), [(1e9, 5, 99), (0.0, 2, 3)], ids=["always", "never"])
def test_how_far_it_is_is_saved_in_a_share_of_the_time(
    source: Tree,
    prepared: tuple[Path, Prepared],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    least: int,
    most: int,
) -> None:
    """Before the first part, after the first piece and at the end; in between as rarely as is wanted."""
    saved = []
    save = SavedProgress.save

    def counted(progress: SavedProgress, folder: Path) -> None:
        saved.append(progress.pieces)
        save(progress, folder)

    monkeypatch.setattr(SavedProgress, "save", counted)
    monkeypatch.setattr(PreparationRun, "save_share", share)
    prepare_folder(job_of_tree(source), tmp_path / "out")
    assert least <= len(saved) <= most
    assert (*saved[:2], saved[-1]) == (0, 1, max(saved))
    assert _files(tmp_path / "out") == _files(prepared[0])


def test_a_part_that_was_lost_meanwhile_is_seen(source: Tree, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        prepare_folder(job_of_tree(source), tmp_path / "out", on_progress=_killed_after(3))
    (tmp_path / "out" / "train-00000.parquet").unlink()
    with pytest.raises(DataError, match=r"train-00000\.parquet: is missing"):
        prepare_folder(job_of_tree(source), tmp_path / "out")
    with pytest.raises(Killed):
        prepare_folder(job_of_tree(source), tmp_path / "out", force=True, on_progress=_killed_after(3))
    (tmp_path / "out" / "train-00000.values").unlink()
    with pytest.raises(DataError, match=r"train-00000\.values: is missing; start over with --force"):
        prepare_folder(job_of_tree(source), tmp_path / "out")
    (tmp_path / "out" / PROGRESS_NAME).write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cannot be read .*--force"):
        prepare_folder(job_of_tree(source), tmp_path / "out")


def test_foreign_files_and_other_processes_are_respected(source: Tree, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(DataError, match=r"contains notes\.txt, which shadowsync prepare did not write"):
            prepare_folder(job_of_tree(source), tmp_path / "mine", force=force)
    assert _files(tmp_path / "mine") == {"notes.txt": b"mine"}
    (tmp_path / "busy").mkdir()
    held = os.open(tmp_path / "busy", os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="is being prepared by another process"):
            prepare_folder(job_of_tree(source), tmp_path / "busy")
    finally:
        os.close(held)
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="file"):
        prepare_folder(job_of_tree(source), tmp_path / "file")


@pytest.mark.parametrize("force", [False, True])
def test_files_of_others_that_are_called_like_parts_stay(
    source: Tree, prepared: tuple[Path, Prepared], tmp_path: Path, force: bool
) -> None:
    """A log whose files are called so, in the folder that is given for the parts by mistake."""
    log = tmp_path / "log"
    generate_log(log, examples=100, eval_examples=0, seed=1, files=2, data_format="parquet")
    (log / "log.json").unlink()
    before = _files(log)
    data = {"format": "parquet", "path": str(log / "*.parquet")}
    own = job_of_tree({"data": data, "model": {"table_rows": 100}})
    for job in (own, job_of_tree(source)):
        with pytest.raises(DataError, match=r"contains train-000\.parquet, which shadowsync prepare did not"):
            prepare_folder(job, log, force=force)
    assert _files(log) == before
    # Not even where a preparation was before.
    for name in ("manifest.json", "statistics.json"):
        (log / name).write_bytes((prepared[0] / name).read_bytes())
    with pytest.raises(DataError, match=r"contains the source file train-000\.parquet; give another folder"):
        prepare_folder(own, log, force=force)
    assert before.items() <= _files(log).items()


def test_what_was_killed_while_it_removed_a_folder_is_still_its_own(
    source: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folder, unlink = job_of_tree(source), tmp_path / "out", Path.unlink
    prepare_folder(job, folder)
    want, left = _files(folder), 3

    def killed(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(Killed):
        prepare_folder(job, folder, force=True)
    monkeypatch.undo()
    assert any(name.endswith(".parquet") for name in _files(folder))
    with pytest.raises(DataError, match="start over with --force"):
        prepare_folder(job, folder)
    prepare_folder(job, folder, force=True)
    assert _files(folder) == want


def test_too_many_bad_rows_and_none_that_is_good(source: Tree, tmp_path: Path) -> None:
    few = job_of_tree(source | {"data": source["data"] | {"max_bad_rows": 5}})
    with pytest.raises(
        DataError, match=r"6 malformed rows, more than data.max_bad_rows = \d+; the first is .*a.csv:501"
    ):
        prepare_folder(few, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    # With the limit raised it goes on, and the rows that were counted are counted once.
    done = prepare_folder(job_of_tree(source), tmp_path / "out")
    assert done.manifest.bad_rows == ROWS // BAD_EVERY
    lines = csv_lines(100).splitlines(keepends=True)
    bad_late = "".join([*lines, *(["not,a,row\n"] * 40)])
    (tmp_path / "none.csv").write_text(bad_late.replace("\n0,", "\nx,").replace("\n1,", "\nx,"))
    with pytest.raises(DataError, match="column y: 'x' are neither 0 nor 1"):
        prepare_folder(job_of_tree(csv_job(tmp_path / "none.csv")), tmp_path / "none")


def test_a_malformed_row_of_a_small_first_file_stops_nothing(tmp_path: Path) -> None:
    lines = csv_lines(1000).splitlines(keepends=True)
    (tmp_path / "a.csv").write_text("".join([*lines[:50], "not,a,row\n"]))
    (tmp_path / "b.csv").write_text("".join([lines[0], *lines[50:]]))
    job = csv_job(tmp_path / "*.csv")
    done = prepare_folder(job_of_tree(job), tmp_path / "out")
    assert (done.manifest.rows, done.manifest.bad_rows) == (1000, 1)
    # The control: of the whole input it is too much.
    strict = job | {"data": job["data"] | {"max_bad_fraction": 0.0009}}
    with pytest.raises(DataError, match=r"1 malformed row, 0.1% of 1,001 rows"):
        prepare_folder(job_of_tree(strict), tmp_path / "strict")


def test_progress_rises_to_the_whole(source: Tree, tmp_path: Path) -> None:
    reported: list[PreparationStatus] = []
    done = prepare_folder(job_of_tree(source), tmp_path / "out", on_progress=reported.append)
    assert [one.rows for one in reported] == sorted(one.rows for one in reported)
    assert reported[-1].rows == done.manifest.rows
    assert reported[-1].bytes_done == reported[-1].bytes_all > 0
    assert 0 < reported[len(reported) // 2].bytes_done < reported[-1].bytes_all
