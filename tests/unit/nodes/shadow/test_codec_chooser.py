"""Which codec a link has: by what its exchanges take, on emulated links."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.nodes.shadow.codec_chooser import (
    FEWEST_EXCHANGES,
    LONGEST_PATIENCE_EXCHANGES,
    PATIENCE_EXCHANGES,
    LinkCodecChooser,
)
from shadowsync.pipeline.codecs.choices import CHOOSABLE, CodecChoices

BYTES = {"float32": 4_000_000, "bfloat16": 2_000_000, "int8": 1_004_000}
WANTED_SECONDS = 0.5
Link = Callable[[int], float]


def link(bytes_per_second: float, delay_seconds: float = 0.0) -> Link:
    """The seconds of an exchange of so many bytes."""
    return lambda size: delay_seconds + size / bytes_per_second


def run(
    chooser: LinkCodecChooser, over: Link, exchanges: int, wanted: float | None = WANTED_SECONDS
) -> list[str]:
    """The codecs of so many exchanges over a link."""
    codecs = []
    for _ in range(exchanges):
        chooser.want(wanted)
        codecs.append(chooser.codec)
        chooser.exchanged(chooser.codec, BYTES[chooser.codec], over(BYTES[chooser.codec]))
    return codecs


def changes(codecs: list[str]) -> int:
    return sum(one != other for one, other in itertools.pairwise(codecs))


@pytest.mark.parametrize(
    ("bytes_per_second", "codec", "fits"),
    [(1e9, "float32", True), (6e6, "bfloat16", True), (3e6, "int8", True), (1e6, "int8", False)],
)
def test_the_least_lossy_codec_that_fits(bytes_per_second: float, codec: str, fits: bool) -> None:
    chooser = LinkCodecChooser(BYTES)
    codecs = run(chooser, link(bytes_per_second), 100)
    assert codecs[:FEWEST_EXCHANGES] == ["float32"] * FEWEST_EXCHANGES
    assert set(codecs[FEWEST_EXCHANGES:]) == {codec}
    assert chooser.fits == fits
    assert chooser.bytes_per_second == pytest.approx(bytes_per_second)
    assert sum(chooser.exchanges.values()) == 100


def test_without_a_wanted_time_nothing_is_chosen() -> None:
    chooser = LinkCodecChooser(BYTES)
    assert set(run(chooser, link(1e5), 20, wanted=None)) == {"float32"}
    # The control: the same link, once it is known how often rounds are wanted.
    assert run(chooser, link(1e5), 2)[-1] == "int8"


def test_a_link_that_has_become_fast_is_lossless_again() -> None:
    chooser = LinkCodecChooser(BYTES)
    run(chooser, link(3e6), 20)
    assert chooser.codec == "int8"
    codecs = run(chooser, link(1e9), 3 * PATIENCE_EXCHANGES)
    assert codecs[-1] == chooser.codec == "float32"
    assert changes(codecs) <= 2


def test_more_seldom_rounds_leave_a_link_lossless() -> None:
    chooser = LinkCodecChooser(BYTES)
    run(chooser, link(3e6), 20)
    assert chooser.codec == "int8"
    run(chooser, link(3e6), 3 * PATIENCE_EXCHANGES, wanted=10.0)
    assert chooser.codec == "float32"


def test_a_link_that_is_just_too_slow_does_not_flap() -> None:
    """Between the room that a less lossy codec must have and the wanted time, what is stays."""
    for factor in (0.75, 0.95, 1.05, 1.3):
        chooser = LinkCodecChooser(BYTES)
        codecs = run(chooser, link(BYTES["float32"] / (factor * WANTED_SECONDS)), 400)
        assert changes(codecs) == (factor > 1)


def test_what_swings_is_tried_ever_more_seldom() -> None:
    """A link whose rate fools the choice: by int8 it is fast, by float32 slow."""
    swings: Link = lambda size: 1e-3 if size < BYTES["float32"] else 2 * WANTED_SECONDS  # noqa: E731
    codecs = run(LinkCodecChooser(BYTES), swings, 2000)
    ups = [at for at in range(1, 2000) if codecs[at] == "float32" != codecs[at - 1]]
    apart = [later - earlier for earlier, later in itertools.pairwise(ups)]
    assert 2 <= len(ups) <= 12
    assert apart[0] < LONGEST_PATIENCE_EXCHANGES <= apart[-1]
    lossless = sum(codec == "float32" for codec in codecs)
    assert lossless < 0.05 * len(codecs)


def test_a_delay_is_not_made_shorter_by_a_smaller_codec() -> None:
    """Nothing would be gained: the link is left lossless, and told that it does not fit."""
    chooser = LinkCodecChooser(BYTES)
    codecs = run(chooser, link(1e9, delay_seconds=2 * WANTED_SECONDS), 2000)
    assert codecs.count("float32") > 0.8 * len(codecs)
    assert not chooser.fits
    # The control: the same seconds by the bytes.
    codecs = run(LinkCodecChooser(BYTES), link(BYTES["float32"] / (2 * WANTED_SECONDS)), 2000)
    assert codecs.count("float32") < 0.01 * len(codecs)


def test_one_late_exchange_changes_nothing() -> None:
    chooser = LinkCodecChooser(BYTES)
    run(chooser, link(1e9), 10)
    run(chooser, link(1e5), 1)
    assert set(run(chooser, link(1e9), 10)) == {"float32"}
    # The control: some of them do.
    run(chooser, link(1e5), 3)
    assert chooser.codec == "int8"


def test_what_the_link_may_carry_counts_as_its_rate() -> None:
    fast = link(1e9)
    allowed = LinkCodecChooser(BYTES, allowed_bytes_per_second=3e6)
    assert run(allowed, fast, 20)[-1] == "int8"
    assert allowed.fits
    assert run(LinkCodecChooser(BYTES), fast, 20)[-1] == "float32"


def test_what_is_not_of_the_codec_is_counted_and_tells_nothing() -> None:
    chooser = LinkCodecChooser(BYTES)
    chooser.want(WANTED_SECONDS)
    for _ in range(20):
        assert chooser.exchanged("float32", BYTES["float32"] - 4, 100.0) is None
        assert chooser.exchanged("bfloat16", BYTES["bfloat16"], 100.0) is None
        assert chooser.exchanged("float32", BYTES["float32"], None) is None
    assert chooser.codec == "float32"
    assert chooser.exchanges == {"float32": 40, "bfloat16": 20, "int8": 0}


def test_a_change_says_why() -> None:
    chooser = LinkCodecChooser(BYTES)
    chooser.want(0.2)
    said = [chooser.exchanged("float32", BYTES["float32"], 0.8) for _ in range(FEWEST_EXCHANGES)]
    assert said[:-1] == [None] * (FEWEST_EXCHANGES - 1)
    assert said[-1] == "an exchange by float32 takes 800 ms, but a round is due every 200 ms"


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.floats(1e4, 1e9), st.floats(0.0, 1.0), st.none() | st.floats(1e-3, 10.0)),
        min_size=1,
        max_size=20,
    ),
    st.floats(1e4, 1e9),
)
def test_whatever_was_before_a_link_ends_at_what_fits(
    before: list[tuple[float, float, float | None]], rate: float
) -> None:
    """After any history, on a link of one rate, the codec is the one that fits, or has less than its room."""
    chooser = LinkCodecChooser(BYTES)
    for bytes_per_second, delay, wanted in before:
        run(chooser, link(bytes_per_second, delay), 10, wanted)
    over = link(rate)
    codecs = run(chooser, over, 4 * LONGEST_PATIENCE_EXCHANGES)
    last = codecs[-1]
    fitting = [name for name in CHOOSABLE if over(BYTES[name]) <= WANTED_SECONDS]
    best = fitting[0] if fitting else "int8"
    with_room = [name for name in CHOOSABLE if over(BYTES[name]) <= 0.7 * WANTED_SECONDS]
    assert (
        CHOOSABLE.index(best)
        <= CHOOSABLE.index(last)
        <= CHOOSABLE.index(with_room[0] if with_room else "int8")
    )


def test_the_bytes_of_choices_are_those_of_its_codecs() -> None:
    codec_choices = CodecChoices()
    assert codec_choices.payload_bytes(10_000, 4096) == {
        "float32": 2 * 40_000,
        "bfloat16": 2 * 20_000,
        "int8": 2 * (10_000 + 4 * (4 + 4 + 2)),
    }
    assert codec_choices.payload_bytes(100, 4096)["int8"] == 2 * (100 + 4)
    with pytest.raises(ValueError, match="codec 'gzip' is not allowed here; use float32, bfloat16, int8"):
        codec_choices.codec("gzip")
