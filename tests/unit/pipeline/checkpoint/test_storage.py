"""A checkpoint in a storage is there whole or not at all, and the one before stays until it is."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.checkpoint.best_note import BestNote
from shadowsync.pipeline.checkpoint.files import FileEntry, write_tensors
from shadowsync.pipeline.checkpoint.manifest import CheckpointManifest, manifest_content
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.checkpoint.run_checkpoints import StoredCheckpoints
from shadowsync.pipeline.checkpoint.saved import open_saved, own_checkpoint, read_saved
from shadowsync.pipeline.checkpoint.storage import CheckpointStorage, Owner, split_address
from shadowsync.pipeline.checkpoint.store.addresses import part_target
from shadowsync.pipeline.checkpoint.store.contract import StorageError
from shadowsync.pipeline.checkpoint.store.local import LocalStore
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.tests.support.tables.saved_shards import manifest_of_files

NOTE = BestNote("ne", 0.75, 123, "input")


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(f"file://{tmp_path}/storage")


def parts(storage: CheckpointStorage, value: float, directory: str = "") -> tuple[str, list[FileEntry]]:
    """A node's files, full of `value`, without a manifest."""
    directory = directory or f"{storage.url}/{storage.begin()}"
    tensors = {f"t{n}": np.full((50, 4), value, np.float32) for n in range(3)}
    return directory, write_tensors(part_target(directory), "dense", tensors, {"role": "dense"}, 1300)


def commit(storage: CheckpointStorage, directory: str, files: list[FileEntry]) -> int:
    return storage.commit(directory.rpartition("/")[2], manifest_of_files(files))


def save(storage: CheckpointStorage, value: float) -> int:
    directory, files = parts(storage, value)
    number = commit(storage, directory, files)
    storage.sweep(())
    return number


def value_at(location: str) -> float:
    place, manifest = open_saved(location, verify=True)
    return float(TensorReader(place, manifest.files).read("t1")[7, 2])


def names(storage: CheckpointStorage) -> set[str]:
    root = storage.url.removeprefix("file://")
    return {name.partition("/")[0].rpartition("-")[0] or name for name in LocalStore(Path(root)).list()}


def test_the_newest_one_opens_and_the_one_before_is_swept(storage: CheckpointStorage) -> None:
    assert save(storage, 1.0) == 1
    assert value_at(storage.url) == 1.0
    assert save(storage, 2.0) == 2
    assert value_at(storage.url) == value_at(f"{storage.url}/") == value_at(storage.address(2)) == 2.0
    assert storage.numbers() == [2]
    assert names(storage) == {"checkpoint", "parts-000002"}
    with pytest.raises(CheckpointError, match="checkpoint-000001: there is no checkpoint"):
        open_saved(storage.address(1))


def test_all_rows_come_back_from_split_files(storage: CheckpointStorage) -> None:
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "large": np.arange(4000, dtype=np.float32).reshape(1000, 4),
        "one": np.array(7, np.int64),
    }
    directory = f"{storage.url}/{storage.begin()}"
    files = write_tensors(part_target(directory), "dense", tensors, {"role": "dense", "x": "y"}, 3000)
    assert len(files) > 5
    commit(storage, directory, files)
    place, manifest = open_saved(storage.url)
    reader = TensorReader(place, manifest.files)
    assert {metadata["x"] for metadata in reader.metadata.values()} == {"y"}
    for name, values in tensors.items():
        read = reader.read(name)
        assert np.array_equal(read, values)
        assert (read.shape, read.dtype) == (values.shape, values.dtype)
        assert read.flags.writeable
    assert np.array_equal(reader.read_rows("large", 390, 640), tensors["large"][390:640])


def test_a_crash_between_parts_and_manifest_leaves_the_old_one(storage: CheckpointStorage) -> None:
    save(storage, 1.0)
    parts(storage, 2.0)
    assert value_at(storage.url) == 1.0
    # What is left of it goes with the next one.
    assert save(storage, 3.0) == 2
    assert value_at(storage.url) == 3.0
    assert names(storage) == {"checkpoint", "parts-000002"}


