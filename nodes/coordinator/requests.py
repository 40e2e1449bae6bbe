"""The requests of nodes, supervisors and watchers, and the coordinator's replies."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ...pipeline.data.span import span_to_body
from ...pipeline.errors import ClusterError, ExitCode, ProtocolError
from ...pipeline.types import BatchId
from .membership import Member
from .outcome import Stop
from .server import CoordinatorServer
from .state import Phase, TrainedBatch
from .status import answer_status

log = logging.getLogger(__name__)


class RequestHandler:
    """Handles every request by its verb. Runs on the coordinator's loop."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self._state = server.state
        self._store = server.store

    async def handle(self, token: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question; raises ShadowSyncError for what cannot be done."""
        if verb == "hello":
            return self._hello(token, body)
        if verb in ("exited", "status"):
            return self._supervisor(token, verb, body)
        member = self._state.members.require(token)
        if verb == "ready":
            self._state.members.ready(token, body)
            await self._server.notify()
            return {}
        if verb == "failed":
            code = ExitCode(int(body["exit_code"]))
            # A node of which a part has died is itself dead, no more; other failures are the job's.
            if code is not ExitCode.STOPPED_BY_DEATH:
                self._server.request_stop(Stop("failed", f"{member.info.name}: {body['what']}", code))
            # It ends once it has the answer, so nobody should wait for it.
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, self._server.mark_dead, token, f"failed: {body['what']}")
            return {}
        if verb == "interrupt":
            text = f"{member.info.name} was asked to stop"
            self._server.request_stop(Stop("interrupted", text, ExitCode.INTERRUPTED))
            return {}
        work = {
            "late": self._late,
            "rejoin": self._rejoin,
            "trained": self._trained,
            "next_span": self._next_span,
            "span_read": self._span_read,
            "returned": self._returned,
        }
        if verb not in work:
            raise ProtocolError(f"a coordinator does not know {verb!r}")
        try:
            answer = work[verb](member, body)
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"{verb}: {error}") from error
        await self._server.notify()
        return answer

    def _hello(self, token: str, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("token") != token:
            raise ClusterError("the token is not the connection's")
        if self._state.over:
            # Nobody would tell it when to end.
            raise ClusterError("the job has ended", remedy="start its nodes again")
        role, digest, endpoint = str(body.get("role")), str(body.get("digest")), str(body.get("endpoint"))
        host, pid = str(body.get("host", "")), int(body.get("pid", 0))
        member = self._state.join(role, token, digest, endpoint, host, pid)
        log.info("%s joined (%s)", member.info.name, member.info.endpoint or "connects only")
        return {
            "name": member.info.name,
            "index": member.info.index,
            "folder": str(self._state.folder.resolve()),
            "plan": self._state.placement.plan.to_body(),
        }

    def _supervisor(self, asker: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        if verb == "exited":
            token, how = str(body["token"]), str(body["how"])
            member = self._state.members.find(token)
            if member is None:
                text = f"a {body['role']} ended before it joined ({how})"
                self._server.request_stop(Stop("death", text, ExitCode(int(body["code"]))))
            else:
                self._server.mark_dead(token, f"died ({how})")
            return {}
        answer = answer_status(self._state, body)
        if body.get("tell_end") is True:
            self._server.sessions.watches(asker)
        return answer

    def _trained(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:
        batches = [
            TrainedBatch(
                BatchId.from_wire(wire_id),
                int(examples),
                float(loss_sum),
                float(positives),
                float(weight),
                float(age),
            )
            for wire_id, examples, loss_sum, positives, weight, age in body["batches"]
        ]
        self._store.acknowledge(self._state.acknowledge(member, batches, int(body["synced_iterations"])))
        if body["left_out"]:
            self._left_out(member.info.name, body["left_out"])
        return {}

    def _left_out(self, trainer: str, batches: list[Any]) -> None:
        bad, ledger = self._state.bad_batches, self._state.ledger
        first = not bad.count
        rows = []
        for wire_id, examples, why in batches:
            rows.append(ledger.leave_out(trainer, BatchId.from_wire(wire_id), int(examples), str(why)))
            bad.add(rows[-1], ledger.path_of)
        self._store.left_out(rows)
        if first:
            self._server.event(trainer, bad.event())
        if (stop := bad.too_many()) is not None:
            self._server.request_stop(stop)

    def _next_span(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        granted = self._state.ledger.grant(member.info.name)
        if granted is None:
            return {"span": None}
        epoch, span = granted
        self._store.grant(epoch, span, member.info.name)
        skip = self._state.ledger.skip_of(epoch, span.number)
        return {"epoch": epoch, "span": span_to_body(span), "skip": skip}

    def _span_read(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        counts = {key: int(body[key]) for key in ("batches", "examples", "bad_rows")}
        epoch, span = int(body["epoch"]), int(body["span"])
        self._state.ledger.span_read(epoch, span, **counts)
        self._store.span_read(epoch, span, **counts)
        self._state.input.size.span_read(span, counts["examples"], counts["bad_rows"])
        if self._state.ledger.totals.bad_rows > self._state.job.data.max_bad_rows:
            text = (
                f"{self._state.ledger.totals.bad_rows} malformed rows over all readers; the limit "
                f"data.max_bad_rows is {self._state.job.data.max_bad_rows}"
            )
            self._server.request_stop(Stop("failed", text, ExitCode.DATA))
        return {}

    def _returned(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        dead = self._state.members.find(str(body["token"]))
        if dead is None or dead.alive:
            raise ProtocolError("only a dead trainer's batches can be returned")
        batches = [(BatchId.from_wire(batch), int(examples)) for batch, examples in body["batches"]]
        again = self._state.ledger.return_batches(batches)
        sizes = dict(batches)
        self._store.returned((b.epoch, b.span, b.number, sizes[b], dead.info.name) for b in again)
        return {"again": [list(batch) for batch in again]}

    def _late(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:
        index = int(body["index"])
        view = self._state.group.late(int(body["generation"]), index, reported_by=member.info.index)
        if view is not None:
            self._server.event(
                f"trainer-{index}", f"left the synchronization: {member.info.name} waited in vain"
            )
        # Without a change, too: who reports what is settled has not heard of it.
        self._server.broadcast_group(view or self._state.group.view)
        return {}

    def _rejoin(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        view = self._state.group.admit(member.info.index) if self._state.phase is Phase.TRAINING else None
        if view is not None:
            self._server.event(member.info.name, "takes part in the synchronization again")
        self._server.broadcast_group(view or self._state.group.view)
        return {}
