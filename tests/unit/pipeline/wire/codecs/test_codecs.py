"""Every codec alone: its bounds, its sizes, and what it refuses."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from shadowsync.pipeline.codecs.blocks import BlockCodec, Int2, Int4, Int8
from shadowsync.pipeline.codecs.formats import (
    CODECS,
    BFloat16,
    Codec,
    CodecError,
    CodecOptions,
    Payload,
    make_codec,
)
from shadowsync.pipeline.codecs.topk import BLOCK, TopK
from shadowsync.pipeline.types import Float32Array

ALL = sorted(CODECS)
LARGEST = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).tiny)

any_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = hnp.arrays(np.float32, st.integers(0, 300), elements=any_floats)


def small(name: str) -> Codec:
    """A codec whose blocks are small enough for the sizes that hypothesis draws."""
    return make_codec(name, CodecOptions(int8_block=64, topk_fraction=0.1))


def round_trip(codec: Codec, values: Float32Array) -> Float32Array:
    decoded = codec.decode(codec.encode(values), len(values))
    assert decoded.dtype == np.float32
    assert decoded.shape == values.shape
    return decoded


@given(vectors, st.integers(1, 300))
def test_float32_is_bit_identical_whether_chunked_or_not(values: Float32Array, size: int) -> None:
    codec = make_codec("float32")
    whole = codec.encode(values).tobytes()
    parts = [codec.encode(values[at : at + size]) for at in range(0, len(values), size)]
    assert b"".join(part.tobytes() for part in parts) == whole == values.tobytes()
    assert codec.decode(codec.encode(values), len(values)).tobytes() == values.tobytes()


@given(vectors, st.floats(0.0, 1.0), st.randoms())
def test_sparse_is_bit_identical_and_never_longer(
    values: Float32Array, share: float, random: random.Random
) -> None:
    codec = make_codec("sparse")
    for at in range(len(values)):
        if random.random() < share:
            values[at] = 0.0
    payload = codec.encode(values)
    assert codec.decode(payload, len(values)).tobytes() == values.tobytes()
    kept = np.count_nonzero(values.view(np.uint32))
    assert payload.nbytes == min(values.nbytes, -(-len(values) // 8) + 4 * kept)


def test_sparse_keeps_what_is_no_number_and_the_sign_of_a_zero() -> None:
    values = np.zeros(100, np.float32)
    values[3:7] = [np.nan, np.inf, -np.inf, -0.0]
    payload = make_codec("sparse").encode(values)
    assert payload.nbytes == 13 + 4 * 4
    assert make_codec("sparse").decode(payload, 100).tobytes() == values.tobytes()


def test_sparse_refuses_a_bitmap_of_other_elements() -> None:
    values = np.zeros(100, np.float32)
    values[3] = 1.0
    payload = make_codec("sparse").encode(values).copy()
    payload[5] = 0xFF
    with pytest.raises(CodecError, match="9 of 100 elements has 17 bytes"):
        make_codec("sparse").decode(payload, 100)


def test_float32_does_not_copy() -> None:
    values = np.arange(10, dtype=np.float32)
    codec = make_codec("float32")
    assert np.shares_memory(codec.encode(values), values)
    assert np.shares_memory(codec.decode(codec.encode(values), 10), values)
    assert not np.shares_memory(make_codec("bfloat16").encode(values), values)


@given(hnp.arrays(np.uint32, st.integers(0, 300)))
def test_bfloat16_is_torchs_bit_by_bit(bits: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
    values = bits.view(np.float32)
    decoded = round_trip(BFloat16(), values)
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16).to(torch.float32).numpy()
    number = ~np.isnan(values)
    np.testing.assert_array_equal(decoded[number].view(np.uint32), theirs[number].view(np.uint32))
    assert np.isnan(decoded[~number]).all()


@pytest.mark.parametrize("bits", [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000])
def test_bfloat16_keeps_any_nan(bits: int) -> None:
    """Its payload may lie all in the half that is cut off, or overflow when it is rounded."""
    decoded = round_trip(BFloat16(), np.full(3, bits, np.uint32).view(np.float32))
    assert np.isnan(decoded).all()


def test_bfloat16_rounds_ties_to_even_over_a_block_border() -> None:
    one, step = np.float32(1), np.float32(2**-7)
    values = np.full((1 << 14) + 3, one + step / 2, np.float32)
    values[-3:] = np.array([one + 3 * step / 2, np.nan, -np.inf])
    decoded = round_trip(BFloat16(), values)
    assert (decoded[:-3] == one).all()
    assert decoded[-3] == one + 2 * step
    assert np.isnan(decoded[-2])
    assert decoded[-1] == -np.inf
    # Truncation would give 1 + step for the second.
    assert decoded[-3] != one + step


BLOCKS: dict[str, tuple[BlockCodec, int, float]] = {
    "int8 of 64": (Int8(64), 64, 1 / 254),
    "int8 of 100": (Int8(100), 100, 1 / 254),
    "int4": (Int4(), 128, 1 / 14),
    "int2": (Int2(), 128, 1 / 4),
}
"""With the length of a block, and the largest error as a share of its largest value."""


@pytest.mark.parametrize("codec", BLOCKS)
@given(values=vectors)
def test_few_bits_are_off_by_what_they_say_in_every_block(codec: str, values: Float32Array) -> None:
    coder, block, share = BLOCKS[codec]
    decoded = round_trip(coder, values).astype(np.float64)
    for at in range(0, len(values), block):
        part = values[at : at + block].astype(np.float64)
        most = np.abs(part).max()
        # Half a level, and the quotient's own rounding. Below the smallest scale nothing is sent.
        bound = most * share * 1.0002 if most * 2 * share >= 1.001 * TINY else most
        assert np.abs(decoded[at : at + block] - part).max() <= max(bound, most * 2e-7)


@pytest.mark.parametrize("codec", BLOCKS)
@pytest.mark.parametrize("most", [LARGEST, 1.0, 2e-36, 1e-38, 1e-45, 0.0])
def test_few_bits_at_the_ends_of_the_range(codec: str, most: float) -> None:
    coder, _, share = BLOCKS[codec]
    values = np.array([most, -most, most / 2, 0.0] * 40, np.float32)
    decoded = round_trip(coder, values)
    assert np.isfinite(decoded).all()
    np.testing.assert_allclose(decoded, values, atol=max(most * share * 1.001, 127 * TINY))


@pytest.mark.parametrize("codec", BLOCKS)
def test_no_error_is_far_below_what_is_said(codec: str) -> None:
    """The bound is the smallest: there are values that reach it."""
    coder, block, share = BLOCKS[codec]
    values = np.linspace(-1, 1, block, dtype=np.float32)
    worst = max(np.abs(round_trip(coder, values * x) - values * x).max() / x for x in (1.0, 0.9, 0.77))
    assert worst > 0.9 * share


def test_int8_takes_its_scale_from_the_block_alone() -> None:
    values = np.concatenate([np.full(64, 1e-3, np.float32), np.full(64, 1e3, np.float32)])
    decoded = round_trip(Int8(64), values)
    np.testing.assert_allclose(decoded, values, rtol=1e-6)
    # The control: with one scale for both, the small ones are lost.
    assert (round_trip(Int8(128), values)[:64] == 0).all()


@given(vectors, st.sampled_from([0.01, 0.1, 0.5]), st.sampled_from([2, 4, 8]))
def test_topk_sends_the_largest_in_few_bits(values: Float32Array, fraction: float, bits: int) -> None:
    decoded = round_trip(TopK(fraction, bits), values)
    sent = decoded != 0
    most = np.abs(values).max(initial=0)
    if most / 2 ** (bits - 1) < 1.001 * TINY:
        assert not sent.any()
        return
    assert np.count_nonzero(sent) == math.ceil(len(values) * fraction)
    assert np.abs(values[~sent]).max(initial=0) <= np.abs(values[sent]).min()
    assert np.abs(decoded - values)[sent].max() <= np.float64(most) / 2**bits * 1.001


def test_topk_chooses_and_scales_by_block() -> None:
    values = np.random.default_rng(1).normal(size=2 * BLOCK + 100).astype(np.float32)
    values[BLOCK : 2 * BLOCK] *= 1e6
    decoded = round_trip(TopK(0.01), values)
    counts = [np.count_nonzero(decoded[at : at + BLOCK]) for at in range(0, len(values), BLOCK)]
    assert counts == [41, 41, 1]
    assert 1.0 < np.abs(decoded[:BLOCK]).max() < 10.0


@pytest.mark.parametrize("values", [np.zeros(BLOCK), np.ones(BLOCK), np.repeat([3.0, 1.0, 2.0], BLOCK)])
def test_topk_sends_no_more_of_equal_ones(values: Float32Array) -> None:
    values = values.astype(np.float32)
    decoded = round_trip(TopK(0.1), values)
    assert np.count_nonzero(decoded) in (0, -(-len(values) // 10), 410 * (len(values) // BLOCK))
    assert np.any(decoded) == np.any(values)


@pytest.mark.parametrize(("share", "form"), [(0.001, "differences"), (0.1, "differences"), (0.2, "bitmap")])
def test_topk_tells_the_places_in_the_shorter_way(share: float, form: str) -> None:
    values = np.random.default_rng(1).normal(size=16 * BLOCK).astype(np.float32)
    count = 16 * math.ceil(share * BLOCK)
    places = TopK(share, 8).encode(values).nbytes - 4 * 16 - count
    assert (places == 2 * BLOCK) == (form == "bitmap")
    assert places <= min(2 * BLOCK, 6 * count)
    if share == 0.1:
        assert places < 1.01 * count, "a byte each"


@pytest.mark.parametrize("name", ["int8", "int4", "int2", "topk"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 70, 129])
def test_what_is_not_finite_is_refused(name: str, bad: float, place: int) -> None:
    values = np.ones(130, np.float32)
    small(name).encode(values)
    values[place] = bad
    with pytest.raises(CodecError, match="not finite"):
        small(name).encode(values)


@pytest.mark.parametrize(
    ("name", "least"), [("bfloat16", 2.0), ("int8", 3.9), ("int4", 7.5), ("int2", 14.2), ("topk", 60.0)]
)
def test_how_much_smaller_a_chunk_gets(name: str, least: float) -> None:
    values = np.random.default_rng(1).normal(size=1 << 16).astype(np.float32)
    assert values.nbytes / make_codec(name).encode(values).nbytes >= least


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=50)
@given(payload=st.binary(max_size=400), elements=st.integers(-5, 2**40))
def test_a_hostile_payload_is_refused_or_decoded_and_nothing_else(
    name: str, payload: bytes, elements: int
) -> None:
    codec = small(name)
    try:
        values = codec.decode(np.frombuffer(payload, np.uint8), elements)
    except CodecError:
        return
    assert values.shape == (elements,)
    assert values.nbytes <= 40 * len(payload) + 4


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_a_payload_of_another_length_is_refused(name: str, change: int) -> None:
    codec = small(name)
    values = np.random.default_rng(1).normal(size=130).astype(np.float32)
    payload = codec.encode(values)
    codec.decode(payload, 130)
    longer = np.zeros(payload.nbytes + change, np.uint8)
    longer[: min(payload.nbytes, longer.nbytes)] = payload[: longer.nbytes]
    with pytest.raises(CodecError, match=f"elements has {longer.nbytes} bytes$"):
        codec.decode(longer, 130)


@pytest.mark.parametrize("name", ALL)
def test_many_elements_out_of_nothing_are_refused_without_memory(name: str) -> None:
    elements = 1 << 50
    with pytest.raises(MemoryError):
        np.zeros(elements, np.float32)
    # The control, above: there is no memory to be had for so many.
    with pytest.raises(CodecError):
        make_codec(name).decode(np.zeros(16, np.uint8), elements)


def topk_payload(places: list[int], scale: float = 1.0) -> Payload:
    """Of two elements of 200, at a fraction of 0.01."""
    return np.frombuffer(np.float32(scale).tobytes() + bytes([0b1010, *places]), np.uint8)


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ([3, 196], "places are not below 200"),
        ([255, 0, 1], "places are not below 200"),
        ([3], "2 of 200 elements has 6 bytes"),
        ([3, 5, 7], "2 of 200 elements has 8 bytes"),
        ([3, 5, 255], "2 of 200 elements has 8 bytes"),
        ([0] * 24 + [1], "2 of 200 elements has 30 bytes"),
        ([0] * 26, "2 of 200 elements has 31 bytes"),
    ],
)
def test_topk_refuses_places_that_are_none(places: list[int], why: str) -> None:
    codec = TopK(0.01)
    assert np.flatnonzero(codec.decode(topk_payload([3, 195]), 200)).tolist() == [3, 199]
    assert np.flatnonzero(codec.decode(topk_payload([0] * 24 + [3]), 200)).tolist() == [198, 199]
    with pytest.raises(CodecError, match=why):
        codec.decode(topk_payload(places), 200)


def test_topk_refuses_two_of_one_block_and_none_of_another() -> None:
    codec = TopK(1 / BLOCK)
    head = np.ones(2, "<f4").tobytes() + bytes([0b1010])
    for places, found in (([0, *[255] * 16, 15], [0, BLOCK]), ([0, 0], None)):
        payload = np.frombuffer(head + bytes(places), np.uint8)
        if found is not None:
            assert np.flatnonzero(codec.decode(payload, 2 * BLOCK)).tolist() == found
            continue
        with pytest.raises(CodecError, match="not as many in each block"):
            codec.decode(payload, 2 * BLOCK)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, LARGEST])
def test_topk_refuses_scales_that_are_none(bad: float) -> None:
    with pytest.raises(CodecError, match="a scale"):
        TopK(0.01).decode(topk_payload([3, 195], bad), 200)


@pytest.mark.parametrize("codec", BLOCKS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, LARGEST])
def test_scales_that_are_none_are_refused(codec: str, bad: float) -> None:
    coder, block, _ = BLOCKS[codec]
    payload = coder.encode(np.ones(2 * block + 2, np.float32)).copy()
    coder.decode(payload, 2 * block + 2)
    payload[:12].view("<f4")[2] = bad
    with pytest.raises(CodecError, match="a scale"):
        coder.decode(payload, 2 * block + 2)


@pytest.mark.parametrize(
    ("codec", "byte", "why"),
    [
        (Int4(), 0xFE, "int4: a level is below -7 or above 7"),
        (Int4(), 0xEF, "int4: a level is below -7 or above 7"),
        (Int8(64), 0x80, "below -127"),
    ],
)
def test_a_level_that_is_never_written_is_refused(codec: BlockCodec, byte: int, why: str) -> None:
    payload = codec.encode(np.ones(64, np.float32)).copy()
    codec.decode(payload, 64)
    payload[-1] = byte
    with pytest.raises(CodecError, match=why):
        codec.decode(payload, 64)


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'bfloat' is not a codec; did you mean 'bfloat16'\?"):
        make_codec("bfloat")
    with pytest.raises(ValueError, match="give one of float32, sparse, bfloat16, int8, int4, int2, topk"):
        make_codec("zstd")


@pytest.mark.parametrize(
    ("name", "option", "values", "said"),
    [
        ("int8", "int8_block", (0, 63, (1 << 16) + 1), "int8_block: {} given"),
        ("topk", "topk_fraction", (0.0, -0.1, 0.51, float("nan")), "topk_fraction: "),
        ("topk", "topk_bits", (0, 1, 3, 16), "topk_bits: {} given; give one of 2, 4, 8"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    name: str, option: str, values: tuple[Any, ...], said: str
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=said.format(value)):
            make_codec(name, CodecOptions(**{option: value}))


@pytest.mark.parametrize("name", ALL)
def test_whether_a_codec_is_lossy_is_as_it_says(name: str) -> None:
    values = np.random.default_rng(1).normal(size=500).astype(np.float32)
    codec = make_codec(name)
    assert codec.lossy == (round_trip(codec, values).tobytes() != values.tobytes())
    assert codec.name == name
