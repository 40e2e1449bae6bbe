"""The samples that loops share: each place once in each epoch, whoever joins, dies or breaks off."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.attached.hub.samples import SampleStream
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.control.loops import SamplesReply, TakeSamples


def request(
    epoch: int | None = None, finished: int = 0, *, size: int = 10, span: int = 4, epochs: int = 0
) -> TakeSamples:
    return TakeSamples("train", size, span, 0, epochs, epoch, finished)


def stream(**more: int) -> SampleStream:
    return SampleStream("train", request(**more))


def places(reply: SamplesReply) -> list[tuple[int, int]]:
    return [(reply.of_epoch, at) for at in range(reply.start, reply.stop)]


def test_two_loops_go_through_an_epoch_together() -> None:
    own = stream()
    first, second, third = (own.take(token, request()) for token in "aba")
    assert [places(reply) for reply in (first, second, third)] == [
        [(0, at) for at in range(start, stop)] for start, stop in ((0, 4), (4, 8), (8, 10))
    ]
    # The pass of each is over; the next one begins the next epoch, for both.
    assert places(own.take("a", request(0, 6))) == places(own.take("b", request(0, 4))) == []
    assert own.take("b", request(None, 4)) == SamplesReply(1, 1, 0, 4)
    assert own.take("a", request(None, 6)) == SamplesReply(1, 1, 4, 8)
    # A loop that is behind is not given what belongs to a later epoch.
    assert places(own.take("late", request(0))) == []


def test_what_a_dead_loop_had_not_trained_comes_first() -> None:
    own = stream()
    own.take("a", request())
    own.take("b", request())
    own.finish("a", 3)
    assert own.give_back("a") == 1
    assert places(own.take("b", request(0, 4))) == [(0, 3)]
    assert places(own.take("b", request(0, 4))) == [(0, 8), (0, 9)]
    record = own.record()
    assert (record.granted, record.finished, record.returned, record.held) == (11, 7, 1, 3)


def test_no_epoch_beyond_the_last_one() -> None:
    own = stream(epochs=1)
    for _ in range(3):
        own.take("a", request(epochs=1))
    assert places(own.take("a", request(None, 10, epochs=1))) == []
    # But what is owed is still given out.
    own.take("b", request(epochs=1))
    fresh = stream(epochs=1)
    fresh.take("a", request(epochs=1, span=10))
    fresh.give_back("a")
    assert len(places(fresh.take("b", request(None, epochs=1, span=10)))) == 10


@pytest.mark.parametrize("other", [{"size": 11}, {"epochs": 2}])
def test_another_data_set_is_refused(other: dict[str, int]) -> None:
    own = stream()
    with pytest.raises(ClusterError, match="samples 'train': a data set of"):
        own.take("a", request(**other))
    assert own.record().granted == 0


@given(
    size=st.integers(1, 30),
    span=st.integers(1, 12),
    acts=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "finish", "die"])), max_size=80),
    done=st.lists(st.integers(0, 5), min_size=80, max_size=80),
)
def test_nothing_is_lost_whatever_happens(
    size: int, span: int, acts: list[tuple[str, str]], done: list[int]
) -> None:
    """After any history one loop that goes on finishes each place of the epoch, once over all loops."""
    own = stream(size=size, span=span, epochs=1)
    held: dict[str, list[tuple[int, int]]] = {}
    count: Counter[str] = Counter()
    finished: Counter[tuple[int, int]] = Counter()

    def ask(span: int, finished: int) -> TakeSamples:
        return request(None, finished, size=size, span=span, epochs=1)

    def finish(token: str, some: int) -> None:
        some = min(some, len(held.get(token, [])))
        for place in held.get(token, [])[:some]:
            finished[place] += 1
        held[token] = held.get(token, [])[some:]
        count[token] += some

    for number, (token, act) in enumerate(acts):
        if act == "take":
            reply = own.take(token, ask(span, count[token]))
            held.setdefault(token, []).extend(places(reply))
        elif act == "finish":
            finish(token, done[number])
            own.finish(token, count[token])
        else:
            assert own.give_back(token) == len(held.pop(token, []))
        record = own.record()
        assert record.granted == record.finished + record.returned + record.held
        assert record.held == sum(map(len, held.values()))
    for token in list(held):
        own.give_back(token)
    while found := places(own.take("z", ask(span, count["z"]))):
        held.setdefault("z", []).extend(found)
        finish("z", len(held["z"]))
    own.finish("z", count["z"])
    assert finished == Counter({(0, at): 1 for at in range(size)})
    assert own.record().finished == size


def test_what_a_loop_never_received_is_granted_again() -> None:
    """The hub died between the grant and the reply; without `received`, the control, it would count it."""

    def taken(received: int | None) -> tuple[SampleStream, SamplesReply]:
        own = stream()
        own.take("a", request())
        own.take("a", request(0, 4))
        # Only the first 4 came; the loop asks the hub that came back, and trains what it then gets.
        other = SampleStream.of_saved("train", json.loads(json.dumps(own.saved())))
        return other, other.take("a", replace(request(0, 4), received=received))

    own, reply = taken(4)
    assert places(reply) == [(0, 4), (0, 5), (0, 6), (0, 7)]
    own.finish("a", 8)
    record = own.record()
    assert (record.granted, record.finished, record.returned, record.held) == (12, 8, 4, 0)
    control, reply = taken(None)
    assert places(reply) == [(0, 8), (0, 9)]
    control.finish("a", 6)
    # It believes that places 4 and 5 are trained, which nobody has.
    assert control.record().finished == 6
    assert control.record().returned == 0


def test_a_loop_that_comes_back_trains_on_what_was_taken_from_it() -> None:
    own = stream(size=20)
    own.take("a", request(size=20))
    assert own.give_back("a") == 4
    # It trains them nevertheless, which repeats them; the next ones are counted as its own.
    assert places(own.take("b", request(size=20))) == [(0, at) for at in range(4)]
    reply = own.take("a", replace(request(0, 2, size=20), received=4))
    assert places(reply) == [(0, at) for at in range(4, 8)]
    own.finish("a", 4)
    assert own.record().finished == 0
    own.finish("a", 7)
    assert own.record().finished == 3
    record = own.record()
    assert record.granted == record.finished + record.returned + record.held
