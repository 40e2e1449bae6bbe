"""Links of trainers that come and go: one that is gone has none, one that comes back has a new one."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from shadowsync.nodes.allreduce.sockets import PeerListener
from shadowsync.sync_algos.base import PeerLost
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.jobs.processes import until
from shadowsync.tests.support.sync.peer_transports import Bench, Context, bench, mean_of, means, vector
from shadowsync.tests.unit.nodes.allreduce.test_transport import exact, run


def comes_back(made: Bench, index: int) -> None:
    """A trainer's link ends, and another takes its place under another token, at another address."""
    made.transports.pop(index).close()
    made.sockets[index] = PeerListener(made.context, f"inproc://again-{index}")
    before = made.members[index]
    made.members[index] = dataclasses.replace(
        before, token=f"{before.token}.2", endpoint=made.sockets[index].endpoint
    )
    for transport in made.transports.values():
        transport.add(made.members[index])
    made.open(index)


@pytest.mark.parametrize("is_dropped", [False, True])
@run_by(run)
async def test_one_that_comes_back_under_another_token_takes_part(context: Context, is_dropped: bool) -> None:
    """Whether the others hear of its end before or after that."""
    async with bench(context, 3, 1000) as made:
        values = [vector(1000, index) for index in range(3)]
        await means(list(made.transports.values()), values)
        gone = made.members[1].token
        for transport in (made.transports[0], made.transports[2]):
            if is_dropped:
                transport.drop(gone)
        comes_back(made, 1)
        for transport in (made.transports[0], made.transports[2]):
            transport.drop(gone)
        made.regroup(2, range(3))
        results = await means([made.transports[index] for index in range(3)], values)
        assert all(torch.equal(result, exact(values)) for result in results)
        assert not any(made.reports[index].late for index in range(3))
        assert not any(made.transports[index].refused_messages for index in range(3))


@run_by(run)
async def test_one_that_is_gone_has_no_socket_and_its_bytes_count(context: Context) -> None:
    async with bench(context, 3, 1000) as made:
        values = [vector(1000, index) for index in range(3)]
        await means(list(made.transports.values()), values)
        kept = made.transports[0]
        before, counts = kept.sent_bytes, kept.metrics()
        sockets = {index: sender.socket for index, sender in kept._senders.items()}
        assert counts["to/trainer-1"] > 0
        # It is heard of in the middle of a round, before the new group is.
        waiting = asyncio.create_task(mean_of(kept, values[0]))
        await asyncio.sleep(0)
        made.transports.pop(1).close()
        for transport in made.transports.values():
            transport.drop(made.members[1].token)
            transport.drop("unknown")
        assert (sockets[1].closed, sockets[2].closed) == (True, False)
        made.regroup(2, [0, 2])
        with pytest.raises(PeerLost):
            await waiting
        rest = [made.transports[0], made.transports[2]]
        results = await means(rest, [values[0], values[2]])
        assert all(torch.equal(result, exact([values[0], values[2]])) for result in results)
        assert kept.sent_bytes > before
        after = kept.metrics()
        # A name for each that was ever there would not fit into a heartbeat some day.
        assert "to/trainer-1" not in after
        assert after["to/trainer-2"] > counts["to/trainer-2"]
        assert after["peers_up_bytes"] > counts["peers_up_bytes"]


@pytest.mark.parametrize("left", [True, False])
@run_by(run)
async def test_late_messages_are_refused_unless_it_left(context: Context, left: bool) -> None:
    """What one that left had sent before is no fault; one that was declared dead is refused, and counted."""
    async with bench(context, 2, 1000) as made:
        values = [vector(1000, index) for index in range(2)]
        kept, gone = made.transports[0], made.transports[1]
        await means([kept, gone], values)
        before = kept.received_bytes
        kept.drop(made.members[1].token, left=left)
        sending = asyncio.create_task(mean_of(gone, values[1]))
        await until(lambda: kept.received_bytes > before, "a message of the one that left")
        assert kept.refused_messages == (0 if left else 1)
        sending.cancel()
