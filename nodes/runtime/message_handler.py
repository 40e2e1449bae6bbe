"""Handling messages of a `Listener`, whoever drives it: handling, refusals, counts."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from ...pipeline.wire.messages import Failure
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import Listener
from .tracing import TRACER


class MessageHandler(ABC):
    """Handle messages in order of arrival, on the thread that drives it.

    A message that `handle` refuses with a ValueError is counted, logged with its sender, and answered with
    `Failure`.

    Args:
        listener: the bound socket.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._busy_seconds = 0.0
        self._handled_seconds = 0.0
        self._handled = 0

    @abstractmethod
    def handle(self, identity: bytes, message: Message) -> None:
        """Handle one message; raises ValueError to refuse it."""

    def takes_more(self) -> bool:
        """Return whether to take messages.

        When False becomes True, the thread that drives this must be woken.
        """
        return True

    def served(self) -> None:  # noqa: B027 (most handlers have nothing to do then)
        """React to a wake; called after the received messages were handled."""

    def metrics(self) -> dict[str, Any]:
        """Return counts so far; any thread may call.

        `handled_seconds` were spent on the `handled_messages`. `busy_seconds` includes them: all seconds
        except waits for messages.
        """
        return {
            "sent_bytes": self.listener.sent_bytes,
            "received_bytes": self.listener.received_bytes,
            "refused_messages": self.listener.refusals.count,
            "unsent_messages": self.listener.unreachable_messages,
            "busy_seconds": self._busy_seconds,
            "handled_seconds": self._handled_seconds,
            "handled_messages": self._handled,
        }

    def refuse(self, identity: bytes, message: Message, error: ValueError) -> None:
        """Count, log and answer a message that failed after `handle` returned."""
        # As text: a log record with the error would keep all objects of the message alive.
        what = str(error)
        self.listener.refusals.add("refused a %s from %r: %s", message.KIND, identity, what)
        self.listener.send(identity, Failure(request=getattr(message, "request", 0), what=what))

    def _take(self, woken_at: float) -> None:
        """Handle received messages, up to the number that a `Listener` serves at once."""
        self.listener.serve(self._handle_or_refuse, self.takes_more)
        self.served()
        self._busy_seconds += time.monotonic() - woken_at

    def _handle_or_refuse(self, identity: bytes, message: Message) -> None:
        began = time.monotonic()
        try:
            self.handle(identity, message)
        except ValueError as error:
            self.refuse(identity, message, error)
        seconds = time.monotonic() - began
        self._handled += 1
        self._handled_seconds += seconds
        if TRACER.on:
            TRACER.note(message.KIND, began, seconds)
