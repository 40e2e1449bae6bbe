"""Gzip files of several members with zeros between them, as gzip reads them, wherever they are."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.files import gunzip
from shadowsync.pipeline.data.files.gunzip import Gunzip
from shadowsync.pipeline.errors import DataError
from shadowsync.tests.support.data.schemas import read_all, schema_job

COLUMNS = {"y": "label", "x": "categorical"}
FIRST, SECOND = gzip.compress(b"y,x\n" + b"1,a\n" * 100), gzip.compress(b"0,b\n" * 100_000)


def unpacked(packed: bytes, room: int = 1 << 19) -> bytes:
    """All that a file has, in reads of at most `room`."""
    file, buffer, found = Gunzip(io.BytesIO(packed)), memoryview(bytearray(room)), bytearray()
    while count := file.readinto(buffer):
        found += buffer[:count]
    return bytes(found)


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 40)), min_size=1, max_size=5),
    st.integers(1, 64),
    st.integers(1, 400),
)
def test_members_and_padding_are_read_as_python_reads_them(
    members: list[tuple[bytes, int]], read_bytes: int, room: int
) -> None:
    packed = b"".join(gzip.compress(data) + bytes(zeros) for data, zeros in members)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gunzip, "_READ_BYTES", read_bytes)
        assert unpacked(packed, room) == gzip.decompress(packed) == b"".join(data for data, _ in members)


@pytest.mark.parametrize("where", ["local", "memory"])
@pytest.mark.parametrize("between", [0, 1, 512, 200_000])
@pytest.mark.parametrize("after", [0, 8, 100_000])
def test_a_log_has_all_its_rows(tmp_path: Path, where: str, between: int, after: int) -> None:
    packed = FIRST + bytes(between) + SECOND + bytes(after)
    folder = str(tmp_path) if where == "local" else f"memory:/{tmp_path}"
    with fsspec.open(f"{folder}/log.csv.gz", "wb") as file:
        file.write(packed)
    assert len(read_all(schema_job(f"{folder}/log.csv.gz", columns=COLUMNS))) == 100_100


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (FIRST + b"1,c\n", f"what begins at byte {len(FIRST)} is neither gzip nor zeros"),
        (FIRST + bytes(7) + b"x" + SECOND, f"what begins at byte {len(FIRST) + 7} is neither gzip nor zeros"),
        (FIRST + SECOND[:-20], f"that begins at byte {len(FIRST)} is cut off: the file ends at byte"),
        (FIRST + SECOND[:-20] + bytes(512), f"that begins at byte {len(FIRST)} is (damaged|cut off)"),
        (FIRST + SECOND[:3], f"that begins at byte {len(FIRST)} is cut off"),
        (FIRST[:-1] + b"\x01" + SECOND, "that begins at byte 0 is damaged"),
    ],
    ids=["text", "one byte", "cut", "cut and padded", "header", "size"],
)
@pytest.mark.parametrize("where", ["local", "memory"])
def test_anything_else_is_an_error_with_its_place(
    tmp_path: Path, where: str, packed: bytes, why: str
) -> None:
    folder = str(tmp_path) if where == "local" else f"memory:/{tmp_path}"
    with fsspec.open(f"{folder}/log.csv.gz", "wb") as file:
        file.write(packed)
    with pytest.raises(DataError, match=rf"log\.csv\.gz: .*{why}"):
        read_all(schema_job(f"{folder}/log.csv.gz", columns=COLUMNS))
