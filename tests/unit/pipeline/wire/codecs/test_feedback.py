"""Error feedback and references: nothing that a lossy codec loses is lost for good."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.codecs.feedback import (
    CODED_DELTA,
    NO_REFERENCE,
    Deltas,
    Encoded,
    ErrorFeedback,
    Reference,
    decode_chunk,
    encode_chunk,
)
from shadowsync.pipeline.codecs.formats import CODECS, Codec, CodecError, CodecOptions, make_codec
from shadowsync.pipeline.types import Float32Array

ALL = sorted(CODECS)
LOSSY = [name for name in ALL if make_codec(name).lossy]
OPTIONS = CodecOptions(int8_block=64, topk_fraction=0.1)


def floats(length: int, seed: int) -> Float32Array:
    return np.random.default_rng(seed).normal(size=length).astype(np.float32)


def arrives(codec: Codec, encoded: Encoded, elements: int) -> Float32Array:
    """What the other end makes of a chunk, which must be what this end thinks it does."""
    values = decode_chunk(codec, encoded.payload, elements, coded=encoded.coded)
    assert values.tobytes() == encoded.decoded.tobytes()
    return values


class Ends:
    """Both ends of a link with a reference."""

    def __init__(self, codec: Codec, elements: int) -> None:
        self.codec = codec
        self.here, self.there = Reference(codec, elements), Reference(codec, elements)

    def exchange(
        self, number: int, values: Float32Array, size: int, lost_at: int | None = None
    ) -> Float32Array:
        """All chunks; with `lost_at` the exchange ends before that chunk, for both ends."""
        self.here.begin()
        self.there.begin()
        result = np.empty_like(values)
        for at in range(0, len(values), size):
            if at == lost_at:
                return result
            part = values[at : at + size]
            version, encoded = self.here.encode(at, part)
            result[at : at + size] = self.there.decode(at, version, encoded.payload, len(part))
            if self.there.is_enabled:
                self.there.values[at : at + size] = result[at : at + size]
        self.here.complete(number)
        self.there.complete(number)
        return result


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=30)
@given(length=st.integers(1, 200), size=st.integers(1, 90), rounds=st.integers(1, 6), seed=st.integers(0, 99))
def test_both_ends_hold_the_same_bits(name: str, length: int, size: int, rounds: int, seed: int) -> None:
    ends = Ends(make_codec(name, OPTIONS), length)
    for number in range(1, rounds + 1):
        got = ends.exchange(number, floats(length, seed + number), size)
        assert ends.here.values.tobytes() == ends.there.values.tobytes()
        if ends.here.is_enabled:
            assert got.tobytes() == ends.there.values.tobytes()
        else:
            assert got.tobytes() == floats(length, seed + number).tobytes()


@pytest.mark.parametrize("name", LOSSY)
def test_a_value_that_stays_is_reached_after_some_rounds(name: str) -> None:
    codec = make_codec(name, OPTIONS)
    ends, target = Ends(codec, 200), floats(200, 2)
    ends.exchange(1, floats(200, 1), 64)
    once = np.abs(ends.exchange(2, target, 64) - target).max()
    assert once > 1e-4
    for number in range(3, 400):
        last = ends.exchange(number, target, 64)
    assert np.abs(last - target).max() < 1e-6
    # The control: the same number of times without a reference gets no nearer.
    alone = decode_chunk(codec, encode_chunk(codec, target).payload, 200, coded=True)
    assert np.abs(alone - target).max() > 1e-4


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("lost_at", [0, 64, 192])
def test_after_a_failed_exchange_the_next_is_float32(name: str, lost_at: int) -> None:
    ends = Ends(make_codec(name, OPTIONS), 200)
    ends.exchange(1, floats(200, 1), 64)
    ends.exchange(2, floats(200, 2), 64, lost_at=lost_at)
    assert ends.here.version == ends.there.version == NO_REFERENCE
    fresh = floats(200, 3)
    np.testing.assert_array_equal(ends.exchange(3, fresh, 64), fresh)
    assert ends.here.version == ends.there.version == 3
    # The control: the one after is coded again.
    later = floats(200, 4)
    assert not np.array_equal(ends.exchange(4, later, 64), later)


def test_a_difference_from_what_this_end_does_not_hold_is_refused() -> None:
    codec = make_codec("int8", OPTIONS)
    ends = Ends(codec, 100)
    ends.exchange(1, floats(100, 1), 100)
    ends.exchange(2, floats(100, 2), 100)
    ends.here.begin()
    ends.there.begin()
    version, encoded = ends.here.encode(0, floats(100, 3))
    assert version == 2
    for wrong in (1, 3, -1):
        with pytest.raises(CodecError, match=f"refers to exchange {wrong}, but this end holds exchange 2"):
            ends.there.decode(0, wrong, encoded.payload, 100)
    ends.there.decode(0, version, encoded.payload, 100)
    # An end that started anew, and one that never held anything.
    ends.there.begin()
    for stale in (ends.there, Reference(codec, 100)):
        with pytest.raises(CodecError, match="refers to exchange 2, but this end holds exchange 0"):
            stale.decode(0, version, encoded.payload, 100)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_travels_as_it_is_and_is_over_when_it_is_over(name: str, bad: float) -> None:
    ends = Ends(make_codec(name, OPTIONS), 130)
    ends.exchange(1, floats(130, 1), 64)
    diverged = floats(130, 2)
    diverged[70] = bad
    got = ends.exchange(2, diverged, 64)
    # Only that chunk, 64 to 127, went as float32, bit by bit.
    assert got[64:128].tobytes() == diverged[64:128].tobytes()
    assert not np.array_equal(got[:64], diverged[:64])
    assert np.isfinite(got[:64]).all()
    healed = floats(130, 3)
    assert ends.exchange(3, healed, 64)[64:128].tobytes() == healed[64:128].tobytes()
    assert np.isfinite(ends.exchange(4, floats(130, 4), 64)).all()


def test_what_a_codec_would_round_to_infinity_travels_as_it_is() -> None:
    values = np.array([1.0, np.finfo(np.float32).max], np.float32)
    codec = make_codec("bfloat16")
    assert np.isinf(codec.decode(codec.encode(values), 2)[1])
    encoded = encode_chunk(codec, values)
    assert not encoded.coded
    assert arrives(codec, encoded, 2).tobytes() == values.tobytes()
    assert encode_chunk(codec, values[:1]).coded


@pytest.mark.parametrize("name", LOSSY)
def test_differences_that_overflow_travel_as_they_are(name: str) -> None:
    ends = Ends(make_codec(name, OPTIONS), 10)
    most = np.full(10, np.finfo(np.float32).max)
    ends.exchange(1, most, 10)
    np.testing.assert_array_equal(ends.exchange(2, -most, 10), -most)


@pytest.mark.parametrize("name", LOSSY)
@settings(max_examples=20)
@given(size=st.integers(1, 100), rounds=st.integers(1, 20), seed=st.integers(0, 99))
def test_what_arrived_is_what_was_sent_but_for_the_residual(
    name: str, size: int, rounds: int, seed: int
) -> None:
    codec, length = make_codec(name, OPTIONS), 100
    feedback = ErrorFeedback(codec, length)
    sent, arrived = np.zeros(length), np.zeros(length)
    for number in range(rounds):
        values = floats(length, seed + number)
        sent += values
        for at in range(0, length, size):
            part = values[at : at + size]
            arrived[at : at + size] += arrives(codec, feedback.encode(at, part), len(part))
    # One more of nothing shows what is still owed.
    owed = sent - arrived
    for at in range(0, length, size):
        part = np.zeros(min(size, length - at), np.float32)
        got = arrives(codec, feedback.encode(at, part), len(part))
        reference = decode_chunk(
            codec, encode_chunk(codec, owed[at : at + size].astype(np.float32)).payload, len(part), coded=True
        )
        np.testing.assert_allclose(got, reference, atol=1e-2 * np.abs(owed).max() + 1e-5)
    bound = {"bfloat16": 0.05, "int8": 0.1, "int4": 1.0, "int2": 6.0}.get(name, 40.0)
    assert np.abs(owed).max() < bound


@pytest.mark.parametrize("name", LOSSY)
def test_without_feedback_errors_add_up(name: str) -> None:
    codec = make_codec(name, OPTIONS)
    # A value that every codec rounds down every time, next to one that sets the scale.
    values = np.full(64, 0.3004, np.float32)
    values[:8] = 1.0
    feedback = ErrorFeedback(codec, 64)
    with_it, without = np.zeros(64), np.zeros(64)
    for _ in range(200):
        with_it += arrives(codec, feedback.encode(0, values), 64)
        without += arrives(codec, encode_chunk(codec, values), 64)
    exact = 200.0 * values
    assert np.abs(without - exact).max() > 5 * np.abs(with_it - exact).max()


@pytest.mark.parametrize("name", LOSSY)
def test_what_travelled_as_it_is_leaves_nothing_owed(name: str) -> None:
    codec, nothing = make_codec(name, OPTIONS), np.zeros(100, np.float32)
    feedback, control = ErrorFeedback(codec, 100), ErrorFeedback(codec, 100)
    for one in (feedback, control):
        one.encode(0, floats(100, 1))
    assert np.any(control.encode(0, nothing).decoded), "this is owed"
    infinite = floats(100, 2)
    infinite[3] = np.inf
    paid = feedback.encode(0, infinite)
    assert not paid.coded
    assert not np.array_equal(paid.decoded, infinite), "what was owed went with it"
    assert not np.any(feedback.encode(0, nothing).decoded)


@pytest.mark.parametrize("make", [ErrorFeedback, Reference])
def test_memory_is_told_and_a_lossless_codec_needs_none(
    make: Callable[[Codec, int], ErrorFeedback | Reference],
) -> None:
    assert make(make_codec("float32"), 1000).memory_bytes == 0
    assert make(make_codec("int8"), 1000).memory_bytes == 4000


def test_a_hostile_number_that_is_none_does_not_get_into_a_reference() -> None:
    codec = make_codec("bfloat16")
    payload = codec.encode(np.array([1.0, np.nan], np.float32))
    with pytest.raises(CodecError, match="not finite"):
        decode_chunk(codec, payload, 2, coded=True)
    assert np.isnan(decode_chunk(codec, np.array([np.nan], "<f4").view(np.uint8), 1, coded=False)[0])


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=20)
@given(size=st.integers(1, 100), seed=st.integers(0, 99))
def test_a_delta_is_what_arrives_and_what_is_lost(name: str, size: int, seed: int) -> None:
    codec, values = make_codec(name, OPTIONS), floats(100, seed)
    here, there = Deltas(codec, 100), Deltas(codec, 100)
    for is_exact in (False, True, False):
        here.is_exact = is_exact
        arrived = np.empty_like(values)
        for at in range(0, 100, size):
            part = values[at : at + size]
            version, encoded = here.encode(at, part)
            assert (version == CODED_DELTA) == (codec.lossy and not is_exact)
            arrived[at : at + size] = there.decode(at, version, encoded.payload, len(part))
        np.testing.assert_allclose(arrived + here.lost, values, atol=1e-6)
        assert np.any(here.lost) == (arrived.tobytes() != values.tobytes())
        if is_exact or not codec.lossy:
            assert arrived.tobytes() == values.tobytes()
    assert here.memory_bytes == 400 * codec.lossy
    assert there.memory_bytes == 0


def test_a_delta_that_is_not_finite_is_sent_as_it_is() -> None:
    values = floats(100, 1)
    values[7] = np.inf
    here = Deltas(make_codec("int4"), 100)
    here.encode(0, floats(100, 2))
    version, encoded = here.encode(0, values)
    assert version == NO_REFERENCE
    assert encoded.payload.tobytes() == values.tobytes()
    assert not np.any(here.lost)


def test_a_delta_that_refers_to_an_exchange_is_refused() -> None:
    codec = make_codec("int4")
    payload = codec.encode(floats(100, 1))
    assert len(Deltas(codec, 100).decode(0, CODED_DELTA, payload, 100)) == 100
    with pytest.raises(CodecError, match="the delta refers to exchange 2"):
        Deltas(codec, 100).decode(0, 2, payload, 100)