def test_the_control_a_manifest_that_is_written_first_loses_the_old_one(storage: CheckpointStorage) -> None:
    """So that the test above can fail: this is what it would look like."""
    save(storage, 1.0)
    directory, files = parts(storage, 2.0)
    root = LocalStore(Path(storage.url.removeprefix("file://")))
    root.delete([files[0].name])
    with pytest.raises(CheckpointError, match="the file is missing"):
        commit(storage, directory, files)
    assert value_at(storage.url) == 1.0, "no manifest without its files"
    content = manifest_content(manifest_of_files(files))
    root.put("checkpoint-000002/manifest.json", [content])
    with pytest.raises(CheckpointError, match="the file is missing"):
        value_at(storage.url)


def test_of_two_jobs_in_one_storage_the_second_is_refused(storage: CheckpointStorage) -> None:
    mine, my_files = parts(storage, 1.0)
    theirs, their_files = parts(storage, 2.0)
    assert commit(storage, mine, my_files) == 1
    with pytest.raises(StorageError, match="another job has written checkpoint 1"):
        commit(storage, theirs, their_files)
    assert value_at(storage.url) == 1.0


def test_files_of_an_earlier_checkpoint_stay_while_a_later_one_names_them(storage: CheckpointStorage) -> None:
    _, whole = parts(storage, 1.0, f"{storage.url}/{storage.begin()}")
    directory = f"{storage.url}/{whole[0].name.partition('/')[0]}"
    commit(storage, directory, whole)
    prefix = f"{storage.url}/{storage.begin()}"
    changes = write_tensors(
        part_target(prefix), "changes", {"c": np.zeros(3, np.float32)}, {"role": "changes"}
    )
    commit(storage, prefix, [*whole, *changes])
    storage.sweep(())
    assert storage.numbers() == [2]
    assert names(storage) == {"checkpoint", "parts-000001", "parts-000002"}
    assert value_at(storage.url) == 1.0
    save(storage, 3.0)
    assert names(storage) == {"checkpoint", "parts-000003"}


def test_an_altered_file_is_found_when_it_is_fetched(storage: CheckpointStorage) -> None:
    save(storage, 1.0)
    place, manifest = open_saved(storage.url)
    path = Path(storage.url.removeprefix("file://")) / manifest.files[0].name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    reader = TensorReader(place, manifest.files)
    with pytest.raises(CheckpointError, match="was altered: its SHA-256 differs"):
        [reader.read(name) for name in reader.names]
    path.write_bytes(content[:-8])
    with pytest.raises(CheckpointError, match=r"the file has \d+ bytes; its manifest states"):
        open_saved(storage.url)
    path.write_bytes(b"x" * len(content))
    with pytest.raises(CheckpointError, match="cannot be read"):
        TensorReader(place, manifest.files)


