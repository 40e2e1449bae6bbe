"""The place of a module at its hub, and at one that comes back."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from ...nodes.runtime.role import GONE_TIMEOUTS
from ...nodes.runtime.settings import NodeSettings
from ...pipeline.config.sections import RunSection
from ...pipeline.errors import ClusterError, ExitCode, ShadowSyncError
from ...pipeline.text.format import duration
from ..errors import AttachError
from ..job import loop_job
from ..joining import begin_or_end
from ..node_thread import NodeThread, await_first
from ..reconnect import LOOK_SECONDS, answers
from ..tables_job import settings_of
from .role import TablesRole
from .row_client import RowClient, RowsLost

END_SECONDS: Final = 15.0
# How a node ends if its hub, or a node of that hub, died. After any other end a second try would fail again.
_DEATHS: Final = (ExitCode.STOPPED_BY_DEATH, ExitCode.CLUSTER)

T = TypeVar("T")

log = logging.getLogger(__name__)


class TablesConnection:
    """A module's place at its hub; any thread may call.

    Args:
        endpoint: the hub's address.
        tables, max_pending: see `TablesRole`.
        timeout_seconds: how long to wait for the hub and its nodes.
        wait_seconds: how long a call waits for a hub that died to come back; 0: it does not.

    Attributes:
        role: the control side, another one after each return.

    Raises:
        AttachError: see `Embeddings`.
        ClusterError: see `Embeddings`.
    """

    def __init__(
        self,
        endpoint: str,
        tables: Mapping[str, Any] | None,
        *,
        max_pending: int,
        timeout_seconds: float,
        wait_seconds: float,
    ) -> None:
        self._settings = _node_settings(endpoint, timeout_seconds)
        self._timeout_seconds, self._max_pending = timeout_seconds, max_pending
        self._wait_seconds = wait_seconds
        self._returns = itertools.count(1)
        self._returning = threading.Lock()
        self._ended = threading.Event()
        role = TablesRole(tables, timeout_seconds, max_pending)
        self._thread, self.role = self._begin(role, self._settings), role

    def call(self, work: Callable[[RowClient], T]) -> T:
        """Run what needs the rows; once more at each hub that comes back.

        Raises ClusterError if the rows are gone, AttachError once the module has left.
        """
        while True:
            role = self.role
            try:
                return work(role.rows)
            except RowsLost as error:
                with self._returning:
                    # Another thread may have brought it back.
                    if self.role is role:
                        self._come_back(role, error)

    def lost(self, why: str) -> ClusterError:
        """Make the error for rows that are gone."""
        return ClusterError(
            f"the embedding nodes are gone, and the rows with them{f': {why}' if why else ''}",
            remedy="start the hub again: if it wrote checkpoints and died with --recover DIR, else with"
            " --resume DIR, and the loops, too",
        )

    def why_ended(self) -> tuple[ExitCode, str]:
        """Return how the module's node ended, as its rows are gone."""
        ended = self._thread.ended
        concurrent.futures.wait([ended], timeout=END_SECONDS)
        return ended.result() if ended.done() and ended.exception() is None else (ExitCode.INTERNAL, "")

    def leave(self) -> None:
        """Leave the hub; a thread that waits for one stops waiting."""
        self._ended.set()
        with self._returning:
            role, thread = self.role, self._thread
        with contextlib.suppress(concurrent.futures.CancelledError):
            await_first(thread.submit(role.leave), thread.ended)
        if not thread.join(END_SECONDS):
            thread.fail(ClusterError("the module left"))
            thread.join(END_SECONDS)

    def _begin(self, role: TablesRole, settings: NodeSettings) -> NodeThread[TablesRole]:
        """Return once the module may ask for rows; raises what prevents it."""
        thread = NodeThread(lambda: role, settings, "tables")
        thread.start()
        begin_or_end(thread, role.begun, "the module did not join", END_SECONDS)
        return thread

    def _come_back(self, before: TablesRole, error: RowsLost) -> None:
        """Wait for a hub that has the rows, and go on there."""
        code, why = self.why_ended()
        if code not in _DEATHS or not self._wait_seconds or self._ended.is_set():
            self._require_here(error)
            raise self.lost(why) from error
        endpoint, wait = self._settings.join, duration(self._wait_seconds)
        log.error("the hub is gone: %s; the module waits %s for one at %s", why, wait, endpoint)
        deadline, reason = time.monotonic() + self._wait_seconds, ""
        while time.monotonic() < deadline:
            if answers(endpoint):
                failure = self._take(before)
                if failure is None:
                    return
                if str(failure) != reason:
                    reason = str(failure)
                    log.warning("the module cannot come back yet: %s", reason)
            self._ended.wait(LOOK_SECONDS)
            self._require_here(error)
        raise self.lost(f"no hub that has them came to {endpoint} within {wait} ({reason or why})") from error

    def _take(self, before: TablesRole) -> ShadowSyncError | None:
        """Take the place of the role before; return why not yet.

        Raises what no later attempt can change.
        """
        assert before.job is not None
        role = TablesRole(settings_of(before.job), self._timeout_seconds, self._max_pending, before)
        again = replace(self._settings, token=f"{self._settings.token}.{next(self._returns)}")
        try:
            thread = self._begin(role, again)
        except ShadowSyncError as failure:
            if role.is_refused:
                raise
            return failure
        self._thread, self.role = thread, role
        how = f"lost: {role.lost:,} of {role.passes:,} backward passes of this module"
        log.log(logging.ERROR if role.lost else logging.WARNING, "the hub is back; %s", how)
        return None

    def _require_here(self, error: RowsLost) -> None:
        if self._ended.is_set():
            raise AttachError("was closed", where="Embeddings") from error


def _node_settings(endpoint: str, timeout_seconds: float) -> NodeSettings:
    # So it notices within one node timeout that its hub is gone.
    seconds = RunSection().node_timeout_seconds / GONE_TIMEOUTS
    job = loop_job({"run.start_timeout_seconds": timeout_seconds, "run.node_timeout_seconds": seconds})
    return NodeSettings(job, join=endpoint)
