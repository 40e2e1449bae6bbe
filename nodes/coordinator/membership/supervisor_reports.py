"""A supervisor's reports of processes that have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ....pipeline.errors import ExitCode, ProtocolError
from ....pipeline.wire.control.messages import ChildExited, ChildExitedReply
from ..recovery.deaths import Successors
from ..server import CoordinatorServer
from ..state.outcome import Stop
from ..state.phases import JobPhase


class SupervisorReports:
    """The ends of processes as their supervisor reports them. Runs on the coordinator's loop.

    Args:
        successors: by role, told of each end.
    """

    def __init__(self, server: CoordinatorServer, successors: Mapping[str, Successors]) -> None:
        self._server = server
        self._state = server.state
        self._successors = successors
        # By token: the supervisor repeats a request that was not answered in time.
        self._replies: dict[str, ChildExitedReply] = {}

    def has_ended(self, token: str) -> bool:
        """Return whether the end of a process was reported."""
        return token in self._replies

    async def answer(self, sender: str, request: ChildExited) -> ChildExitedReply:
        """Record the end of a process; reply whether another one is to be started.

        Raises ProtocolError unless the sender is the job's supervisor.
        """
        if not sender or sender != self._server.settings.supervisor:
            raise ProtocolError("only this job's supervisor may say that a process has ended")
        state, first_token = self._state, request.token
        # The supervisor knows a process by its first token.
        request = replace(request, token=state.members.newest_token(first_token))
        if state.members.find(request.token) is not None:
            self._server.mark_dead(request.token, f"died ({request.how})")
        # Nodes can join before all are there, and again once training has begun.
        await self._server.wait_for(lambda: state.lifecycle.phase is not JobPhase.STARTING)
        # The supervisor repeats a report that waits.
        if (before := self._replies.get(first_token)) is not None:
            return before
        replaces = bool(request.successor) and self._has_use_for_successor(request)
        self._record(request, replace=replaces)
        if request.role in self._successors:
            self._successors[request.role].exited(request.token, request.successor if replaces else "")
        self._server.spawn(self._server.notify())
        reply = self._replies[first_token] = ChildExitedReply(replaces)
        return reply

    def _has_use_for_successor(self, exited: ChildExited) -> bool:
        state, member = self._state, self._state.members.find(exited.token)
        if state.lifecycle.stop is not None or (member is not None and member.left):
            return False
        if state.members.started:
            return state.can_join(exited.role)
        # Another one would end in the same way as a process that ended by itself.
        return exited.code is ExitCode.STOPPED_BY_DEATH

    def _record(self, exited: ChildExited, *, replace: bool) -> None:
        """Record a process that never joined; stop a job that cannot start without it."""
        state, member = self._state, self._state.members.find(exited.token)
        if state.lifecycle.over:
            return
        if not state.members.started and not replace:
            who = f"a process of the role {exited.role} ended before it joined"
            if member is not None:
                who = f"{member.info.name} died before the job started"
            # Even an exit without error has ended the job early.
            code = exited.code if exited.code is not ExitCode.OK else ExitCode.STOPPED_BY_DEATH
            self._server.request_stop(Stop("death", f"{who} ({exited.how})", code))
        elif member is None:
            self._server.event(exited.role, f"a process ended before it joined ({exited.how})")
