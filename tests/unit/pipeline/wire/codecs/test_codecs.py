"""Every codec alone: its bounds, its sizes, and what it refuses."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from shadowsync.pipeline.codecs.formats import (
    CODECS,
    BFloat16,
    Codec,
    CodecError,
    CodecOptions,
    Float16,
    Int8,
    TopK,
    make_codec,
)
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


@given(vectors)
def test_float16_is_numpys_but_saturates(values: Float32Array) -> None:
    decoded = round_trip(Float16(), values)
    inside = np.abs(values) <= 65504
    np.testing.assert_array_equal(decoded[inside], values[inside].astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(decoded[~inside], np.copysign(np.float32(65504), values[~inside]))


def test_float16_keeps_what_is_no_number() -> None:
    values = np.array([np.inf, -np.inf, np.nan, 1e30, -65520.0], np.float32)
    decoded = round_trip(Float16(), values)
    np.testing.assert_array_equal(decoded, np.array([np.inf, -np.inf, np.nan, 65504, -65504], np.float32))


@given(vectors, st.sampled_from([64, 100, 256]))
def test_int8_is_within_half_a_scale_in_every_block(values: Float32Array, block: int) -> None:
    decoded = round_trip(Int8(block), values).astype(np.float64)
    for at in range(0, len(values), block):
        part = values[at : at + block].astype(np.float64)
        most = np.abs(part).max()
        # 127 levels of a float32 quotient: half a level, and the quotient's own rounding.
        bound = most / 127 * 0.5001 if most / 127 >= TINY else most
        assert np.abs(decoded[at : at + block] - part).max() <= max(bound, most * 2e-7)


@pytest.mark.parametrize("most", [LARGEST, 1.0, 2e-36, 1e-38, 1e-45, 0.0])
def test_int8_at_the_ends_of_the_range(most: float) -> None:
    values = np.array([most, -most, most / 2, 0.0] * 40, np.float32)
    decoded = round_trip(Int8(64), values)
    assert np.isfinite(decoded).all()
    np.testing.assert_allclose(decoded, values, atol=max(most / 127 * 0.51, 127 * TINY))


def test_int8_takes_its_scale_from_the_block_alone() -> None:
    values = np.concatenate([np.full(64, 1e-3, np.float32), np.full(64, 1e3, np.float32)])
    decoded = round_trip(Int8(64), values)
    np.testing.assert_allclose(decoded, values, rtol=1e-6)
    # The control: with one scale for both, the small ones are lost.
    assert (round_trip(Int8(128), values)[:64] == 0).all()


@given(vectors, st.sampled_from([0.01, 0.1, 0.5]))
def test_topk_keeps_the_largest_as_they_are(values: Float32Array, fraction: float) -> None:
    decoded = round_trip(TopK(fraction), values)
    kept = -(-len(values) * fraction // 1)
    assert np.count_nonzero(decoded) <= kept
    travelled = decoded != 0
    np.testing.assert_array_equal(decoded[travelled], values[travelled])
    left = np.abs(values[~travelled])
    if travelled.any() and left.size:
        assert left.max() <= np.abs(decoded[travelled]).min()
    # None that could have gone was left behind.
    assert np.count_nonzero(decoded) == min(kept, np.count_nonzero(values))


@pytest.mark.parametrize("name", ["int8", "topk"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 70, 129])
def test_what_is_not_finite_is_refused(name: str, bad: float, place: int) -> None:
    values = np.ones(130, np.float32)
    small(name).encode(values)
    values[place] = bad
    with pytest.raises(CodecError, match="not finite"):
        small(name).encode(values)


@pytest.mark.parametrize(
    ("name", "least"), [("bfloat16", 2.0), ("float16", 2.0), ("int8", 3.9), ("topk", 9.9)]
)
def test_how_much_smaller_a_chunk_gets(name: str, least: float) -> None:
    values = np.random.default_rng(1).normal(size=1 << 16).astype(np.float32)
    payload = make_codec(name).encode(values)
    codec_default = {"topk": TopK(0.05)}.get(name)
    assert values.nbytes / (codec_default.encode(values) if codec_default else payload).nbytes >= least


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


@pytest.mark.parametrize(
    ("indices", "why"),
    [([3, 200], "indices"), ([5, 5], "indices"), ([9, 2], "indices"), ([0, 2**32 - 1], "indices")],
)
def test_topk_refuses_indices_that_are_none(indices: list[int], why: str) -> None:
    codec = TopK(0.01)
    values = np.ones(2, "<f4").tobytes()
    good = np.frombuffer(np.array([3, 199], "<u4").tobytes() + values, np.uint8)
    assert np.flatnonzero(codec.decode(good, 200)).tolist() == [3, 199]
    bad = np.frombuffer(np.array(indices, "<u4").tobytes() + values, np.uint8)
    with pytest.raises(CodecError, match=why):
        codec.decode(bad, 200)


def test_topk_refuses_values_that_are_not_finite() -> None:
    for bad in (np.nan, np.inf):
        payload = np.array([3], "<u4").tobytes() + np.array([bad], "<f4").tobytes()
        with pytest.raises(CodecError, match="not finite"):
            TopK(0.01).decode(np.frombuffer(payload, np.uint8), 100)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, LARGEST])
def test_int8_refuses_scales_that_are_none(bad: float) -> None:
    codec = Int8(64)
    payload = codec.encode(np.ones(130, np.float32)).copy()
    codec.decode(payload, 130)
    payload[:12].view("<f4")[2] = bad
    with pytest.raises(CodecError, match="a scale"):
        codec.decode(payload, 130)


def test_int8_refuses_a_level_that_it_never_writes() -> None:
    codec = Int8(64)
    payload = codec.encode(np.ones(64, np.float32)).copy()
    payload[-1] = 0x80
    with pytest.raises(CodecError, match="below -127"):
        codec.decode(payload, 64)


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'bfloat' is not a codec; did you mean 'bfloat16'\?"):
        make_codec("bfloat")
    with pytest.raises(ValueError, match="give one of float32, sparse, bfloat16, float16, int8, topk"):
        make_codec("zstd")


@pytest.mark.parametrize("block", [0, 63, (1 << 16) + 1])
def test_a_block_that_cannot_be_used_is_refused(block: int) -> None:
    with pytest.raises(ValueError, match=f"int8_block: {block} given"):
        make_codec("int8", CodecOptions(int8_block=block))


@pytest.mark.parametrize("fraction", [0.0, -0.1, 0.51, float("nan")])
def test_a_fraction_that_cannot_be_used_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="topk_fraction: "):
        make_codec("topk", CodecOptions(topk_fraction=fraction))


@pytest.mark.parametrize("name", ALL)
def test_whether_a_codec_is_lossy_is_as_it_says(name: str) -> None:
    values = np.random.default_rng(1).normal(size=500).astype(np.float32)
    codec = make_codec(name)
    assert codec.lossy == (round_trip(codec, values).tobytes() != values.tobytes())
    assert codec.name == name
