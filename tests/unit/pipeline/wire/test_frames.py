"""Messages to frames and back: whole messages, and what a sender may refuse to send."""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from shadowsync.pipeline.errors import ProtocolError
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire import frames as frames_module
from shadowsync.pipeline.wire.field_checks import MAX_INTEGER, MOST_COUNT, Bounds, Count, Counts, Size
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import MESSAGES, Delivery, Lookup, RequestMessage, Vectors
from shadowsync.pipeline.wire.schema import Message, TensorField
from shadowsync.tests.support.data.batches import BATCH_IDS

INTEGERS = st.integers(-MAX_INTEGER, MAX_INTEGER)
COUNTS = st.integers(0, MAX_INTEGER)
BODIES = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=10,
    ),
    max_size=4,
)

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: INTEGERS,
    float: st.floats(allow_nan=False),
    tuple[int, ...]: st.lists(INTEGERS, max_size=5).map(tuple),
    Count: COUNTS,
    Annotated[int, Bounds(-1)]: st.integers(-1, MAX_INTEGER),
    Size: st.floats(0, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(max_size=200),
    bytes: st.binary(max_size=40),
    tuple[Count, ...]: st.lists(COUNTS, max_size=5).map(tuple),
    BatchId: BATCH_IDS,
    dict[str, Any]: BODIES,
    list[Any]: BODIES.map(lambda body: list(body.values())),
    Counts: st.dictionaries(st.text(max_size=8), st.integers(0, MOST_COUNT) | st.floats(0, MOST_COUNT)),
}


def tensors(field: TensorField) -> st.SearchStrategy[Any]:
    shape = st.tuples(*[st.integers(0, 5)] * field.rank)
    return shape.flatmap(lambda sizes: arrays(field.dtype, sizes))


def messages() -> st.SearchStrategy[Message]:
    """Any message of any kind, with whatever its fields may hold."""
    kinds = []
    for schema in MESSAGES.values():
        hints = typing.get_type_hints(schema.cls, include_extras=True)
        fields = {name: VALUES[hints[name]] for name, _ in schema.header}
        fields |= {field.name: tensors(field) for field in schema.tensors}
        kinds.append(st.builds(schema.cls, **fields))
    return st.one_of(kinds)


def on_the_wire(message: Message) -> list[bytes]:
    return [bytes(memoryview(frame)) for frame in encode(message)]


def assert_same(one: Message, other: Message) -> None:
    assert type(one) is type(other)
    for field in dataclasses.fields(one):  # type: ignore[arg-type]
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            assert (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
        else:
            assert (type(mine), mine) == (type(theirs), theirs)


@settings(max_examples=300)
@given(messages())
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    assert_same(decode(on_the_wire(message)), message)


def test_every_kind_has_its_own_name() -> None:
    assert [schema.cls.KIND for schema in MESSAGES.values()] == list(MESSAGES)
    assert len({schema.cls for schema in MESSAGES.values()}) == len(MESSAGES) == 31


@settings(max_examples=300)
@given(messages(), st.data())
def test_one_flipped_bit_of_a_header_is_noticed(message: Message, data: st.DataObject) -> None:
    wire = on_the_wire(message)
    bit = data.draw(st.integers(0, len(wire[0]) * 8 - 1))
    flipped = bytearray(wire[0])
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError, match="checksum"):
        decode([bytes(flipped), *wire[1:]])


def test_tensors_are_neither_copied_out_nor_in() -> None:
    values = np.arange(12, dtype=np.float32)
    frames = encode(Vectors(request=1, version=2, values=values))
    received = decode([frames[0], memoryview(frames[1])])
    assert frames[1] is values
    assert isinstance(received, Vectors)
    assert np.shares_memory(received.values, values)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(np.zeros((2, 3), np.float64), id="type"),
        pytest.param(np.zeros((2, 3), ">f4"), id="byte order"),
        pytest.param(np.zeros(6, np.float32), id="rank"),
        pytest.param(np.zeros((3, 2), np.float32).T, id="columns first"),
        pytest.param(np.zeros((2, 6), np.float32)[:, ::2], id="gaps"),
    ],
)
def test_a_tensor_other_than_declared_is_not_sent(values: Any) -> None:
    nothing = np.zeros(0, np.float32)
    good = Delivery(
        1, 0, BatchId(0, 0, 0, 0), nothing, np.zeros((2, 3), np.float32), np.zeros((1, 2), np.int32)
    )
    encode(good)
    with pytest.raises(ValueError, match=r"delivery\.dense: .*C-contiguous float32 of rank 2"):
        encode(dataclasses.replace(good, dense=values))


@given(st.integers(0, 3))
def test_a_tensor_that_may_be_omitted_is_sent_only_when_it_has_values(items: int) -> None:
    """So that a batch without weights of items has the bytes that it had before there were any."""
    fields: dict[str, Any] = {"sequence": 1, "pass_number": 0, "id": BatchId(0, 0, 1, 1)}
    fields |= {"labels": np.ones(2, np.float32), "dense": np.zeros((2, 1), np.float32)}
    fields |= {"rows": np.zeros((0, 2), np.int32), "bag_lengths": np.array([[items, 0]], np.int32)}
    fields |= {"bag_rows": np.arange(items, dtype=np.int32)}
    weights = np.arange(items, dtype=np.float32)
    sent = encode(Delivery(**fields, item_weights=weights))
    # With the labels before them, of which this batch has no further ones.
    assert len(sent) == (9 if items else 7)
    found = decode([bytes(memoryview(frame)) for frame in sent])
    assert isinstance(found, Delivery)
    np.testing.assert_array_equal(found.item_weights, weights)
    assert found.item_weights.dtype == np.float32
    # With the keys of other tables before them.
    sent = encode(Delivery(**fields, bag_keys=np.arange(items, dtype=np.uint64)))
    assert len(sent) == (11 if items else 7)
    found = decode([bytes(memoryview(frame)) for frame in sent])
    assert isinstance(found, Delivery)
    assert found.bag_keys.tolist() == list(range(items))
    assert found.bag_keys.dtype == np.uint64
    if not items:
        header = msgpack.unpackb(sent[0][4:])
        assert header[3] == [[2], [2, 1], [0, 2], [0], [0], [1, 2]]
        with pytest.raises(ProtocolError, match="delivery: 6 to 11 tensors are expected, 5 came"):
            decode([sent[0], *sent[2:]])


def test_a_header_above_the_bound_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    request_message = RequestMessage(number=1, verb="v", body=["x" * 1000])
    monkeypatch.setattr(frames_module, "MAX_HEADER_BYTES", 1020)
    encode(request_message)
    monkeypatch.setattr(frames_module, "MAX_HEADER_BYTES", 1010)
    with pytest.raises(ValueError, match="at most 1010 may be sent"):
        encode(request_message)


def test_a_tensor_above_the_bound_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    # The other side would drop the connection for it, and the request be sent again for ever.
    lookup = Lookup(request=1, rows=np.zeros(10, np.int32))
    monkeypatch.setattr(frames_module, "MAX_TENSOR_BYTES", 40)
    encode(lookup)
    monkeypatch.setattr(frames_module, "MAX_TENSOR_BYTES", 39)
    with pytest.raises(ValueError, match=r"lookup\.rows: 40 bytes; at most 39 may be sent"):
        encode(lookup)
