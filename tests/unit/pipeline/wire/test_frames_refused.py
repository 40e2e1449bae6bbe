"""What does not come from a sender of ours is refused by name, whatever it is, and nothing else happens."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync import PROTOCOL_VERSION
from shadowsync.pipeline.errors import ProtocolError
from shadowsync.pipeline.wire import frames as frames_module
from shadowsync.pipeline.wire.field_checks import MAX_TEXT_CHARACTERS
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import MESSAGES, Failure, Lookup, Push

Header = Callable[[Any], bytes]
V = PROTOCOL_VERSION
LOOKUP = [V, "lookup", [1, [], 0, 0, 0, False], [[2], [0, 0]]]
ROWS = bytes(8)
NO_BAGS = b""

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
# Some of these are right, so that the fuzzing gets to the later checks too.
SHAPES = st.lists(st.lists(st.sampled_from([0, 1, 2, 2**31, 2**62]), max_size=3), max_size=3)
PARTS = st.tuples(
    st.just(V), st.sampled_from(sorted(MESSAGES)) | PLAIN, st.lists(PLAIN, max_size=6) | PLAIN, SHAPES | PLAIN
)
FUZZED = settings(max_examples=400)


def test_the_control_message_is_taken(header: Header) -> None:
    taken = decode([header(LOOKUP), ROWS, NO_BAGS])
    assert isinstance(taken, Lookup)
    assert taken.rows.tolist() == [0, 0]


@FUZZED
@given(PARTS | PLAIN, st.lists(st.binary(max_size=12), max_size=3))
def test_any_header_is_a_message_or_refused(header: Header, parts: Any, rest: list[bytes]) -> None:
    refusal = ""
    try:
        message = decode([header(parts), *rest])
    except ProtocolError as error:
        refusal = str(error)
    else:
        # It is one of ours: its own sender would have sent the same.
        assert [bytes(memoryview(frame)) for frame in encode(message)[1:]] == rest
    assert len(refusal) < 1000


@FUZZED
@given(st.lists(st.binary(max_size=40), max_size=4), st.booleans())
def test_any_bytes_are_refused(
    checksummed: Callable[[bytes], bytes], frames: list[bytes], right_checksum: bool
) -> None:
    if frames and right_checksum:
        frames = [checksummed(frames[0]), *frames[1:]]
    with pytest.raises(ProtocolError):
        decode(frames)


@pytest.mark.parametrize("version", [0, 1, V + 1, "1", None, "x" * 9999])
def test_another_version_is_told_so(header: Header, version: Any) -> None:
    # The rest may be of any form: a later version may have changed it.
    for parts in ([version, "lookup", [1, [], 0, 0, 0, False], [[2]]], [version, {"kind": "new"}]):
        with pytest.raises(ProtocolError, match=r"protocol version .*; this is version 6; install the same"):
            decode([header(parts)])


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([V, "lookups", [1, []], [[2]]], id="name"),
        pytest.param([V, 7, [1, []], [[2]]], id="number"),
        pytest.param([V, ["lookup"], [1, [], 0, 0, 0, False], [[2]]], id="list"),
        pytest.param([V, "lookup", [1, [], 0, 0, 0, False]], id="too short"),
        pytest.param([V, "lookup", [1, [], 0, 0, 0, False], [[2]], 0], id="too long"),
    ],
)
def test_an_unknown_kind_is_refused(header: Header, parts: Any) -> None:
    with pytest.raises(ProtocolError, match="is of the unknown kind"):
        decode([header(parts), ROWS])


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "6 header values are expected"),
        ([1], "6 header values are expected"),
        ([1, [], 2], "6 header values are expected"),
        ({"request": 1, "counts": []}, "6 header values are expected"),
        (["1", [], 0, 0, 0, False], r"lookup\.request: an integer is expected, not '1'"),
        ([1, [0] * 5000, 0, 0, 0, False], r"lookup\.counts: a list of at most"),
        ([1, [1, "2"], 0, 0, 0, False], r"lookup\.counts\[1\]: an integer"),
    ],
)
def test_wrong_header_values_are_refused(header: Header, values: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode([header([V, "lookup", values, [[2], [0, 0]]]), ROWS, NO_BAGS])


@pytest.mark.parametrize(
    "shape", [[], [2, 1], [3], [1], [-2], [2.0], [True, True], ["2"], [2**31 + 1], [2**62], 2, None, {"0": 2}]
)
def test_a_shape_that_is_not_the_frames_is_refused(header: Header, shape: Any) -> None:
    with pytest.raises(ProtocolError, match=r"lookup\.rows: "):
        decode([header([V, "lookup", [1, [], 0, 0, 0, False], [shape, [0, 0]]]), ROWS, NO_BAGS])


def test_a_flag_is_no_size(header: Header) -> None:
    with pytest.raises(ProtocolError, match=r"lookup\.rows: the shape \[True\]"):
        decode([header([V, "lookup", [1, [], 0, 0, 0, False], [[True], [0, 0]]]), bytes(4), NO_BAGS])


@pytest.mark.parametrize("shape", [[2**31, 2**31], [2**30, 2**32], [2**16, 2**16], [2**31, 1]])
def test_sizes_that_overflow_are_refused(header: Header, shape: list[int]) -> None:
    # In 64 or in 32 bits their product times 4 is zero, which is what came.
    with pytest.raises(ProtocolError, match=r"vectors\.values: "):
        decode([header([V, "vectors", [1, 0, False, []], [shape]]), b""])


@pytest.mark.parametrize("size", [0, 7, 9, 12])
def test_a_frame_of_another_size_is_refused(header: Header, size: int) -> None:
    with pytest.raises(ProtocolError, match=rf"lookup\.rows: {size} bytes came for the shape \[2\]"):
        decode([header(LOOKUP), bytes(size), NO_BAGS])


@pytest.mark.parametrize("rest", [[], [ROWS], [ROWS, NO_BAGS, b""]])
def test_fewer_or_more_frames_are_refused(header: Header, rest: list[bytes]) -> None:
    with pytest.raises(ProtocolError, match="lookup: 2 to 3 tensors are expected"):
        decode([header(LOOKUP), *rest])


def test_more_shapes_than_tensors_are_refused(header: Header) -> None:
    for shapes in ([], [[2]], [[2], [0, 0], [2], [2]], "x", None):
        with pytest.raises(ProtocolError, match="lookup: 2 to 3 tensors are expected"):
            decode([header([V, "lookup", [1, [], 0, 0, 0, False], shapes]), ROWS, NO_BAGS])


def test_no_frames_and_no_header_are_refused() -> None:
    for frames in ([], [b""], [b"1234"]):
        with pytest.raises(ProtocolError, match=r"has no frames|the header has \d bytes"):
            decode(frames)


def test_a_header_above_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = encode(Failure(request=1, what="x" * 5000))
    monkeypatch.setattr(frames_module, "MAX_HEADER_BYTES", len(wire[0]) - 4)
    decode(wire)
    monkeypatch.setattr(frames_module, "MAX_HEADER_BYTES", len(wire[0]) - 5)
    with pytest.raises(ProtocolError, match=rf"the header has {len(wire[0])} bytes"):
        decode(wire)


def test_what_follows_the_header_is_refused(checksummed: Callable[[bytes], bytes]) -> None:
    body = msgpack.packb(LOOKUP)
    for wrong in (body + b"\0", body[:-1], b"\xc1", struct.pack(">BI", 0xDD, 2**32 - 1)):
        with pytest.raises(ProtocolError, match="not msgpack"):
            decode([checksummed(wrong), ROWS])


@pytest.mark.parametrize("depth", [10, 300, 900, 1000, 1015, 1023, 1100, 100_000])
def test_a_deep_nesting_is_refused(checksummed: Callable[[bytes], bytes], depth: int) -> None:
    nested = b"\x91" * depth + b"\xc0"
    values, shapes = b"\x92\x01\x90", b"\x91\x91\x02"
    place = [b"\x94\x01\xa6lookup\x92" + nested + b"\x90" + shapes, b"\x94\x01\xa6lookup" + values + nested]
    place += [b"\x94" + nested + b"\xa6lookup" + values + shapes, b"\x94\x01" + nested + values + b"\x90"]
    for body in place:
        with pytest.raises(ProtocolError):
            decode([checksummed(body), ROWS])


@pytest.mark.parametrize(
    "wrong",
    [[1, 2, 3], [1, 2, 3, -1], [1, 2, 3, True], [1, 2, 3, 2**63], [0.0] * 4, "abcd", "x" * 500_000, {}],
    ids=["three", "negative", "flag", "large", "floats", "text", "long text", "table"],
)
def test_a_wrong_batch_id_is_refused_in_few_words(header: Header, wrong: Any) -> None:
    frames = [header([V, "push", [1, wrong, 0, 1.0, [], 0, 0, 0, 0, 0], [[0], [0], [0, 0]]]), b"", b"", b""]
    with pytest.raises(ProtocolError, match=r"push\.id: a batch id is four integers") as refused:
        decode(frames)
    # It is sent back as a Failure, which must be readable there.
    assert len(str(refused.value)) < MAX_TEXT_CHARACTERS
    decode([bytes(memoryview(frame)) for frame in encode(Failure(request=0, what=str(refused.value)))])
    values = [1, [1, 2, 3, 4], 0, 1.0, [], 0, 0, 0, 0, 0]
    right = decode([header([V, "push", values, [[0], [0], [0, 0]]]), b"", b"", b""])
    assert isinstance(right, Push)
    assert right.gradients.shape == (0,)
    assert right.gradients.dtype == np.float32