def test_what_was_fetched_leaves_no_file_and_no_descriptor(
    storage: CheckpointStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    save(storage, 1.0)
    # What earlier tests left to the collector is not closed meanwhile.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    place, manifest = open_saved(storage.url)
    reader = TensorReader(place, manifest.files)
    assert [len(reader.read(name)) for name in reader.names] == [50, 50, 50]
    assert list(scratch.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) > before, "the control: they are open while they are needed"
    assert not isinstance(place, Path)
    place.release()
    assert len(os.listdir("/proc/self/fd")) == before
    assert float(reader.read("t0")[0, 0]) == 1.0


def test_one_that_is_replaced_while_it_is_read_is_read_again(storage: CheckpointStorage) -> None:
    save(storage, 1.0)
    seen = []

    def read(place: Any, manifest: CheckpointManifest) -> float:
        seen.append(str(place))
        if len(seen) == 1:
            save(storage, 2.0)
        return float(TensorReader(place, manifest.files).read("t1")[0, 0])

    assert read_saved(storage.url, read) == 2.0
    assert seen == [storage.address(1), storage.address(2)]


def test_best_is_a_pointer_and_what_it_points_to_stays(storage: CheckpointStorage) -> None:
    checkpoints = StoredCheckpoints(storage)

    def take(value: float) -> None:
        directory, files = parts(storage, value, checkpoints.begin())
        checkpoints.commit(directory, manifest_of_files(files))

    take(1.0)
    with pytest.raises(CheckpointError, match="no best checkpoint was kept"):
        open_saved(storage.url, which="best")
    candidate = checkpoints.pin(1)
    take(2.0)
    assert storage.numbers() == [1, 2], "a pinned one stays"
    checkpoints.promote(candidate, NOTE)
    checkpoints.drop(candidate)
    take(3.0)
    assert storage.numbers() == [1, 3], "and the best one"
    assert checkpoints.best == storage.address(1)
    place, _ = open_saved(storage.url, which="auto")
    assert not isinstance(place, Path)
    assert place.note == NOTE
    assert open_saved(storage.url)[0].note is None  # type: ignore[union-attr]
    checkpoints.promote(checkpoints.pin(2), NOTE)
    checkpoints.end()
    assert storage.numbers() == [3]


def test_the_newest_stay_and_are_found_by_their_examples(storage: CheckpointStorage) -> None:
    checkpoints = StoredCheckpoints(storage, keep=2)
    for examples in (10, 20, 30):
        directory, files = parts(storage, float(examples), checkpoints.begin())
        manifest = manifest_of_files(files).model_copy(update={"examples_trained": examples})
        checkpoints.commit(directory, manifest)
    assert storage.numbers() == [2, 3]
    place, manifest = open_saved(storage.url, which="step-20")
    assert manifest.examples_trained == 20
    assert str(place) == storage.address(2)
    assert float(TensorReader(place, manifest.files).read("t1")[0, 0]) == 20.0
    with pytest.raises(CheckpointError, match="take one of last, best, step-20, step-30"):
        open_saved(storage.url, which="step-10")


def test_the_best_one_is_taken_over_only_where_values_compare(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    save(storage, 1.0)
    storage.set_best(1, NOTE)
    checkpoints = StoredCheckpoints(storage, 1)
    assert checkpoints.adopt_best(storage.address(1), lambda note: note == NOTE) == NOTE
    assert checkpoints.adopt_best(storage.address(1), lambda _: False) is None
    assert storage.best() is None
    storage.set_best(1, NOTE)
    elsewhere = StoredCheckpoints(CheckpointStorage.open(f"file://{tmp_path}/elsewhere"))
    with pytest.raises(CheckpointError, match="stays where it is"):
        elsewhere.adopt_best(storage.url, lambda note: note == NOTE)
    assert elsewhere.adopt_best(storage.url, lambda _: False) is None


def test_what_the_job_resumed_stays_until_it_ends(storage: CheckpointStorage) -> None:
    save(storage, 1.0)
    checkpoints = StoredCheckpoints(storage, 1)
    directory, files = parts(storage, 2.0, checkpoints.begin())
    checkpoints.commit(directory, manifest_of_files(files))
    assert storage.numbers() == [1, 2]
    checkpoints.end()
    assert storage.numbers() == [2]


def test_a_replacement_takes_only_what_this_run_has_written(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    assert own_checkpoint(storage.url, "") is None
    save(storage, 1.0)
    storage.pass_to(Owner("next", "digest", 2))
    assert own_checkpoint(storage.url, "") is None, "the one before is of the run that was resumed"
    save(storage, 2.0)
    assert own_checkpoint(storage.url, "") == storage.url
    assert own_checkpoint("", str(tmp_path)) is None


def test_a_storage_that_does_not_answer_keeps_the_sweep_for_later(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(storage, 1.0)
    directory, files = parts(storage, 2.0)
    commit(storage, directory, files)

    def gone(*_: object) -> None:
        raise StorageError("does not answer")

    with monkeypatch.context() as without:
        without.setattr(LocalStore, "delete", gone)
        storage.sweep(())
    assert storage.numbers() == [1, 2]
    storage.sweep(())
    assert storage.numbers() == [2]


def test_a_run_folder_leads_to_its_storage(storage: CheckpointStorage, tmp_path: Path) -> None:
    save(storage, 1.0)
    (tmp_path / "job.json").write_text(json.dumps({"run": {"storage": storage.url}}))
    assert value_at(str(tmp_path)) == 1.0
    assert str(open_saved(tmp_path)[0]) == storage.address(1)
    (tmp_path / "job.json").write_text(json.dumps({"run": {}}))
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        open_saved(tmp_path)


def test_addresses() -> None:
    assert split_address("s3://b/p/checkpoint-000042/") == ("s3://b/p", 42)
    assert split_address("s3://b/p/") == ("s3://b/p", None)
    assert split_address("s3://b/p/checkpoint-42") == ("s3://b/p/checkpoint-42", None)
