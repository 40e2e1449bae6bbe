"""The trainer role: a replica, its workers, and its shadow thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import zmq

from ..pipeline.config.job import Job
from ..pipeline.metrics.quality import QualitySums
from ..pipeline.models.flat import digest_of
from ..sync_algos.base import Algorithm, ModelOrigin, PeerLost
from .fixed_rate import FixedRate
from .replica import Shared
from .role import MemberInfo, NodeContext, Role, unknown_verb
from .rounds import RoundCounter
from .shadow import LinkSettings, Shadow
from .trained_outbox import TrainedOutbox
from .trainer_files import write_trainer
from .worker import Trained, Worker

HOLD_SECONDS = 5.0

log = logging.getLogger(__name__)


class TrainerRole(Role):
    """The control side of a trainer; it touches no socket of its threads and never waits for them in line."""

    name: ClassVar[str] = "trainer"

    def __init__(self, job: Job, algorithm: Algorithm) -> None:
        self._job = job
        self._algorithm = algorithm
        self._loop = asyncio.get_running_loop()
        self._node: NodeContext | None = None
        self._workers: list[Worker] = []
        self._shadow: Shadow | None = None
        self._fixed: list[FixedRate] = []
        self._outbox: TrainedOutbox | None = None
        self._outbox_task: asyncio.Task[None] | None = None
        self._center: torch.Tensor | None = None

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:  # noqa: ARG002
        """A trainer only connects."""
        return ""

    async def prepare(self, node: NodeContext) -> dict[str, Any]:
        """Builds the model and the flat replica with its first weights."""
        self._node = node
        torch.set_num_threads(1)
        self._shared = await asyncio.to_thread(Shared.build, self._job)
        self._rounds = RoundCounter(self._shared.total_iterations)
        return {
            "dense_elements": self._shared.replica.numel,
            "weights_digest": digest_of(self._shared.replica.flat),
            "plan_digest": self._shared.router.plan.digest,
            "model_origin": self._algorithm.model.value,
            "needs_center": self._algorithm.needs_center,
        }

    async def handle(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """meet, begin, gone, hold, settle, replica_chunk, prepare_eval, eval_result, checkpoint."""
        handlers = {
            "meet": self._meet,
            "begin": self._begin,
            "gone": self._gone,
            "hold": self._hold,
            "settle": self._settle,
            "replica_chunk": self._replica_chunk,
            "prepare_eval": self._prepare_eval,
            "eval_result": self._eval_result,
            "checkpoint": self._checkpoint,
        }
        if verb not in handlers:
            raise unknown_verb(self.name, verb)
        return await handlers[verb](body)

    def metrics(self) -> dict[str, Any]:
        """Counts so far, over all threads."""
        if self._node is None or not self._workers:
            return {}
        total: dict[str, Any] = {}
        for worker in self._workers:
            for key, value in worker.metrics().items():
                total[key] = total.get(key, 0) + value
        ends = [self._shadow.bytes()] if self._shadow else []
        ends += [fixed.bytes for fixed in self._fixed]
        total["sync_sent_bytes"] = sum(sent for sent, _ in ends)
        total["sync_received_bytes"] = sum(received for _, received in ends)
        total["iterations"] = self._shared.total_iterations()
        total["confirmed_examples"] = self._outbox.confirmed_examples if self._outbox else 0
        return total | self._rounds.metrics()

    async def close(self) -> None:
        """Ends the threads."""
        if self._outbox_task is not None:
            self._outbox_task.cancel()
        threads = [*self._workers, *([self._shadow] if self._shadow else [])]
        for thread in threads:
            thread.stop()
        for thread in threads:
            if not await asyncio.to_thread(thread.join, 3.0):
                log.error("a thread did not end within 3 s")

    async def _meet(self, body: dict[str, Any]) -> dict[str, Any]:
        node = self._node
        assert node is not None
        members = [MemberInfo.from_body(member) for member in body["members"]]
        syncs = sorted((m for m in members if m.role == "sync"), key=lambda m: m.index)
        self._outbox = TrainedOutbox(
            node.coordinator, self._on_confirmed, lambda: int(self._rounds.metrics()["synced_iterations"])
        )
        if self._algorithm.needs_center:
            links = LinkSettings(node.zmq_context, syncs, node.token)
            self._shadow = Shadow(self._shared, self._algorithm, links, self._rounds, node.fail)
            self._shadow.start()
            if self._job.sync.mode == "fixed":
                self._fixed = [
                    FixedRate(index, self._shared, self._algorithm, links, self._rounds)
                    for index in range(self._job.trainer.workers)
                ]
            if node.index == 0:
                await self._shadow.call(lambda link: link.seed(self._shared.replica.flat))
        self._workers = [
            Worker(
                index,
                self._shared,
                node.zmq_context,
                members,
                node.token,
                self._outbox.put,
                self._fixed[index] if self._fixed else None,
                node.fail,
            )
            for index in range(self._job.trainer.workers)
        ]
        return {}

    async def _begin(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        assert self._outbox is not None
        self._outbox_task = self._loop.create_task(self._outbox.run())
        self._outbox_task.add_done_callback(self._outbox_ended)
        for worker in self._workers:
            worker.start()
        if self._shadow is not None:
            self._shadow.begin()
        return {}

    async def _gone(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("role") == "sync":
            token = str(body["token"])
            if self._shadow is not None:
                self._shadow.lose(token)
            for fixed in self._fixed:
                fixed.lose(token)
        if body.get("role") == "embedding":
            for worker in self._workers:
                worker.lose_shard(str(body["name"]))
        return {}

    async def _hold(self, body: dict[str, Any]) -> dict[str, Any]:
        """Stops training after the batches at hand; `sequences` are the readers' last ones by identity."""
        node = self._node
        assert node is not None
        if self._shadow is not None:
            self._shadow.pause()
        waits: list[asyncio.Future[int]] = []
        for worker in self._workers:
            identity = f"{node.token}/{worker.index}"
            last = {name: int(by.get(identity, 0)) for name, by in body["sequences"].items()}
            told, tell = self._bridge()
            worker.hold(last, tell)
            waits.append(told)
        if not waits:
            return self.metrics() | {"in_flight": 0, "held": True}
        done, late = await asyncio.wait(waits, timeout=HOLD_SECONDS)
        if self._shadow is not None and not body.get("hurry"):
            await self._shadow.call(lambda _: self._quiet())
        in_flight = sum(future.result() for future in done)
        return self.metrics() | {"in_flight": in_flight, "held": not late}

    async def _settle(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """The closing round, after training: what this replica learned since its last one."""
        complete = False
        if self._shadow is not None:
            shadow = self._shadow
            complete = await shadow.call(lambda _: shadow.round())
        return self.metrics() | {"complete": complete}

    async def _quiet(self) -> None:
        assert self._shadow is not None
        await self._shadow.quiet()

    async def _replica_chunk(self, body: dict[str, Any]) -> dict[str, Any]:
        start, stop = int(body["start"]), int(body["stop"])
        return {"values": self._shared.replica.flat[start:stop].numpy().tobytes()}

    async def _read_center(self) -> torch.Tensor | None:
        if self._shadow is None or self._algorithm.model is not ModelOrigin.CENTER:
            return None
        try:
            return await self._shadow.call(lambda link: link.read_all())
        except PeerLost as error:
            log.warning("the center cannot be read: %s", error)
            return None

    async def _prepare_eval(self, body: dict[str, Any]) -> dict[str, Any]:
        """Which weights the next pass scores: those that `model` names."""
        flat: torch.Tensor | None = self._shared.replica.flat
        if body["model"] == "center":
            flat = self._center = self._center if self._center is not None else await self._read_center()
            if flat is None:
                return {"ready": False}
        assert flat is not None
        for worker in self._workers:
            worker.evaluate(int(body["pass"]), flat)
        return {"ready": True}

    async def _eval_result(self, body: dict[str, Any]) -> dict[str, Any]:
        total = QualitySums()
        for worker in self._workers:
            told, tell = self._bridge()
            worker.collect(int(body["pass"]), tell)
            total.merge(await told)
        return {"sums": total.to_array().tobytes()}

    async def _checkpoint(self, body: dict[str, Any]) -> dict[str, Any]:
        node = self._node
        assert node is not None
        center = None
        if body.get("dense") and body["model"] == "center":
            center = self._center = await self._read_center()
            if center is None:
                return {"files": [], "ready": False}
        return await asyncio.to_thread(
            write_trainer,
            Path(str(body["directory"])),
            node.index,
            self._shared,
            dense=bool(body.get("dense")),
            center=center,
        )

    def _bridge(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """A future of this loop, and a function that a worker's thread gives its result to."""
        told: asyncio.Future[Any] = self._loop.create_future()

        def tell(result: Any) -> None:
            self._loop.call_soon_threadsafe(told.set_result, result)

        return told, tell

    def _on_confirmed(self, record: Trained) -> None:
        self._workers[record.worker].confirm(record.reader, record.sequence)

    def _outbox_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and self._node is not None:
            self._node.fail(error)
