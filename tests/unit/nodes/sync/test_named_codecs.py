"""Links whose exchanges name their codecs: nothing is lost for good, whatever codecs and losses follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.shadow.center_client import CenterClient
from shadowsync.nodes.sync.center import CenterState
from shadowsync.pipeline.codecs.choices import CHOOSABLE, CodecChoices
from shadowsync.pipeline.codecs.feedback import ErrorFeedback, Reference, decode_chunk
from shadowsync.pipeline.codecs.formats import Codec, CodecOptions, LinkCodecs
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.center_messages import (
    CenterExchange,
    CenterNamedExchange,
    CenterRead,
    CenterSeed,
    CenterValues,
)
from shadowsync.sync_algos.base import PeerLost
from shadowsync.tests.support.sync.fake_center import FakeCenter, Leaving, as_it_is

LENGTH, CHUNK = 130, 64
CHOICES = CodecChoices(CodecOptions(int8_block=64))
# What an encoding may lose of a value, over the largest value of its block.
LOSES = {"float32": 0.0, "bfloat16": 1 / 256, "int8": 0.5 / 127}
# Sums of float32 in another order.
ROUNDING = 1e-5


def floats(seed: int) -> Float32Array:
    return np.random.default_rng(seed).normal(size=LENGTH).astype(np.float32)


@dataclass(frozen=True)
class Step:
    """One exchange: its codec, and what happens to it.

    `fate`: "answered"; or given up, since its "request" or its "reply" was lost; or "settled" after its reply
    was. "new session": the node forgot the thread before it.
    """

    codec: str
    fate: str = "answered"
    repeats: bool = False


class Center(CenterState):
    """A center that keeps what it was given and what it answered, before any codec."""

    def __init__(self) -> None:
        self.given = np.zeros(LENGTH, np.float32)
        self.replies: list[Float32Array] = []
        super().__init__(self._reply, CHOICES)
        self.seed(CenterSeed(1, 0, LENGTH, 0, np.zeros(LENGTH, np.float32)))

    def _reply(self, center: torch.Tensor, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        self.given = values.numpy().copy()
        self.replies.append(floats(1000 + len(self.replies)))
        return torch.from_numpy(self.replies[-1])


class Thread:
    """A trainer's thread, without sockets: what `CenterClient` does with one slice."""

    def __init__(self, center: Center) -> None:
        self.center = center
        self.reference = Reference(CHOICES.codec("float32"), LENGTH)
        self.number = self.replied = 0
        self.received = np.zeros(LENGTH)
        self.owed_by_rule = np.zeros(LENGTH)

    def exchange(self, values: Float32Array, step: Step) -> bool:
        """Return whether its answer was received."""
        if step.fate == "new session":
            self.center.await_seeds()
        self.number += 1
        codec = CHOICES.codec(step.codec)
        self.reference.begin(codec)
        messages: list[CenterNamedExchange] = []
        for at in range(0, LENGTH, CHUNK):
            part = values[at : at + CHUNK]
            version, encoded = self.reference.encode(at, part)
            fields = (self.number, at, len(part), version, encoded.payload.copy())
            messages.append(CenterNamedExchange(*fields, step.codec, self.replied))
        if step.fate == "request":
            self.center.exchange(b"a/0", messages[0])
            return False
        try:
            replies = self._send(messages, twice=step.repeats)
        except ValueError:
            # The node has not the reference that this end has: the thread gives the exchange up.
            assert step.fate == "new session"
            return False
        if step.fate == "reply":
            return False
        if step.fate == "settled":
            again = self._send(messages, twice=False)
            assert [one.payload.tobytes() for one in again] == [one.payload.tobytes() for one in replies]
        for reply in replies:
            stop = reply.start + reply.elements
            decoded = decode_chunk(codec, reply.payload, reply.elements, coded=reply.coded)
            self.received[reply.start : stop] += decoded
        self.owed_by_rule += self.center.replies[-1]
        self.reference.complete(self.number)
        self.replied = self.number
        return True

    def _send(self, messages: list[CenterNamedExchange], *, twice: bool) -> list[CenterValues]:
        found = {}
        for message in [*messages[: 2 * twice], *messages, *messages[: 2 * twice]]:
            for reply in self.center.exchange(b"a/0", message):
                found[reply.start] = reply
        return [found[start] for start in sorted(found)]


