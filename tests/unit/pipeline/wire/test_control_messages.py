"""Control messages: whatever their fields may hold comes back, and anything else is refused by its name."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from typing import Annotated, Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.checkpoint.files import FileEntry
from shadowsync.pipeline.errors import ExitCode, ProtocolError
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.base import Reply, Request, encode_body
from shadowsync.pipeline.wire.control.messages import (
    Hello,
    NodeFacts,
    Ready,
    SpanRead,
    StatusReply,
    TrainedBatch,
    TrainedBatches,
)
from shadowsync.pipeline.wire.control.orders import Drain, Finish
from shadowsync.pipeline.wire.control.profile import MeasureReply
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.field_checks import (
    MAX_DEPTH,
    MAX_FIELDS,
    MAX_INTEGER,
    MAX_ITEMS,
    MAX_KEYS,
    MAX_TABLE_VALUES,
    MAX_TEXT_CHARACTERS,
    MOST_COUNT,
    Bounds,
    fields_of,
)
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import RequestMessage
from shadowsync.tests.support.data.batches import BATCH_IDS

WHOLE = st.integers(-MAX_INTEGER, MAX_INTEGER)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: WHOLE,
    float: FINITE,
    bool: st.booleans(),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=16),
    int | float: st.integers(0, MOST_COUNT) | st.floats(0, MOST_COUNT),
    BatchId: BATCH_IDS,
    FileEntry: st.builds(
        FileEntry, st.just("a.bin"), st.integers(0, 9), st.just("0" * 64), st.text(max_size=8)
    ),
    dict[str, Any]: st.dictionaries(st.text(max_size=4), WHOLE, max_size=3),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may hold."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        inner, bound = arguments
        if isinstance(bound, Bounds) and inner is float:
            within = (None if math.isinf(limit) else limit for limit in (bound.least, bound.most))
            return st.floats(*within, allow_nan=False, allow_infinity=False)
        if isinstance(bound, Bounds):
            return st.integers(math.ceil(bound.least), math.floor(bound.most))
        return values(inner)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), values(arguments[1]), max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return st.none() | values(arguments[0])
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    return records(hint)


def records(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return st.builds(cls, **{field.name: values(hints[field.name]) for field in dataclasses.fields(cls)})


def travelled(message: Request[Any] | Reply) -> list[Any]:
    """Its values, through msgpack."""
    body: list[Any] = msgpack.unpackb(msgpack.packb(encode_body(message), use_bin_type=True), raw=False)
    return body


@pytest.mark.parametrize("verb", CONTROL_VERBS.verbs)
@settings(max_examples=10)
@given(st.data())
def test_whatever_its_fields_may_hold_comes_back(verb: str, data: st.DataObject) -> None:
    request = data.draw(records(CONTROL_VERBS.verbs[verb].request))
    assert CONTROL_VERBS.name_of(request) == verb
    assert CONTROL_VERBS.decode_request(verb, travelled(request)) == request
    reply = data.draw(records(CONTROL_VERBS.verbs[verb].reply))
    assert CONTROL_VERBS.decode_reply(verb, travelled(reply)) == reply


BATCH = TrainedBatch(BatchId(0, 1, 2, 3), 10, 1.0, 2.0, 10.0, 0.5)
TRAINED = TrainedBatches((BATCH, BATCH), (), 3)


def changed(request: Request[Any], place: list[Any], value: Any) -> list[Any]:
    body = travelled(request)
    inner = body
    for at in place[:-1]:
        inner = inner[at]
    inner[place[-1]] = value
    return body


@pytest.mark.parametrize(
    ("verb", "body", "why"),
    [
        ("trained", changed(TRAINED, [0, 1, 1], "x"), r"trained: batches\[1\]\.examples: an integer"),
        (
            "trained",
            changed(TRAINED, [0, 0, 2], 1e300),
            r"trained: batches\[0\]\.loss_sum: a finite number from 0",
        ),
        ("trained", changed(TRAINED, [0, 0, 1], 2**62), r"trained: batches\[0\]\.examples: a finite number"),
        ("span_read", changed(SpanRead(0, 0, 1, 1, 0), [3], 2**62), "span_read: examples: a finite number"),
        ("trained", changed(TRAINED, [0, 0, 0], [1, 2]), r"trained: batches\[0\]\.id: a batch id"),
        ("trained", changed(TRAINED, [0], [[]] * (MAX_ITEMS + 1)), "trained: batches: a list of at most"),
        ("trained", changed(TRAINED, [0, 0], 7), r"trained: batches\[0\]: a list of 8 values \(id, examples"),
        ("trained", changed(TRAINED, [2], None), "trained: synced_iterations: an integer"),
        ("finish", changed(Finish(ExitCode.OK, ""), [0], 99), "finish: exit_code: one of 0, 1"),
        ("finish", changed(Finish(ExitCode.OK, ""), [0], False), "finish: exit_code: one of 0, 1"),
        (
            "finish",
            changed(Finish(ExitCode.OK, ""), [1], "x" * (MAX_TEXT_CHARACTERS + 1)),
            "finish: why: a text",
        ),
        ("drain", changed(Drain({"r": {"t": 1}}), [0, "r", "t"], "x"), r"drain: sequences\['r'\]\['t'\]: an"),
        ("trace", [-0.5], "trace: seconds: a finite number from 0"),
        ("ready", changed(Ready(NodeFacts(rows=1)), [0, 0], "x"), r"ready: facts\.rows: an integer"),
        ("hello", changed(Hello("reader", "t", "d", "", 1, "h"), [0], b"reader"), "hello: role: a text"),
        ("hello", {}, r"hello: a list of 7 values \(role, token"),
        ("next_span", [1], r"next_span: a list of 0 values"),
        ("settle", [], "the unknown verb 'settle'"),
    ],
)
def test_anything_else_is_refused_by_verb_and_field(verb: str, body: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why) as refused:
        CONTROL_VERBS.decode_request(verb, body)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "counts", [{"a": "x"}, {"a": float("inf")}, {"a": True}, {"a": None}, {1: 2}, [], "a"]
)
def test_counts_are_finite_numbers(counts: Any) -> None:
    measures = MeasureReply(1.0, "m", 1, {"a": 1}, {}, {})
    assert CONTROL_VERBS.decode_reply("measure", travelled(measures)) == measures, "the control"
    body = encode_body(measures)
    body[3] = counts
    with pytest.raises(ProtocolError, match="the reply to measure: counts"):
        CONTROL_VERBS.decode_reply("measure", body)


def test_each_request_has_one_verb() -> None:
    requests = [verb.request for verb in CONTROL_VERBS.verbs.values()]
    assert len(set(requests)) == len(requests) == 52


def nested(levels: int, inside: Any) -> Any:
    """A value in so many tables."""
    return nested(levels - 1, {"a": inside}) if levels else inside


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({str(number): 0 for number in range(MAX_KEYS + 1)}, "a table of at most 4096 text keys"),
        ({"a": [{str(number): 0 for number in range(MAX_KEYS + 1)}]}, "a table of at most 4096 text keys"),
        ({"a": {1: 0}}, "a table of at most 4096 text keys"),
        ({"a": [0] * MAX_TABLE_VALUES}, "at most 262144 values"),
        ({str(number): [0] * MAX_KEYS for number in range(64)}, "at most 262144 values"),
        (nested(MAX_DEPTH + 1, 0), "at most 16 levels"),
        ({"a": nested(MAX_DEPTH, [])}, "at most 16 levels"),
        ({"a": [msgpack.Timestamp(1)]}, "a plain value is expected"),
        ([], "a table with text keys"),
    ],
)
def test_a_table_without_bounds_is_refused(status: Any, why: str) -> None:
    """One that its receiver parses by itself: of the header's 4 MiB it could make a million of anything."""
    with pytest.raises(ProtocolError, match=rf"the reply to status: status: .*{why}"):
        CONTROL_VERBS.decode_reply("status", [status, []])


@pytest.mark.parametrize(
    "status",
    [
        {},
        {str(number): 0 for number in range(MAX_KEYS)},
        {"a": [0] * (MAX_TABLE_VALUES - 1)},
        nested(MAX_DEPTH, 0),
        {"a": None, "b": [True, 1.5, "c", b"d", {"e": []}]},
    ],
)
def test_a_table_within_bounds_is_taken(status: Any) -> None:
    assert CONTROL_VERBS.decode_reply("status", [status, []]) == StatusReply(status)


def test_more_fields_than_any_verb_has_are_refused() -> None:
    most = max(
        len(fields_of(kind)) for verb in CONTROL_VERBS.verbs.values() for kind in (verb.request, verb.reply)
    )
    assert most <= MAX_FIELDS
    with pytest.raises(ProtocolError, match=r"request\.body: a list of at most 64 fields is expected"):
        decode(encode(RequestMessage(1, "status", [0] * (MAX_FIELDS + 1))))
