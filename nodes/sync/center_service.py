"""The sync node's service: the only coroutine that touches its slice of the center."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...pipeline.wire.messages import CenterExchange, CenterRead, CenterSeed
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import Listener
from ..runtime.loop_thread import LoopThread
from ..runtime.loops import ListeningLoop
from .center import CenterState


class CenterService(ListeningLoop, LoopThread):
    """Answers exchanges, reads and seeds, on a loop and a thread of its own.

    An exchange that becomes whole is applied at once, and one takes the node about 1 ms of CPU a MB of the
    slice: on the node's control loop its heartbeats would wait for that.
    """

    def __init__(
        self, listener: Listener, state: CenterState, failed: Callable[[BaseException], None]
    ) -> None:
        ListeningLoop.__init__(self, listener)
        LoopThread.__init__(self, "center", failed)
        self.state = state

    def metrics(self) -> dict[str, Any]:
        """Counts so far; any thread may read them."""
        return super().metrics() | {
            "applied_slices": self.state.applied_slices,
            "repeated_chunks": self.state.repeated_chunks,
            "reference_bytes": self.state.reference_bytes,
        }

    def body(self) -> None:
        """See `LoopThread.body`; this thread is one for torch too."""
        torch.set_num_threads(1)
        super().body()

    async def main(self) -> None:
        """Serves."""
        await self.serve()

    def handle(self, identity: bytes, message: Message) -> None:
        """See `CenterState`."""
        if isinstance(message, CenterExchange):
            for answer in self.state.exchange(identity, message):
                self.listener.send(identity, answer)
        elif isinstance(message, CenterRead):
            self.listener.send(identity, self.state.read(message))
        elif isinstance(message, CenterSeed):
            self.listener.send(identity, self.state.seed(message))
        else:
            raise ValueError(f"a sync node takes no {message.KIND}")
