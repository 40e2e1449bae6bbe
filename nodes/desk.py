"""What nodes and the supervisor ask of the coordinator, and what they are answered."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..pipeline.errors import ClusterError, ExitCode, ProtocolError
from ..pipeline.types import BatchId
from .membership_state import Member
from .span_body import span_to_body
from .status import answer_status
from .stop import Stop

if TYPE_CHECKING:
    from .coordinator import Coordinator

log = logging.getLogger(__name__)


class Desk:
    """Every question by its verb. Runs on the coordinator's loop."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator

    async def handle(self, token: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question; raises ShadowSyncError for what cannot be done."""
        if verb == "hello":
            return self._hello(token, body)
        if verb in ("exited", "status"):
            return self._supervisor(token, verb, body)
        member = self._c.members.require(token)
        if verb == "ready":
            self._c.members.ready(token, body)
            await self._c.notify()
            return {}
        if verb == "failed":
            code = ExitCode(int(body["exit_code"]))
            # A node of which a part has died is itself dead, no more; other failures are the job's.
            if code is not ExitCode.STOPPED_BY_DEATH:
                self._c.request_stop(Stop("failed", f"{member.info.name}: {body['what']}", code))
            # It ends once it has the answer, so nobody should wait for it.
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, self._c.lose, token, f"failed: {body['what']}")
            return {}
        if verb == "interrupt":
            text = f"{member.info.name} was asked to stop"
            self._c.request_stop(Stop("interrupted", text, ExitCode.INTERRUPTED))
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
        await self._c.notify()
        return answer

    def _hello(self, token: str, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("token") != token:
            raise ClusterError("the token is not the connection's")
        if self._c.finishing:
            # Nobody would tell it when to end.
            raise ClusterError("the job has ended", remedy="start its nodes again")
        role = str(body.get("role"))
        member = self._c.members.join(role, token, str(body.get("digest")), str(body.get("endpoint")))
        self._c.places[token] = (str(body.get("host", "")), int(body.get("pid", 0)))
        log.info("%s joined (%s)", member.info.name, member.info.endpoint or "connects only")
        return {
            "name": member.info.name,
            "index": member.info.index,
            "folder": str(self._c.folder.resolve()),
            "plan": self._c.placement.plan.to_body(),
        }

    def _supervisor(self, asker: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        if verb == "exited":
            token, how = str(body["token"]), str(body["how"])
            member = self._c.members.find(token)
            if member is not None:
                self._c.exits[member.info.name] = how
            if member is None:
                text = f"a {body['role']} ended before it joined ({how})"
                self._c.request_stop(Stop("death", text, ExitCode(int(body["code"]))))
            else:
                self._c.lose(token, f"died ({how})")
            return {}
        answer = answer_status(self._c, body)
        if body.get("tell_end") is True:
            self._c.talks.watches(asker)
        return answer

    def _trained(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:
        name, now = member.info.name, self._c.seconds()
        rows = []
        for wire_id, examples, loss_sum, positives, weight, age in body["batches"]:
            batch = BatchId.from_wire(wire_id)
            rows.append(self._c.ledger.acknowledge(name, batch, int(examples)))
            sums = float(loss_sum), float(positives), float(weight)
            self._c.tally.trained(name, now - float(age), int(examples), *sums)
        self._c.synced_iterations[member.info.token] = int(body["synced_iterations"])
        self._c.store.acknowledge(rows)
        if body["left_out"]:
            self._left_out(name, body["left_out"])
        return {}

    def _left_out(self, trainer: str, batches: list[Any]) -> None:
        bad, ledger = self._c.bad_batches, self._c.ledger
        first = not bad.count
        rows = []
        for wire_id, examples, why in batches:
            rows.append(ledger.leave_out(trainer, BatchId.from_wire(wire_id), int(examples), str(why)))
            bad.add(rows[-1], ledger.path_of)
        self._c.store.left_out(rows)
        if first:
            self._c.event(trainer, bad.event())
        if (stop := bad.too_many()) is not None:
            self._c.request_stop(stop)

    def _next_span(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        granted = self._c.ledger.grant(member.info.name)
        if granted is None:
            return {"span": None}
        epoch, span = granted
        self._c.store.grant(epoch, span, member.info.name)
        skip = self._c.ledger.skip_of(epoch, span.number)
        return {"epoch": epoch, "span": span_to_body(span), "skip": skip}

    def _span_read(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        counts = {key: int(body[key]) for key in ("batches", "examples", "bad_rows")}
        epoch, span = int(body["epoch"]), int(body["span"])
        self._c.ledger.span_read(epoch, span, **counts)
        self._c.store.span_read(epoch, span, **counts)
        self._c.input_size.span_read(span, counts["examples"], counts["bad_rows"])
        if self._c.ledger.totals.bad_rows > self._c.job.data.max_bad_rows:
            text = (
                f"{self._c.ledger.totals.bad_rows} malformed rows over all readers; the limit "
                f"data.max_bad_rows is {self._c.job.data.max_bad_rows}"
            )
            self._c.request_stop(Stop("failed", text, ExitCode.DATA))
        return {}

    def _returned(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        dead = self._c.members.find(str(body["token"]))
        if dead is None or dead.alive:
            raise ProtocolError("only a dead trainer's batches can be returned")
        batches = [(BatchId.from_wire(batch), int(examples)) for batch, examples in body["batches"]]
        again = self._c.ledger.return_batches(batches)
        sizes = dict(batches)
        self._c.store.returned((b.epoch, b.span, b.number, sizes[b], dead.info.name) for b in again)
        return {"again": [list(batch) for batch in again]}

    def _late(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:
        index = int(body["index"])
        view = self._c.group.late(int(body["generation"]), index, reported_by=member.info.index)
        if view is not None:
            self._c.event(f"trainer-{index}", f"left the synchronization: {member.info.name} waited in vain")
        # Without a change, too: who reports what is settled has not heard of it.
        self._c.tell_group(view or self._c.group.view)
        return {}

    def _rejoin(self, member: Member, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        view = self._c.group.admit(member.info.index) if self._c.phase == "training" else None
        if view is not None:
            self._c.event(member.info.name, "takes part in the synchronization again")
        self._c.tell_group(view or self._c.group.view)
        return {}
