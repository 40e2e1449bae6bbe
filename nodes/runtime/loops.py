"""A `Listener` served by a coroutine of an asyncio loop."""

from __future__ import annotations

import time

from ...pipeline.wire.socket_events import SocketEvents
from ...pipeline.wire.sockets import has_message
from .message_handler import MessageHandler


class ListeningLoop(MessageHandler):
    """Handles messages on the loop that runs `serve`; everything here belongs to its thread.

    For work that never holds the loop for long; what does is a `ListeningService`.
    """

    _events: SocketEvents | None = None

    async def serve(self) -> None:
        """Serves until it is cancelled, then closes the socket."""
        events = self._events = SocketEvents(self.listener.socket)
        try:
            while True:
                await events.changed()
                self._take(time.monotonic())
                # More than is taken at once, or what came while an answer was sent: nobody tells of it.
                if has_message(self.listener.socket):
                    events.wake()
        finally:
            events.close()
            self.listener.close()

    def wake(self) -> None:
        """Something changed that `served` is to see."""
        if self._events is not None:
            self._events.wake()