def errors(steps: list[Step]) -> list[tuple[str, float, float]]:
    """For each answered exchange: its codec, and what up and down were off by then."""
    thread, found = Thread(Center()), []
    for number, step in enumerate(steps):
        if step.fate == "new session":
            # What the old one owed is gone with it.
            thread.received[:], thread.owed_by_rule[:] = 0, 0
        values = floats(number)
        applied = len(thread.center.replies)
        replied = thread.exchange(values, step)
        assert len(thread.center.replies) - applied == (replied or step.fate == "reply")
        if replied:
            up = float(np.abs(thread.center.given - values).max())
            down = float(np.abs(thread.received - thread.owed_by_rule).max())
            found.append((step.codec, up, down))
            if CHOICES.codec(step.codec).lossy:
                (session,) = thread.center._sessions.values()
                assert session._reference.values.tobytes() == thread.reference.values.tobytes()
                assert thread.reference.values.tobytes() == thread.center.given.tobytes()
            else:
                assert thread.reference.memory_bytes == 0
    return found


FATES = ("answered", "request", "reply", "settled")
steps = st.lists(
    st.builds(Step, st.sampled_from(CHOOSABLE), st.sampled_from((*FATES, "answered")), st.booleans()),
    min_size=1,
    max_size=25,
)
# No value is larger: differences of two, and an answer with what is owed.
LARGEST = 10.0


@settings(max_examples=150)
@given(steps, st.lists(st.integers(0, 24), max_size=2))
def test_what_is_off_is_what_the_last_codec_loses(drawn: list[Step], new_sessions: list[int]) -> None:
    """Of every answered exchange; by float32 nothing is, and all that was owed has arrived."""
    sequence = [
        Step(step.codec, "new session") if number in new_sessions else step
        for number, step in enumerate(drawn)
    ]
    for codec, up, down in errors([*sequence, Step("float32"), Step("int8"), Step("float32")]):
        assert up <= LOSES[codec] * LARGEST
        assert down <= LOSES[codec] * LARGEST + ROUNDING


SWITCHES = [Step(codec, fate) for fate in FATES for codec in ("int8", "bfloat16", "float32", "int8")]


def worst(sequence: list[Step]) -> tuple[float, float]:
    """What is off at the most after float32, up and down."""
    exact = [(up, down) for codec, up, down in errors([*sequence, Step("float32")]) if codec == "float32"]
    return max(up for up, _ in exact), max(down for _, down in exact)


def test_a_residual_that_a_switch_drops_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above, with a defect in the center."""
    up, down = worst(SWITCHES)
    assert up == 0.0
    assert down <= ROUNDING
    change = ErrorFeedback.change

    def forgetful(self: ErrorFeedback, codec: Codec) -> None:
        self._residual = np.zeros(0, np.float32)
        change(self, codec)

    monkeypatch.setattr(ErrorFeedback, "change", forgetful)
    up, down = worst(SWITCHES)
    assert up == 0.0
    assert down > 100 * ROUNDING


def test_a_residual_that_counts_although_its_reply_was_lost_would_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same, with a center that takes every answer for received."""
    lost = [Step("int8"), Step("int8", "reply"), Step("int8", "reply"), Step("bfloat16")]
    assert worst(lost)[1] < ROUNDING
    monkeypatch.setattr(ErrorFeedback, "discard", ErrorFeedback.commit)
    assert worst(lost)[1] > 100 * ROUNDING


