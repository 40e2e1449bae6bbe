"""New files of an input that grows: which count, and what their spans are."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.coordinator.input import follower
from shadowsync.nodes.coordinator.input.follower import GrowingInput, NewFiles, Version
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.plan import KnownInput, plan_input

ONE: Version = (10, 1)
OTHER: Version = (20, 2)


def test_a_file_counts_once_it_stays_the_same() -> None:
    new = NewFiles(["old"])
    assert new.find_changes({"old": ONE, "a": ONE}) == ([], [])
    # It grows, and then it does not.
    assert new.find_changes({"old": ONE, "a": OTHER}) == ([], [])
    assert new.find_changes({"old": ONE, "a": OTHER, "b": ONE}) == (["a"], [])
    assert new.find_changes({"old": ONE, "a": OTHER, "b": ONE}) == (["b"], [])
    assert new.find_changes({"old": ONE, "a": OTHER, "b": ONE}) == ([], [])


def test_an_empty_file_does_not_count_and_one_of_unknown_size_does() -> None:
    new = NewFiles([])
    found: dict[str, Version] = {"empty": (0, 1), "unknown": (None, 0)}
    assert new.find_changes(found) == ([], [])
    assert new.find_changes(found) == (["unknown"], [])
    assert new.find_changes({"empty": ONE}) == ([], [])
    assert new.find_changes({"empty": ONE}) == (["empty"], [])


def test_a_file_that_goes_away_begins_again() -> None:
    new = NewFiles([])
    new.find_changes({"a": ONE})
    assert new.find_changes({}) == ([], [])
    assert new.find_changes({"a": ONE}) == ([], [])
    assert new.find_changes({"a": ONE}) == (["a"], [])
    assert new.find_changes({}) == ([], [])
    assert new.find_changes({"a": ONE}) == ([], []), "it is known"


def test_a_known_file_that_changes_is_told_once() -> None:
    new = NewFiles(["old"])
    assert new.find_changes({"old": ONE}) == ([], [])
    assert new.find_changes({"old": OTHER}) == ([], ["old"])
    assert new.find_changes({"old": OTHER}) == ([], [])
    new.find_changes({"a": ONE, "old": OTHER})
    assert new.find_changes({"a": ONE, "old": ONE}) == (["a"], ["old"])
    assert new.find_changes({"a": OTHER, "old": ONE}) == ([], ["a"])


def job_of(folder: Path, **data: Any) -> Job:
    section = {
        "format": "csv",
        "path": [str(folder / "*.csv")],
        "columns": {"clicked": {"kind": "label"}, "ad": {"kind": "categorical"}},
        "follow": True,
    }
    return Job.model_validate({"data": section | data})


def write(folder: Path, name: str, rows: int = 3, head: str = "clicked,ad") -> Path:
    path = folder / name
    path.write_text("\n".join([head, *(f"{row % 2},a{row}" for row in range(rows))]) + "\n", encoding="utf-8")
    return path


def growing(job: Job) -> GrowingInput:
    return GrowingInput(job, tuple(plan_input(job).train), {})


def test_spans_of_new_files_go_on_with_the_numbers(tmp_path: Path) -> None:
    write(tmp_path, "m.csv")
    job = job_of(tmp_path)
    own = growing(job)
    assert own.find_new_spans().spans == ()
    for name in ("z.csv", "a.csv"):
        write(tmp_path, name)
    assert own.find_new_spans().spans == ()
    found = own.find_new_spans()
    assert found.files == 2
    assert [(span.number, Path(span.path).name) for span in found.spans] == [(1, "a.csv"), (2, "z.csv")]
    assert own.find_new_spans().spans == ()


def test_messages_that_are_gone_before_they_were_planned_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "kafka://broker:1/clicks/0"
    offsets = iter([(0, 12), (20, 30), (20, 31)])
    monkeypatch.setattr(follower, "match_files", lambda *_, **__: [path])
    monkeypatch.setattr(follower, "offsets_of", lambda *_: next(offsets))
    own = GrowingInput(job_of(Path("/"), path=["kafka://broker:1/clicks"], header=False), (), {})
    assert own.find_new_spans().notes == ()
    found = own.find_new_spans()
    assert found.notes == (f"messages 12 to 19 of {path} are gone: they are not trained on",)
    assert [(span.start, span.stop) for span in found.spans] == [(20, 30)]
    assert own.find_new_spans().notes == ()


def test_a_topic_that_became_shorter_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "kafka://broker:1/clicks/0"
    ends = iter([12, 4, 5, 13])
    monkeypatch.setattr(follower, "match_files", lambda *_, **__: [path])
    monkeypatch.setattr(follower, "offsets_of", lambda *_: (0, next(ends)))
    own = GrowingInput(job_of(Path("/"), path=["kafka://broker:1/clicks"], header=False), (), {})
    assert [(span.start, span.stop) for span in own.find_new_spans().spans] == [(0, 12)]
    found = own.find_new_spans()
    assert found.spans == ()
    (note,) = found.notes
    assert note.startswith(
        f"{path} ends at message 4, but was planned up to 12: it was made anew, or lost messages"
    )
    assert own.find_new_spans() == dataclasses.replace(found, notes=()), "once"
    assert [(span.start, span.stop) for span in own.find_new_spans().spans] == [(12, 13)]


def test_known_spans_come_first_and_their_files_may_be_gone(tmp_path: Path) -> None:
    paths = [write(tmp_path, name) for name in ("m.csv", "z.csv")]
    job = job_of(tmp_path)
    known = [Span(number, str(path), "bytes", 0, 21) for number, path in enumerate(reversed(paths))]
    assert plan_input(job, KnownInput(known)).train == known
    write(tmp_path, "a.csv")
    paths[1].unlink()
    assert plan_input(job, KnownInput(known, others=False)).train == known
    *before, added = plan_input(job, KnownInput(known)).train
    assert before == known
    assert (added.number, added.path) == (2, str(tmp_path / "a.csv"))
    for path in tmp_path.iterdir():
        path.unlink()
    assert plan_input(job, KnownInput(known)).train == known
    with pytest.raises(DataError, match="matches no file"):
        plan_input(job)


def test_another_name_of_a_known_file_is_not_new(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv")
    own = growing(job_of(tmp_path))
    (tmp_path / "link.csv").symlink_to(path)
    own.find_new_spans()
    assert own.find_new_spans().spans == ()


def test_files_of_the_test_are_not_trained_on(tmp_path: Path) -> None:
    write(tmp_path, "m.csv")
    (tmp_path / "eval").mkdir()
    held_out = write(tmp_path / "eval", "e.csv")
    own = growing(job_of(tmp_path, eval_path=[str(held_out)]))
    (tmp_path / "e.csv").symlink_to(held_out)
    own.find_new_spans()
    assert own.find_new_spans().spans == ()


def test_a_file_that_does_not_fit_is_named(tmp_path: Path) -> None:
    write(tmp_path, "m.csv")
    own = growing(job_of(tmp_path))
    bad = write(tmp_path, "z.csv", head="clicked,other")
    own.find_new_spans()
    with pytest.raises(DataError) as caught:
        own.find_new_spans()
    assert str(bad) in str(caught.value)


def test_without_any_file_for_a_moment_it_looks_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "m.csv")
    own = growing(job_of(tmp_path))
    aside = tmp_path / "aside"
    os.rename(path, aside)
    assert own.find_new_spans().spans == ()
    os.rename(aside, path)
    shutil.copy(path, tmp_path / "n.csv")
    own.find_new_spans()
    assert [Path(span.path).name for span in own.find_new_spans().spans] == ["n.csv"]
    assert caplog.text == "", "files that were trained on may go"


def test_where_it_cannot_look_it_says_so_and_looks_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "m.csv")
    own = growing(job_of(tmp_path))
    shutil.copy(tmp_path / "m.csv", tmp_path / "n.csv")
    own.find_new_spans()

    def fails(*_: Any, **__: Any) -> list[str]:
        raise DataError("does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(follower, "match_files", fails)
        assert own.find_new_spans().spans == ()
    assert "new files could not be looked for: does not answer" in caplog.text
    assert [Path(span.path).name for span in own.find_new_spans().spans] == ["n.csv"]


def test_an_input_that_stays_out_of_reach_is_told_once_and_so_is_its_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "m.csv")
    own = growing(job_of(tmp_path))

    def fails(*_: Any, **__: Any) -> list[str]:
        raise DataError("does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(follower, "match_files", fails)
        notes = [own.find_new_spans().notes for _ in range(4)]
    told = "new input cannot be looked for, and the job goes on trying: does not answer"
    assert notes == [(), (told,), (), ()]
    assert [own.find_new_spans().notes for _ in range(2)] == [("new input can be looked for again",), ()]
    with monkeypatch.context() as patched:
        patched.setattr(follower, "match_files", fails)
        assert own.find_new_spans().notes == (), "one alone may be a file that has just gone"
    assert own.find_new_spans().notes == ()
