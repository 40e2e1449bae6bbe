"""The transport of the all-reduce protocol over ZeroMQ, on the shadow thread's loop.

The transport carries the messages of `protocol.AllReduceState` and completes its callers' futures. A trainer
receives on one ROUTER, and sends on one DEALER per peer. Chunks are sent without a copy, from memory that
nobody writes: the values of `mean` and its result, which the caller must not change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import zmq

from ...pipeline.codecs.formats import LinkCodecs
from ...pipeline.config.sections import SyncSection
from ...pipeline.report.lateness import WAITED_SECONDS
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.messages import Failure
from ...pipeline.wire.schema import Message
from ...pipeline.wire.socket_events import SocketTurns, has_message
from ...sync_algos.base import Algorithm, PeerLost
from ...sync_algos.contract.grouping import Grouping, everyone
from ..runtime.members import Traffic
from .protocol import AllReduceState
from .round import Ended, Excluded, Late, Met, PeerCallbacks, Result, RoundEvent, RoundId
from .sockets import IDENTITY_SUFFIX, PeerListener, PeerSender

SENT_AT_ONCE = 4
RECEIVED_AT_ONCE = 8
TICKS_PER_TIMEOUT = 16
LONGEST_TICK_SECONDS = 0.25

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AllReduceGroup:
    """The trainers of one round over ZeroMQ; implements `Group` of `sync_algos`."""

    transport: AllReduceTransport
    round_id: RoundId
    members: tuple[int, ...]

    @property
    def round_number(self) -> int:
        """The number of earlier rounds of this set of trainers."""
        return self.round_id.number

    async def mean(self, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        """See `Group.mean`.

        A cancelled call still sends its values to the others, so they must not change until the next
        `meet` returns.
        """
        return await self.transport.reduce(self, values, weight)


class AllReduceTransport:
    """The other trainers, for one thread's asyncio loop; `meet` implements `Peers.meet`.

    Create it on that loop; all methods belong to the loop unless they say otherwise.

    Args:
        socket: the socket that the others send to; `close` closes it, and so does a constructor that raises.
        members: all trainers, by index.
        index: this trainer; `token` is its node's.
        numel, seed, codecs, algorithm: see `AllReduceState`.
        sync: the size of chunks, the timeout, and the mode: at a fixed rate rounds start eagerly.
    """

    def __init__(
        self,
        socket: PeerListener,
        context: zmq.Context[zmq.Socket[bytes]],
        members: Sequence[MemberInfo],
        index: int,
        token: str,
        *,
        numel: int,
        seed: int,
        sync: SyncSection,
        codecs: LinkCodecs,
        algorithm: Algorithm,
        callbacks: PeerCallbacks,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = socket.listener
        self._state = AllReduceState(
            index,
            numel=numel,
            seed=seed,
            chunk_elements=max(1, sync.chunk_bytes // 4),
            timeout_seconds=sync.timeout_seconds,
            eager=sync.mode == "fixed",
            codecs=codecs,
            algorithm=algorithm,
        )
        self._numel = numel
        self._callbacks = callbacks
        self._context, self._token = context, token
        self._peers: dict[bytes, int] = {}
        self._senders: dict[int, PeerSender] = {}
        self._traffic = Traffic()
        # Refusals by trainers that are gone, and the identities of trainers that left as they were told to.
        self._former_refusals = 0
        self._left: set[bytes] = set()
        self._listener.admit(())
        with ExitStack() as opened:
            # A context with an open socket cannot be terminated, so the node would never end.
            opened.callback(self._close_sockets)
            for member in members:
                if member.index != index:
                    self._connect(member)
            opened.pop_all()
        self._meeting: asyncio.Future[Met] | None = None
        self._reducing: tuple[RoundId, asyncio.Future[torch.Tensor]] | None = None
        self._was_awaited = False
        self._closed = False
        self._tick_seconds = min(sync.timeout_seconds / TICKS_PER_TIMEOUT, LONGEST_TICK_SECONDS)
        self._start()

    def _connect(self, member: MemberInfo) -> PeerSender:
        self._peers[_identity(member.token)] = member.index
        self._listener.admit_also(member.token)
        sender = self._senders[member.index] = PeerSender(self._context, member, self._token, self._traffic)
        return sender

    def _all_senders(self) -> tuple[PeerSender, ...]:
        # For other threads: a copy in one step, as one may be added or dropped meanwhile.
        return tuple(self._senders.values())

    def _start(self) -> None:
        sockets = (self._listener.socket, *(sender.socket for sender in self._senders.values()))
        self._turns = SocketTurns(self._take_turn, *sockets)
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)

    @property
    def awaited(self) -> bool:
        """Whether a peer is ready for a round not begun here."""
        return self._state.awaited

    @property
    def sent_bytes(self) -> int:
        """Bytes of the messages sent so far; any thread may read it."""
        return self._listener.sent_bytes + self._traffic.sent

    @property
    def received_bytes(self) -> int:
        """Bytes of the messages received so far; any thread may read it."""
        return self._listener.received_bytes

    @property
    def refused_messages(self) -> int:
        """Messages refused here or by the others."""
        by_senders = sum(sender.refusals.count for sender in self._all_senders())
        return self._listener.refusals.count + self._former_refusals + by_senders

    def metrics(self) -> dict[str, float]:
        """Return counts of what this trainer sent, to be summed over trainers.

        Any thread may call.
        """
        context = self._state.context
        counts = {
            "reference_bytes": context.coding.memory_bytes,
            "undecided_rounds": context.undecided_rounds,
            "refused_messages": self.refused_messages,
        }
        # Without those that are gone: over days they may be many.
        senders, waited = self._all_senders(), context.waited_seconds
        ends = {f"to/{sender.member.name}": sender.sent_bytes for sender in senders}
        waits = {
            WAITED_SECONDS + sender.member.name: waited.get(sender.member.index, 0.0) for sender in senders
        }
        return self._traffic.metrics("peers") | counts | ends | waits

    async def meet(self, grouping: Grouping = everyone) -> AllReduceGroup:
        """See `Peers.meet`.

        Raises PeerLost also if, within the timeout, this trainer is not in the group or no new group was
        formed after a lost peer.
        """
        if self._closed:
            raise PeerLost("the connection to the other trainers is closed")
        if self._reducing is not None and not self._reducing[1].done():
            # A cancelled call's values are still being sent.
            await asyncio.wait({self._reducing[1]})
        self._meeting = self._loop.create_future()
        self._state.want(grouping, self._loop.time())
        self._after_change()
        met = await self._meeting
        return AllReduceGroup(self, met.round_id, met.group)

    async def reduce(self, group: AllReduceGroup, values: torch.Tensor, weight: float) -> torch.Tensor:
        """Run `mean` of a group."""
        if values.dtype != torch.float32 or values.dim() != 1 or values.numel() > self._numel:
            raise ValueError(
                f"{values.dtype} of shape {tuple(values.shape)} given; float32 [<= {self._numel}] is expected"
            )
        if not 0 <= weight < float("inf"):
            raise ValueError(f"the weight {weight} given; it must be finite and not negative")
        done: asyncio.Future[torch.Tensor] = self._loop.create_future()
        # A cancelled caller never retrieves the exception.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._reducing = group.round_id, done
        array = values.detach().contiguous().numpy()
        self._state.start(group.round_id, array, weight, self._loop.time())
        self._after_change()
        return await asyncio.shield(done)

    def add(self, member: MemberInfo) -> None:
        """Connect to a trainer that joins the running job; a known one changes nothing.

        An attached loop that comes back has the index that it had, and another token.
        """
        known = self._senders.get(member.index)
        if self._closed or (known is not None and known.member.token == member.token):
            return
        if known is not None:
            self.drop(known.member.token)
        self._turns.add(self._connect(member).socket)

    def drop(self, token: str, *, left: bool = False) -> None:
        """Close the connection to a trainer that is gone; an unknown one changes nothing.

        What still arrives of one that `left` as told is no fault; of any other one it is refused.
        """
        index = self._peers.get(_identity(token))
        if self._closed or index is None:
            return
        del self._peers[_identity(token)]
        if left:
            self._left.add(_identity(token))
        sender = self._senders.pop(index)
        self._former_refusals += sender.refusals.count
        self._turns.remove(sender.socket)
        sender.close()
        self._state.context.send_queue.forget(index)

    def regroup(self, generation: int, members: Sequence[int]) -> None:
        """Set the members from the coordinator's decision."""
        if not self._closed:
            self._run_guarded(lambda: self._state.regroup(generation, members, self._loop.time()))
            self._turns.wake()

    def cancel(self) -> None:
        """Leave this generation; pending calls end with PeerLost."""
        if not self._closed:
            self._state.cancel(self._loop.time())
            self._after_change()

    def close(self) -> None:
        """End pending calls with PeerLost and close the sockets.

        A second call does nothing.
        """
        if self._closed:
            return
        self.cancel()
        self._closed = True
        self._stop()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for sender in self._senders.values():
            sender.close()
        self._listener.close()

    def _stop(self) -> None:
        self._timer.cancel()
        self._turns.close()

    def _after_change(self) -> None:
        """Deliver events of the protocol, and have its messages sent.

        Call it after each change of the protocol's state.
        """
        self._deliver_events()
        self._turns.wake()

    # Not a coroutine: with one, an all-reduce of 10 kB cost 12 % more CPU; see docs/architecture.md.
    def _take_turn(self) -> None:
        """Receive and send a few messages, then yield."""
        for sender in self._senders.values():
            sender.log_refusals()
        received_all = self._receive()
        if not self._send() or not received_all:
            self._turns.wake()

    def _receive(self) -> bool:
        """Accept what has arrived, RECEIVED_AT_ONCE at most; return whether that was all."""
        for _ in range(RECEIVED_AT_ONCE):
            if not has_message(self._listener.socket):
                return True
            if (received := self._listener.receive()) is None:
                continue
            self._accept(*received)
            self._deliver_events()
        return False

    def _accept(self, identity: bytes, message: Message) -> None:
        if identity in self._left:
            return
        peer = self._peers.get(identity)
        try:
            if peer is None:
                raise ValueError("the sender is not one of the trainers")
            self._state.receive(peer, message, self._loop.time())
        except ValueError as error:
            self._listener.refusals.add("refused a %s from %r: %s", message.KIND, identity, error)
            self._listener.send(identity, Failure(request=0, what=str(error)))
        except Exception as error:
            # An error of the algorithm, or a bug: the waiting caller must get it.
            log.exception("a %s from trainer %s could not be handled", message.KIND, peer)
            self._fail(error)

    def _send(self) -> bool:
        """Send queued messages; return whether all were sent."""
        send_queue = self._state.context.send_queue
        sent_all = True
        for peer in send_queue.waiting():
            sender = self._senders.get(peer)
            if sender is None:
                # It is gone, and the next group is without it.
                send_queue.forget(peer)
                continue
            for _ in range(SENT_AT_ONCE):
                if not sender.has_room:
                    break
                message = send_queue.take(peer)
                if message is None:
                    break
                sender.send(message)
            else:
                sent_all = False
        return sent_all

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)
        self._run_guarded(lambda: self._state.tick(self._loop.time()))
        self._turns.wake()

    def _run_guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            # An error of the grouping, or a bug: the waiting caller must get it.
            log.exception("the all-reduce protocol failed")
            self._fail(error)
        self._deliver_events()

    def _deliver_events(self) -> None:
        events = self._state.context.events
        while events:
            self._dispatch(events.popleft())
        awaited = self._state.awaited
        if awaited and not self._was_awaited:
            self._callbacks.awaited()
        self._was_awaited = awaited

    def _dispatch(self, event: RoundEvent) -> None:
        if isinstance(event, Late):
            self._callbacks.late(event.generation, event.index)
        elif isinstance(event, Excluded):
            self._callbacks.excluded()
        elif isinstance(event, Met):
            if self._meeting is not None and not self._meeting.done():
                self._meeting.set_result(event)
        elif isinstance(event, Result):
            if self._reducing is not None and self._reducing[0] == event.round_id:
                self._reducing[1].set_result(torch.from_numpy(event.values))
                self._reducing = None
        else:
            self._end_waiting(event)

    def _end_waiting(self, event: Ended) -> None:
        if self._reducing is not None and self._reducing[0] == event.round_id:
            self._reducing[1].set_exception(PeerLost(event.why))
            self._reducing = None
        elif self._meeting is not None and not self._meeting.done():
            self._meeting.set_exception(PeerLost(event.why))

    def _fail(self, error: Exception) -> None:
        if self._reducing is not None:
            self._reducing[1].set_exception(error)
            self._reducing = None
        elif self._meeting is not None and not self._meeting.done():
            self._meeting.set_exception(error)


def _identity(token: str) -> bytes:
    return (token + IDENTITY_SUFFIX).encode()