def test_a_reference_that_one_end_keeps_over_float32_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with a thread that goes on from a reference that the center dropped."""
    thread = Thread(Center())
    for number, codec in enumerate(("int8", "int8", "float32")):
        assert thread.exchange(floats(number), Step(codec))
    kept = floats(7)

    def begin(self: Reference, codec: Codec | None = None) -> None:
        assert codec is not None
        self._codec, self._base, self.values = codec, 2, kept

    with monkeypatch.context() as defect:
        defect.setattr(thread.reference, "begin", begin.__get__(thread.reference))
        with pytest.raises(AssertionError):
            thread.exchange(floats(3), Step("int8"))
    assert len(thread.center.replies) == 3


def exchange(codec: str, request: int = 1, start: int = 0, elements: int = LENGTH) -> CenterNamedExchange:
    payload = np.zeros(4 * elements, np.uint8)
    return CenterNamedExchange(request, start, elements, 0, payload, codec, 0)


@pytest.mark.parametrize("codec", ["topk", "", "x" * 5000])
def test_an_unknown_codec_is_refused_by_name_and_changes_nothing(codec: str) -> None:
    center = Center()
    center.exchange(b"a/0", exchange("int8", elements=64))
    with pytest.raises(ValueError, match="is not allowed here; use float32, bfloat16, int8") as refused:
        center.exchange(b"a/0", exchange(codec, request=2))
    assert repr(codec)[:30] in str(refused.value)
    assert len(str(refused.value)) < 150
    # The exchange that was under way goes on.
    assert len(center.exchange(b"a/0", exchange("int8", start=64, elements=66))) == 2
    assert center.abandoned_exchanges == 0


def test_all_chunks_of_an_exchange_are_of_one_codec() -> None:
    center = Center()
    center.exchange(b"a/0", exchange("int8", elements=64))
    with pytest.raises(ValueError, match="codec 'bfloat16' is not allowed here; use 'int8', as before"):
        center.exchange(b"a/0", exchange("bfloat16", start=64, elements=66))
    assert center.applied_slices == 0
    assert len(center.exchange(b"a/0", exchange("int8", start=64, elements=66))) == 2


def test_a_job_either_names_codecs_or_does_not() -> None:
    plain = CenterExchange(1, 0, LENGTH, 0, np.zeros(4 * LENGTH, np.uint8))
    with pytest.raises(ValueError, match="the exchange names no codec; in this job it must name one"):
        Center().exchange(b"a/0", plain)
    fixed = CenterState(lambda _, values: values, LinkCodecs())
    fixed.seed(CenterSeed(1, 0, LENGTH, 0, np.zeros(LENGTH, np.float32)))
    with pytest.raises(ValueError, match="codec 'int8' is not allowed here; use the job's codec"):
        fixed.exchange(b"a/0", exchange("int8"))
    # The control: each where it belongs.
    assert len(fixed.exchange(b"a/0", plain)) == 1
    assert len(Center().exchange(b"a/0", exchange("int8"))) == 1


Context = zmq.Context[zmq.Socket[bytes]]


def over_a_link(context: Context, work: Callable[[CenterClient, FakeCenter], Awaitable[None]]) -> None:
    """Runs `work` in virtual time with a real client and a fake node that has the first value: all zeros."""

    async def main() -> None:
        fake = FakeCenter(context, lambda center, values: values - center, codecs=CHOICES)
        client = CenterClient(
            context,
            [fake.member],
            LENGTH,
            "a/shadow",
            chunk_bytes=4 * CHUNK,
            timeout_seconds=1.0,
            codecs=CHOICES,
        )
        try:
            await client.seed(torch.zeros(LENGTH))
            fake.heard.clear()
            await asyncio.wait_for(work(client, fake), 600.0)
        finally:
            client.close()
            await fake.close()

    run_in_virtual_time(main())


def named(fake: FakeCenter) -> list[tuple[str, int, int]]:
    """Codec, reference and last answered exchange that all chunks of each exchange have."""
    heard = [message for message in fake.heard if not isinstance(message, CenterRead)]
    fake.heard.clear()
    found: dict[int, tuple[str, int, int]] = {}
    for message in heard:
        assert isinstance(message, CenterNamedExchange)
        reported = (message.codec, message.reference, message.replied)
        assert found.setdefault(message.request, reported) == reported
    return list(found.values())


SLOW = 4 * LENGTH / 0.05
"""Bytes per second: the values alone take 0.05 s each way as float32."""


def test_a_slow_link_gets_a_smaller_codec_and_a_fast_one_float32_again(context: Context) -> None:
    async def work(client: CenterClient, fake: FakeCenter) -> None:
        (part,) = client.slices
        client.want_rounds_every(0.05)
        fake.bytes_per_second = SLOW
        for number in range(5):
            await client.exchange(part, torch.from_numpy(floats(number)))
        # The first one by another codec starts the reference.
        expected = [*[("float32", 0, number) for number in (0, 2, 3)], ("int8", 0, 4), ("int8", 5, 5)]
        assert named(fake) == expected
        assert client.metrics()["codec/sync-0/now"] == CHOOSABLE.index("int8")
        assert 0.5 * SLOW < client.metrics()["codec/sync-0/bytes_per_second"] < SLOW
        fake.bytes_per_second = 1000 * SLOW
        for number in range(5, 30):
            await client.exchange(part, torch.from_numpy(floats(number)))
        codecs = [codec for codec, _, _ in named(fake)]
        assert codecs == sorted(codecs, reverse=True)
        assert codecs[-3:] == ["float32"] * 3
        assert client.reference_bytes == fake.state.reference_bytes == 0
        counts = client.metrics()
        found = [counts[f"codec/sync-0/{name}"] for name in CHOOSABLE]
        assert found == [3 + codecs.count("float32"), 0, 2 + codecs.count("int8")]
        assert client.refused_messages == 0

    over_a_link(context, work)


def test_a_settled_exchange_keeps_its_codec(context: Context) -> None:
    async def work(client: CenterClient, fake: FakeCenter) -> None:
        (part,) = client.slices
        chooser = client._slices[part].chooser
        assert chooser is not None
        chooser.codec = "int8"
        for number in range(2):
            await client.exchange(part, torch.from_numpy(floats(number)))
        fake.leaving = lambda _: []
        with pytest.raises(PeerLost):
            await client.exchange(part, torch.from_numpy(floats(2)))
        chooser.codec = "bfloat16"
        fake.leaving = as_it_is
        fake.heard.clear()
        await client.settle(part)
        assert named(fake) == [("int8", 3, 3)]
        await client.exchange(part, torch.from_numpy(floats(3)))
        chooser.codec = "float32"
        for number in range(4, 6):
            await client.exchange(part, torch.from_numpy(floats(number)))
        assert named(fake) == [("bfloat16", 4, 4), ("float32", 0, 5), ("float32", 0, 6)]
        assert client.reference_bytes == fake.state.reference_bytes == 0

    over_a_link(context, work)


def test_a_reply_that_was_lost_is_told_to_the_node(context: Context) -> None:
    async def work(client: CenterClient, fake: FakeCenter) -> None:
        (part,) = client.slices
        await client.exchange(part, torch.from_numpy(floats(1)))

        def nothing(reply: CenterValues) -> Leaving:  # noqa: ARG001
            return []

        fake.leaving = nothing
        with pytest.raises(PeerLost):
            await client.exchange(part, torch.from_numpy(floats(2)))
        fake.leaving = as_it_is
        await client.exchange(part, torch.from_numpy(floats(3)))
        await client.exchange(part, torch.from_numpy(floats(4)))
        assert [replied for _, _, replied in named(fake)] == [0, 2, 2, 4]

    over_a_link(context, work)
