"""The state of a center that merges comes back from a checkpoint, cut otherwise, to the bit."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from shadowsync.nodes.sync.center import CenterState
from shadowsync.nodes.sync.saved_state import CenterMemory, read_center_state, write_center_state
from shadowsync.nodes.sync.slice_merges import SliceMerges
from shadowsync.pipeline.checkpoint.files import FileEntry
from shadowsync.pipeline.checkpoint.manifest import begin, commit
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.center_messages import CenterContribution, CenterSeed
from shadowsync.sync_algos.decoupled import Decoupled, DecoupledOptions
from shadowsync.tests.support.data.plain_job import plain_job
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.sync.center_messages import floats
from shadowsync.tests.support.tables.saved_shards import manifest_of_files

LENGTH = 90
CLIENTS = (b"a/shadow", b"b/shadow", b"c/shadow")
NAMES = Decoupled.center_state_names


class Cut:
    """A center of three trainers, cut at these places; no clock matters, since all come at once."""

    def __init__(self, *bounds: int, first: Float32Array) -> None:
        self.parts = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
        self.slices: list[CenterState] = []
        self.requests = 0
        for part in self.parts:
            algorithm = Decoupled(DecoupledOptions(quorum=3))
            state = CenterState(algorithm.center_rule, None, SliceMerges(algorithm))
            state.seed(CenterSeed(1, part.start, part.stop, part.start, first[part].copy()))
            self.slices.append(state)

    def merge(self, number: int) -> None:
        """One merge; what the trainers send is told by its number."""
        self.requests += 1
        for part, state in zip(self.parts, self.slices, strict=True):
            for place, client in enumerate(CLIENTS):
                values = floats(LENGTH, 10 * number + place)[part]
                message = CenterContribution(
                    self.requests, part.start, len(values), 0, values.view(np.uint8), 10 + place
                )
                state.exchange(client, message, float(number))
            while state.closes_at(number + 2.0) <= number + 2.0:
                state.close_merge(number + 2.0)

    @property
    def values(self) -> Float32Array:
        return np.concatenate([state.values.numpy() for state in self.slices if state.values is not None])

    def memories(self) -> list[CenterMemory]:
        """The state of each slice."""
        return [
            state.merges.memory(part.stop - part.start)
            for part, state in zip(self.parts, self.slices, strict=True)
            if state.merges is not None
        ]


def job(folder: Path, algorithm: str = "decoupled", *, resume: bool = True) -> Job:
    """A job that goes on with what is in the folder."""
    start = {"checkpoint": str(folder), "resume": resume}
    return plain_job(1, 1, trainer={"count": 2}, sync={"algorithm": algorithm}, start=start)


def save(folder: Path, cut: Cut, *, with_state: bool = True, algorithm: str = "decoupled") -> None:
    """Write a checkpoint that has the state of the slices alone."""
    partial = begin(folder)
    files: list[FileEntry] = []
    for index, (part, memory) in enumerate(zip(cut.parts, cut.memories(), strict=True)):
        files += write_center_state(partial, index, part.start, memory) if with_state else []
    manifest = manifest_of_files(files)
    sync = {"sync": {"algorithm": algorithm}}
    commit(partial, manifest.model_copy(update={"job": {**manifest.job, **sync}}))


@pytest.fixture
def first() -> Float32Array:
    return floats(LENGTH, 1)


def gone_on(folder: Path, before: Cut, *bounds: int) -> Cut:
    """Another center that begins with the values and the saved state of one before."""
    after = Cut(*bounds, first=before.values)
    for part, state in zip(after.parts, after.slices, strict=True):
        memory = present(read_center_state(job(folder), NAMES, part.start, part.stop))
        assert state.merges is not None
        state.merges.remember(memory)
    return after


@pytest.mark.parametrize("bounds", [(0, LENGTH), (0, 30, 90), (0, 45, 90), (0, 10, 20, 90)])
def test_a_center_that_goes_on_is_the_uninterrupted_one_to_the_bit(
    tmp_path: Path, first: Float32Array, bounds: tuple[int, ...]
) -> None:
    whole, before = Cut(0, 45, LENGTH, first=first), Cut(0, 45, LENGTH, first=first)
    for number in range(12):
        whole.merge(number)
    for number in range(6):
        before.merge(number)
    save(tmp_path, before)
    after, without = gone_on(tmp_path, before, *bounds), Cut(*bounds, first=before.values)
    assert [memory.merges for memory in after.memories()] == [6] * (len(bounds) - 1)
    for number in range(6, 12):
        after.merge(number)
        without.merge(number)
    np.testing.assert_array_equal(after.values, whole.values)
    # The control begins without momentum.
    assert np.abs(without.values - whole.values).max() > 0.1


def test_what_comes_back_is_not_what_is_saved_next(first: Float32Array) -> None:
    """A copy: the center goes on while its state is written."""
    cut = Cut(0, LENGTH, first=first)
    cut.merge(0)
    (memory,) = cut.memories()
    kept = {name: tensor.clone() for name, tensor in memory.tensors.items()}
    cut.merge(1)
    assert all(torch.equal(memory.tensors[name], kept[name]) for name in NAMES)
    assert not torch.equal(cut.memories()[0].tensors["momentum"], kept["momentum"])


def test_a_slice_without_a_merge_has_zeros_and_counts_as_the_others(
    tmp_path: Path, first: Float32Array
) -> None:
    cut = Cut(0, 45, LENGTH, first=first)
    idle = cut.slices.pop()
    part = cut.parts.pop()
    cut.merge(0)
    cut.slices.append(idle)
    cut.parts.append(part)
    save(tmp_path, cut)
    memory = present(read_center_state(job(tmp_path), NAMES, 0, LENGTH))
    assert memory.merges == 1
    assert not memory.tensors["momentum"][45:].any()
    assert memory.tensors["momentum"][:45].any()


def test_without_one_that_fits_the_center_begins_anew(
    tmp_path: Path, first: Float32Array, caplog: pytest.LogCaptureFixture
) -> None:
    cut = Cut(0, LENGTH, first=first)
    cut.merge(0)
    save(tmp_path / "old", cut, with_state=False)
    assert read_center_state(job(tmp_path / "old"), NAMES, 0, LENGTH) is None
    save(tmp_path / "other", cut, algorithm="easgd")
    assert read_center_state(job(tmp_path / "other"), NAMES, 0, LENGTH) is None
    save(tmp_path / "fits", cut)
    assert read_center_state(job(tmp_path / "fits", resume=False), NAMES, 0, LENGTH) is None
    assert read_center_state(job(tmp_path / "fits"), (), 0, LENGTH) is None
    assert not caplog.records
    assert read_center_state(job(tmp_path / "fits"), NAMES, 0, LENGTH + 1) is None
    assert "begins without momentum" in caplog.text


def test_a_damaged_file_is_named(tmp_path: Path, first: Float32Array) -> None:
    cut = Cut(0, LENGTH, first=first)
    save(tmp_path, cut)
    (file,) = (tmp_path / "checkpoint").glob("center-state-0*")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError) as caught:
        read_center_state(job(tmp_path), NAMES, 0, LENGTH)
    assert "center-state-0" in str(caught.value)
