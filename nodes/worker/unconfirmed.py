"""A worker's pushed batches that the coordinator has not confirmed."""

from __future__ import annotations

from collections.abc import Callable

Delivered = tuple[str, int]
"""A reader's name, and the sequence of one of its deliveries."""


class UnconfirmedBatches:
    """Pushed batches without confirmation; owned by the worker's thread."""

    def __init__(self) -> None:
        self._batches: set[Delivered] = set()
        self._waiting: list[tuple[set[Delivered], Callable[[], object]]] = []

    def pushed(self, reader: str, sequence: int) -> None:
        """Record that a batch is pushed."""
        self._batches.add((reader, sequence))

    def confirmed(self, reader: str, sequence: int) -> None:
        """Record that the coordinator has a batch, or knows that it is left out."""
        self._batches.discard((reader, sequence))

    def settle(self, reply: Callable[[], object]) -> None:
        """Call `reply` from `look`, once all that is pushed by now is confirmed."""
        self._waiting.append((set(self._batches), reply))

    def look(self) -> None:
        """Call the replies that are due; to be called again and again."""
        for batches, reply in tuple(self._waiting):
            if not batches & self._batches:
                self._waiting.remove((batches, reply))
                reply()
