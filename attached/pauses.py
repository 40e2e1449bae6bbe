"""A pause of an attached loop, from one callback to another."""

from __future__ import annotations

import contextlib

from .loop import AttachedLoop


class Pause:
    """The block of `AttachedLoop.paused`, as two calls on the loop's thread."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._is_on = False

    def begin(self, loop: AttachedLoop | None) -> None:
        """Pause the loop; nothing without one, or if it is paused or over."""
        if loop is not None and not self._is_on and not loop.is_over:
            self._open.enter_context(loop.paused())
            self._is_on = True

    def end(self) -> None:
        """End the pause, if there is one."""
        self._is_on = False
        self._open.close()
