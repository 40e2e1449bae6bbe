"""Trainers' links over ZeroMQ: all-reduces, and what happens to those that wait."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.allreduce.context import MOST_SAVED_RESULTS
from shadowsync.pipeline.codecs.formats import LinkCodecs, make_codec
from shadowsync.pipeline.weighted_mean import WeightedMean
from shadowsync.pipeline.wire.buffers import bytes_of
from shadowsync.pipeline.wire.messages import Failure, Lookup
from shadowsync.pipeline.wire.peer_messages import PeerReady, PeerResult
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.sync_algos.base import PeerLost
from shadowsync.sync_algos.contract.grouping import Groups, everyone
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.held_memory import count_allocations, idle_bytes
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.sync.peer_transports import Context, bench, mean_of, means, sockets_of, vector

T = TypeVar("T")
ENOUGH_SECONDS = 60.0
SHORT_SECONDS = 0.4
INSTANT_SECONDS = 0.001


def run(work: Coroutine[Any, Any, None], *, threads: bool = False) -> None:
    """Runs it on a loop of its own; what a callback of the loop raises fails it, too.

    In virtual time, unless it has threads, or ZeroMQ has for it, as for all but `inproc://`. After any such
    time everything has happened that can happen without more of it.
    """
    raised: list[dict[str, Any]] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))  # noqa: ARG005
        await asyncio.wait_for(work, ENOUGH_SECONDS)

    (asyncio.run if threads else run_in_virtual_time)(bounded())
    assert not raised


async def begun(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that has done all that it can in no time."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=INSTANT_SECONDS)
    return task


def exact(values: list[torch.Tensor], weights: Sequence[float] = ()) -> torch.Tensor:
    """Return what the trainer that reduces has, to the bit; without weights they are equal."""
    mean = torch.empty_like(values[0])
    WeightedMean().into(mean.numpy(), [one.numpy() for one in values], weights or [1.0] * len(values))
    return mean


@pytest.mark.parametrize(
    ("address", "count"),
    [
        ("tcp://127.0.0.1:0", 3),
        ("ipc://@shadowsync-PID-{}", 3),
        ("inproc://p-{}", 3),
        ("inproc://p-{}", 2),
        ("inproc://p-{}", 1),
    ],
)
def test_means_over_sockets(context: Context, address: str, count: int) -> None:
    # The kernel has one such name for the whole machine, where other tests may run beside this one.
    own = address.replace("PID", str(os.getpid()))

    async def work() -> None:
        async with bench(context, count, 10_000, own) as made:
            transports = list(made.transports.values())
            for number in range(3):
                values = [vector(10_000, 10 * number + index) for index in range(count)]
                results = await means(transports, values)
                assert all(torch.equal(result, exact(values)) for result in results)
            sent = 3 * 10_000 * 4 * 2 * (count - 1) // count
            for transport in transports:
                assert sent <= transport.sent_bytes <= sent * 1.4 + 1000
                assert transport.received_bytes <= sent * 1.4 + 1000
                assert transport.refused_messages == transport.metrics()["undecided_rounds"] == 0
            assert sum(transport.sent_bytes for transport in transports) == sum(
                transport.received_bytes for transport in transports
            )

    run(work(), threads=not address.startswith("inproc://"))


@run_by(run)
async def test_weights_and_a_large_message(context: Context) -> None:
    async with bench(context, 2, 1_000_000, chunk_bytes=1 << 20) as made:
        one, other = vector(1_000_000, 1), vector(1_000_000, 2)
        results = await asyncio.gather(
            mean_of(made.transports[0], one, 3.0), mean_of(made.transports[1], other, 1.0)
        )
        expected = exact([one, other], [3.0, 1.0])
        assert torch.equal(results[0], expected)
        assert torch.equal(results[1], expected)
        assert not torch.equal(results[0], exact([one, other])), "the control"


@run_by(run)
async def test_results_that_are_kept_are_not_written_by_later_rounds(context: Context) -> None:
    async with bench(context, 2, 5000) as made:
        transports = list(made.transports.values())
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number in range(6):
            values = [vector(5000, 2 * number), vector(5000, 2 * number + 1)]
            kept += [(result, exact(values)) for result in await means(transports, values)]
        assert all(torch.equal(result, expected) for result, expected in kept)


@run_by(partial(run, threads=True))
async def test_rounds_are_in_the_same_memory_again_and_again(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocations = count_allocations(monkeypatch)
    async with bench(context, 3, 50_000) as made:
        transports = list(made.transports.values())
        values = [vector(50_000, index) for index in range(3)]
        expected = exact(values)
        pools = [transport._state._streaming.buffers for transport in transports]

        def at_rest() -> bool:
            in_use = (allocations(pool) - idle_bytes(pool) // bytes_of(50_000) for pool in pools)
            return max(in_use) <= MOST_SAVED_RESULTS

        for _ in range(6):
            assert all(torch.equal(result, expected) for result in await means(transports, values))
            # ZeroMQ lets go of what has left on a thread of its own.
            await asyncio.to_thread(wait_until, at_rest, "only what may be asked for is in use")
        # What a late peer may ask for, and the result that is made.
        assert all(0 < allocations(pool) <= MOST_SAVED_RESULTS + 1 for pool in pools)


def test_every_trainer_on_a_thread_of_its_own(context: Context) -> None:
    """As in the product: the socket is bound on one thread and served on another."""
    made = sockets_of(context, 3, 20_000, "tcp://127.0.0.1:0")
    values = [vector(20_000, index) for index in range(3)]
    results: dict[int, torch.Tensor] = {}
    failures: list[BaseException] = []
    done = threading.Barrier(3)

    async def work(index: int) -> None:
        transport = made.open(index)
        transport.regroup(1, range(3))
        for _ in range(5):
            results[index] = await mean_of(transport, values[index])
        # Whoever closes first would be missing to one that has still to ask.
        await asyncio.to_thread(done.wait, ENOUGH_SECONDS)
        transport.close()

    def body(index: int) -> None:
        try:
            run(work(index), threads=True)
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)
            done.abort()

    threads = [threading.Thread(target=body, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ENOUGH_SECONDS)
    assert not failures
    assert all(torch.equal(results[index], exact(values)) for index in range(3))


@run_by(run)
async def test_the_codec_of_the_job_is_that_of_the_link(context: Context) -> None:
    """Fewer bytes from the second round on; what the references take is reported."""
    codecs = LinkCodecs(make_codec("int8"), make_codec("int8"))
    async with bench(context, 3, 30_000, codecs=codecs, chunk_bytes=40_000) as made:
        transport, sent = made.transports[0], [0]
        for _ in range(2):
            await means(list(made.transports.values()), [vector(30_000, index) for index in range(3)])
            sent.append(transport.sent_bytes)
        assert sent[2] - sent[1] < 0.55 * sent[1]
        # Its own values, the results, and the others' parts of its own slice.
        assert transport.metrics()["reference_bytes"] >= 4 * (2 * 30_000 + 2 * 10_000)


@pytest.mark.parametrize(("codec", "least", "most"), [("float32", 0.9, 1.1), ("sparse", 0.0, 0.1)])
@run_by(run)
async def test_zeros_do_not_travel_with_the_sparse_codec(
    context: Context, codec: str, least: float, most: float
) -> None:
    """In neither direction, and the mean is as exact; float32, the control, sends them in full."""
    codecs = LinkCodecs(make_codec(codec), make_codec(codec))
    async with bench(context, 3, 30_000, codecs=codecs, chunk_bytes=40_000) as made:
        transport = made.transports[0]
        sent = []
        for step in (1, 30):
            before = transport.sent_bytes
            values = [vector(30_000, index) for index in range(3)]
            for one in values:
                one[torch.arange(30_000) % step > 0] = 0.0
            results = await means(list(made.transports.values()), values)
            assert all(torch.equal(result, exact(values)) for result in results)
            sent.append(transport.sent_bytes - before)
        # A bitmap is a 32nd of the values, and a 30th of them is left.
        assert least * sent[0] < sent[1] < most * sent[0]


@run_by(run)
async def test_a_peer_that_never_comes_is_reported_and_left_out(context: Context) -> None:
    made = sockets_of(context, 3, 1000, "inproc://peer-{}")
    transports = [made.open(index, timeout_seconds=SHORT_SECONDS) for index in range(2)]
    made.regroup(1, range(3))
    values = [vector(1000, index) for index in range(2)]
    started = asyncio.get_running_loop().time()
    lost = await asyncio.gather(
        *(mean_of(*p) for p in zip(transports, values, strict=True)), return_exceptions=True
    )
    assert all(isinstance(error, PeerLost) for error in lost)
    assert SHORT_SECONDS < asyncio.get_running_loop().time() - started < 1.5 * SHORT_SECONDS
    late = {report for reports in made.reports.values() for report in reports.late}
    assert late == {(1, 2)}
    made.regroup(2, [0, 1])
    results = await means(transports, values)
    assert all(torch.equal(result, exact(values)) for result in results)
    for transport in transports:
        transport.close()
    made.sockets[2].close()


@run_by(run)
async def test_without_a_new_group_nothing_hangs_and_nothing_spins(context: Context) -> None:
    made = sockets_of(context, 2, 1000, "inproc://peer-{}")
    transport = made.open(0, timeout_seconds=SHORT_SECONDS)
    made.regroup(1, [0, 1])
    loop = asyncio.get_running_loop()
    for _ in range(3):
        started = loop.time()
        with pytest.raises(PeerLost):
            await transport.meet()
        assert SHORT_SECONDS < loop.time() - started < 1.5 * SHORT_SECONDS
    assert made.reports[0].late == [(1, 1)], "once a generation"
    transport.close()
    made.sockets[1].close()


@run_by(run)
async def test_a_peer_that_meets_and_gives_nothing(context: Context) -> None:
    """It is late, though it is alive: the others lose the round, it loses it too, and all go on."""
    async with bench(context, 3, 1000, timeout_seconds=SHORT_SECONDS) as made:
        values = [vector(1000, index) for index in range(3)]
        working = [asyncio.ensure_future(mean_of(made.transports[at], values[at])) for at in range(2)]
        group = await made.transports[2].meet()
        await asyncio.wait(working)
        assert all(isinstance(task.exception(), PeerLost) for task in working)
        assert {late for at in range(2) for late in made.reports[at].late} == {(1, 2)}
        with pytest.raises(PeerLost):
            await group.mean(values[2])
        made.regroup(2, range(3))
        results = await means(list(made.transports.values()), values)
        assert all(torch.equal(result, exact(values)) for result in results)
        assert all(transport.metrics()["undecided_rounds"] == 0 for transport in made.transports.values())


@run_by(run)
async def test_one_that_is_not_of_the_group_is_told_so(context: Context) -> None:
    async with bench(context, 2, 100, timeout_seconds=SHORT_SECONDS) as made:
        made.regroup(2, [0])
        with pytest.raises(PeerLost):
            await made.transports[1].meet()
        assert made.reports[1].excluded == 1
        assert made.reports[0].excluded == 0
        # The last round works with one.
        assert torch.equal(await mean_of(made.transports[0], vector(100, 1)), vector(100, 1))
        waiting = await begun(mean_of(made.transports[1], vector(100, 2)))
        made.regroup(3, [0, 1])
        result = await mean_of(made.transports[0], vector(100, 1))
        assert torch.equal(await waiting, result), "let in while it waits, it takes part"


@run_by(run)
async def test_a_regroup_ends_what_waits(context: Context) -> None:
    async with bench(context, 2, 100) as made:
        waiting = await begun(made.transports[0].meet())
        assert not waiting.done()
        made.regroup(2, [0, 1])
        with pytest.raises(PeerLost):
            await waiting
        # What is older is ignored.
        made.regroup(1, [0])
        values = [vector(100, 1), vector(100, 2)]
        assert torch.equal((await means(list(made.transports.values()), values))[0], exact(values))


@run_by(run)
async def test_cancel_ends_what_waits_here_and_there(context: Context) -> None:
    async with bench(context, 2, 100) as made:
        group = await asyncio.gather(made.transports[0].meet(), made.transports[1].meet())
        waiting = await begun(group[0].mean(vector(100, 1)))
        made.transports[1].cancel()
        made.transports[0].cancel()
        with pytest.raises(PeerLost):
            await waiting
        with pytest.raises(PeerLost):
            await group[1].mean(vector(100, 1))
        made.regroup(2, [0, 1])
        waiting_too = await begun(made.transports[0].meet())
        made.transports[1].cancel()
        with pytest.raises(PeerLost):
            # Long before its timeout: the other says that it takes part no more.
            await asyncio.wait_for(waiting_too, INSTANT_SECONDS)


@run_by(run)
async def test_a_cancelled_meet_or_mean_leaves_the_link_usable(context: Context) -> None:
    async with bench(context, 2, 1000) as made:
        one, other = made.transports[0], made.transports[1]
        values = [vector(1000, 1), vector(1000, 2)]
        meeting = await begun(one.meet())
        meeting.cancel()
        assert torch.equal((await means([one, other], values))[0], exact(values))
        # A mean that is given up still counts for the others.
        groups = await asyncio.gather(one.meet(), other.meet())
        reducing = await begun(groups[0].mean(values[0]))
        reducing.cancel()
        assert torch.equal(await groups[1].mean(values[1]), exact(values))
        results = await means([one, other], values)
        assert all(torch.equal(result, exact(values)) for result in results)


@run_by(run)
async def test_wanted_says_that_others_are_ready(context: Context) -> None:
    async with bench(context, 2, 100) as made:
        one, other = made.transports[0], made.transports[1]
        assert not one.awaited
        called = asyncio.Event()
        one._callbacks = replace(one._callbacks, awaited=called.set)
        waiting = asyncio.ensure_future(mean_of(other, vector(100, 1)))
        await called.wait()
        assert one.awaited
        assert not other.awaited
        await mean_of(one, vector(100, 2))
        await waiting
        assert not one.awaited
        assert made.reports[1].awaited == 0


@run_by(run)
async def test_eager_rounds_do_not_wait_for_the_others_to_meet(context: Context) -> None:
    async with bench(context, 2, 1000, mode="fixed") as made:
        one, other = made.transports[0], made.transports[1]
        values = [vector(1000, 1), vector(1000, 2)]
        # The first round of a generation waits, so that states are adopted before it.
        first = await begun(one.meet())
        assert not first.done()
        groups = [await other.meet(), await first]
        await asyncio.gather(*(g.mean(v) for g, v in zip(groups, reversed(values), strict=True)))
        group = await asyncio.wait_for(one.meet(), INSTANT_SECONDS)
        reducing = await begun(group.mean(values[0]))
        assert not reducing.done()
        # Its chunks were kept.
        assert torch.equal(await mean_of(other, values[1]), exact(values))
        assert torch.equal(await reducing, exact(values))


@run_by(partial(run, threads=True))
async def test_strangers_and_nonsense_are_refused(context: Context) -> None:
    """Counted, logged, answered; and the round goes on."""
    async with bench(context, 2, 1000, "tcp://127.0.0.1:0") as made:
        transport = made.transports[0]
        stranger = Connection(context, made.members[0].endpoint, "who/peer")
        fake = Connection(context, made.members[0].endpoint, "token-1/else")
        payload = np.zeros(400, dtype=np.uint8)
        nonsense: list[Message] = [
            PeerReady(1, 0, 0),
            PeerResult(1, 0, 0, 100, 0, payload),
            Lookup(1, np.zeros(1, dtype=np.int32)),
        ]
        for sender in (stranger, fake):
            for message in nonsense:
                sender.send(message)
        replies = 0
        while replies < 6:
            await asyncio.wait({asyncio.ensure_future(asyncio.to_thread(stranger.socket.poll, 20))})
            for sender in (stranger, fake):
                while (reply := sender.receive()) is not None:
                    assert isinstance(reply, Failure)
                    replies += 1
        assert transport.refused_messages == 6
        values = [vector(1000, 1), vector(1000, 2)]
        results = await means(list(made.transports.values()), values)
        assert all(torch.equal(result, exact(values)) for result in results)
        stranger.close()
        fake.close()


@pytest.mark.parametrize(
    "values", [torch.zeros(10, dtype=torch.float64), torch.zeros(2, 5), torch.zeros(1001)], ids=str
)
@run_by(run)
async def test_what_is_no_flat_buffer_is_refused(context: Context, values: torch.Tensor) -> None:
    async with bench(context, 1, 1000) as made:
        group = await made.transports[0].meet()
        with pytest.raises(ValueError, match="float32"):
            await group.mean(values)
        with pytest.raises(ValueError, match="weight"):
            await group.mean(torch.zeros(10), -1.0)


@run_by(run)
async def test_a_closed_link_says_so(context: Context) -> None:
    async with bench(context, 2, 100) as made:
        waiting = await begun(made.transports[0].meet())
        made.transports[0].close()
        with pytest.raises(PeerLost):
            await waiting
        with pytest.raises(PeerLost):
            await made.transports[0].meet()
        made.transports[0].regroup(2, [0])
        made.transports[0].cancel()
        made.transports[0].close()


@run_by(run)
async def test_a_grouping_that_fails_for_the_new_members_is_heard_of(context: Context) -> None:
    """Whoever waits to meet gets the error, and does not wait for ever."""

    def only_for_two(members: Sequence[int], round_number: int, seed: int) -> Groups:
        if len(members) < 2:
            raise RuntimeError("made for two")
        return everyone(members, round_number, seed)

    async with bench(context, 2, 100) as made:
        # Out of this generation, it waits for the next one.
        made.transports[0].cancel()
        meeting = await begun(made.transports[0].meet(only_for_two))
        made.transports[0].regroup(100, [0])
        with pytest.raises(RuntimeError, match="made for two"):
            await meeting
