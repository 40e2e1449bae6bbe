"""Shared memory without a name: the same bytes on both sides, nothing else opened, nothing left."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.wire.segment import (
    HEAD_BYTES,
    LARGEST_BYTES,
    CreatedSegment,
    OpenedSegment,
    SegmentError,
    running_kernel,
)
from shadowsync.tests.support.leaks import memory_descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memory without a name")
SIZE = HEAD_BYTES + 8192


@pytest.fixture
def own() -> Iterator[CreatedSegment]:
    made = CreatedSegment(SIZE)
    yield made
    made.close()


def offer(own: CreatedSegment, **changes: Any) -> dict[str, Any]:
    reported = {
        "pid": os.getpid(),
        "descriptor": own.descriptor,
        "size_bytes": own.size_bytes,
        "boot": running_kernel(),
        "token": own.token,
    }
    return reported | changes


def test_what_one_side_writes_the_other_reads(own: CreatedSegment) -> None:
    other = OpenedSegment(**offer(own))
    ours, theirs = own.floats(HEAD_BYTES + 4, 5), other.floats(HEAD_BYTES + 4, 5)
    assert not theirs.any()
    ours[:] = range(1, 6)
    assert theirs.tolist() == [1, 2, 3, 4, 5]
    theirs[2] = 9
    assert ours[2] == 9
    # The control: beside it is other memory.
    assert other.floats(HEAD_BYTES + 24, 5).tolist() == [0] * 5


@pytest.mark.parametrize(
    ("offset", "count"),
    [(0, 1), (HEAD_BYTES - 4, 1), (HEAD_BYTES + 2, 1), (HEAD_BYTES, 2049), (SIZE, 1), (-4, 1), (2**62, 1)],
)
def test_what_is_no_part_of_it_is_refused(own: CreatedSegment, offset: int, count: int) -> None:
    with pytest.raises(SegmentError, match=f"{count} floats at {offset} are not within {SIZE} bytes"):
        own.floats(offset, count)
    assert own.floats(HEAD_BYTES, 2048).size == 2048


def test_another_than_was_told_is_refused(own: CreatedSegment) -> None:
    before = memory_descriptors()
    for changes, why in (
        ({"boot": "another"}, "on another machine"),
        ({"token": "00" * 16}, "belongs to another process"),
        ({"size_bytes": SIZE - 4096}, f"it has {SIZE} bytes, not a fixed size of {SIZE - 4096}"),
        ({"size_bytes": 0}, "its size is 0"),
        ({"size_bytes": LARGEST_BYTES + 1}, "its size is"),
        ({"descriptor": 987_654}, "cannot be opened"),
        ({"descriptor": -1}, "cannot be opened"),
        ({"pid": -1}, "cannot be opened"),
    ):
        with pytest.raises(SegmentError, match=why):
            OpenedSegment(**offer(own, **changes))
    # Of them all, since each count collects all garbage.
    assert memory_descriptors() == before


def test_a_file_with_a_name_is_not_opened(own: CreatedSegment, tmp_path: Path) -> None:
    named = tmp_path / "file"
    named.write_bytes(bytes.fromhex(own.token) + bytes(SIZE - 16))
    descriptor = os.open(named, os.O_RDWR)
    try:
        with pytest.raises(SegmentError, match="is not memory of a worker"):
            OpenedSegment(**offer(own, descriptor=descriptor))
    finally:
        os.close(descriptor)


def test_memory_that_could_be_cut_is_refused(own: CreatedSegment) -> None:
    """Whoever has it mapped would be killed by a signal."""
    descriptor = os.memfd_create("shadowsync-rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, SIZE)
        os.pwrite(descriptor, bytes.fromhex(own.token), 0)
        with pytest.raises(SegmentError, match="not a fixed size"):
            OpenedSegment(**offer(own, descriptor=descriptor))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        OpenedSegment(**offer(own, descriptor=descriptor))
    finally:
        os.close(descriptor)


def test_its_size_is_for_good(own: CreatedSegment) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(own.descriptor, 0)


def test_nothing_is_left_and_arrays_keep_the_memory() -> None:
    before = memory_descriptors()
    values = None
    for _ in range(4):
        own = CreatedSegment(SIZE)
        other = OpenedSegment(**offer(own))
        own.floats(HEAD_BYTES, 4)[:] = 7
        values = other.floats(HEAD_BYTES, 4)
        own.close()
        own.close()
        with pytest.raises(SegmentError, match="cannot be opened"):
            OpenedSegment(**offer(own))
        del own, other
        np.testing.assert_array_equal(values, np.full(4, 7, np.float32))
    del values
    assert memory_descriptors() == before
