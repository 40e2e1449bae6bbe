"""Text comes in whole lines, each in one span, from plain and compressed files, or as a told error."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.files.text import MAX_LINE_BYTES, count_newlines, line_blocks
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError


def _text(span: Span, block_bytes: int = 1 << 16) -> bytes:
    return b"".join(block.buffer[: block.stop].tobytes() for block in line_blocks(span, block_bytes))


def _whole(path: Path, kind: str = "bytes") -> Span:
    return Span(0, str(path), kind, 0, path.stat().st_size)  # type: ignore[arg-type]


def _zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


@given(
    st.lists(st.sampled_from([b"", b"\r", b"a", b"bcd", b"\t", b"12345678", b"e\r"]), max_size=30),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.lists(st.integers(0, 200), max_size=8),
    st.integers(1, 40),
)
def test_adjacent_spans_have_each_line_once(
    tmp_path: Path, lines: list[bytes], end: bytes, ended: bool, cuts: list[int], block_bytes: int
) -> None:
    """Whatever the lines, their ends, the boundaries of the spans and the size of a block."""
    data = end.join(lines) + (end if ended and lines else b"")
    path = tmp_path / "a.tsv"
    path.write_bytes(data)
    begins = [0, *(at + 1 for at, byte in enumerate(data) if byte == ord("\n")), len(data)]
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for start, stop in itertools.pairwise(edges):
        if start < stop:
            whole = [data[a:b] for a, b in itertools.pairwise(begins) if start <= a < min(b, stop)]
            want = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in whole)
            assert _text(Span(0, str(path), "bytes", start, stop), block_bytes) == want


@pytest.mark.parametrize("block_bytes", [1, 2, 7, 64, 1 << 20])
@pytest.mark.parametrize("pack", [gzip.compress, _zstd])
def test_compressed(tmp_path: Path, log: Path, block_bytes: int, pack: Callable[[bytes], bytes]) -> None:
    """One member or several, cut in the middle of lines, are the same text."""
    data = log.read_bytes()[:3000]
    path = tmp_path / ("a.gz" if pack is gzip.compress else "a.zst")
    path.write_bytes(pack(data))
    want = data if data.endswith(b"\n") else data + b"\n"
    assert _text(_whole(path, "stream"), block_bytes) == want
    path.write_bytes(pack(data[:1001]) + pack(b"") + pack(data[1001:]))
    assert _text(_whole(path, "stream"), block_bytes) == want


@pytest.mark.parametrize("keep", [0.2, 0.9, 0.999])
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", _zstd)])
def test_truncated(
    tmp_path: Path, log: Path, keep: float, members: int, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(log.read_bytes())
    path = tmp_path / f"a{suffix}"
    path.write_bytes(packed * (members - 1) + packed[: int(keep * len(packed))])
    with pytest.raises(DataError, match=r"a\.(gz|zst).*cannot be read"):
        _text(_whole(path, "stream"))


def test_corrupt(tmp_path: Path, log: Path) -> None:
    packed = bytearray(gzip.compress(log.read_bytes()))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "a.gz"
    path.write_bytes(packed)
    with pytest.raises(DataError, match=r"a\.gz"):
        _text(_whole(path, "stream"))


@pytest.mark.parametrize(
    ("name", "head", "says"),
    [
        ("a.tsv", b"\x1f\x8b\x08", "gzip.*ending in .gz"),
        ("a.tsv", b"\x28\xb5\x2f\xfd", "zstd.*ending in .zst"),
        ("a.gz", b"\x28\xb5\x2f\xfd", "zstd"),
        ("a.gz", b"0\t1\t2", "not gzip.*drop .gz"),
        ("a.zst", b"0\t1\t2", "not zstd.*drop .zst"),
        ("a.tsv", b"PAR1", 'data.format = "parquet"'),
        ("a.tsv", b"PK\x03\x04", "zip.*use gzip or zstd"),
    ],
)
def test_name_and_content_disagree(tmp_path: Path, name: str, head: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(head + b"rest\n")
    with pytest.raises(DataError, match=says):
        _text(_whole(path, "stream" if "." in name and not name.endswith("tsv") else "bytes"))


@pytest.mark.parametrize("block_bytes", [1 << 12, 1 << 19, 1 << 22])
@pytest.mark.parametrize("extra", [0, 1])
def test_a_line_too_long_does_not_fill_the_memory(tmp_path: Path, block_bytes: int, extra: int) -> None:
    """One byte more than allowed, before the end of the file, is told while the line is being read."""
    path = tmp_path / "a.tsv"
    path.write_bytes(b"x\n" + b"y" * (MAX_LINE_BYTES + extra + (block_bytes if extra else 0)))
    if extra:
        with pytest.raises(DataError, match=r"a\.tsv: has a line of more than 1048576 bytes"):
            _text(_whole(path), block_bytes)
    else:
        assert len(_text(_whole(path), block_bytes)) == 3 + MAX_LINE_BYTES


def test_a_file_that_became_shorter(log: Path) -> None:
    size = log.stat().st_size
    spans = [Span(0, str(log), "bytes", 0, size), Span(1, str(log), "bytes", size - 5, size)]
    with log.open("rb+") as file:
        file.truncate(size // 2)
    for span in spans:
        with pytest.raises(DataError, match="became shorter"):
            _text(span)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.tsv", tmp_path):
        with pytest.raises(DataError, match=r"cannot be read") as caught:
            _text(Span(0, str(path), "bytes", 0, 10))
        assert str(path) in str(caught.value)


def test_count_newlines(log: Path) -> None:
    data = log.read_bytes()
    for stop in (0, 1, 100, len(data), len(data) + 5):
        assert count_newlines(str(log), stop) == data[:stop].count(b"\n")
