"""The trainer role: a replica, its workers, and its shadow thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import zmq

from ..pipeline.config.job import Job
from ..pipeline.metrics.quality import QualitySums
from ..pipeline.models.flat import digest_of
from ..sync_algos.base import Algorithm
from .peer_line import PeerSocket
from .replica import Shared
from .role import MemberInfo, NodeContext, Role, unknown_verb
from .sync_group import GroupView
from .synchronizer import Synchronizer
from .trained_outbox import TrainedOutbox
from .trainer_files import write_trainer
from .worker import Trained, Worker

HOLD_SECONDS = 5.0
REPLICAS = "replicas"

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
        self._socket: PeerSocket | None = None
        self._sync: Synchronizer | None = None
        self._outbox: TrainedOutbox | None = None
        self._outbox_task: asyncio.Task[None] | None = None

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Binds the socket that other trainers reach this one at; without peers a trainer only connects."""
        if not self._algorithm.needs_peers:
            return ""
        self._socket = PeerSocket(context, address)
        return self._socket.endpoint

    async def prepare(self, node: NodeContext) -> dict[str, Any]:
        """Builds the model and the flat replica with its first weights."""
        self._node = node
        torch.set_num_threads(1)
        self._shared = await asyncio.to_thread(Shared.build, self._job)
        return {
            "dense_elements": self._shared.replica.numel,
            "weights_digest": digest_of(self._shared.replica.flat),
            "plan_digest": self._shared.router.plan.digest,
            "model_origin": self._algorithm.model.value,
            "needs_center": self._algorithm.needs_center,
            "needs_peers": self._algorithm.needs_peers,
        }

    async def handle(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """meet, begin, gone, group, hold, settle, replica_chunk, replica_sample, prepare_eval, eval_result,
        checkpoint."""
        handlers = {
            "meet": self._meet,
            "begin": self._begin,
            "gone": self._gone,
            "group": self._group,
            "hold": self._hold,
            "settle": self._settle,
            "replica_chunk": self._replica_chunk,
            "replica_sample": self._replica_sample,
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
        total["iterations"] = self._shared.total_iterations()
        total["confirmed_examples"] = self._outbox.confirmed_examples if self._outbox else 0
        return total | (self._sync.metrics() if self._sync else {})

    async def close(self) -> None:
        """Ends the threads."""
        if self._outbox_task is not None:
            self._outbox_task.cancel()
        threads: list[Worker | Synchronizer] = [*self._workers, *([self._sync] if self._sync else [])]
        for thread in threads:
            thread.stop()
        for thread in threads:
            if not await asyncio.to_thread(thread.join, 3.0):
                log.error("a thread did not end within 3 s")
        if self._socket is not None and self._sync is None:
            self._socket.close()

    async def _meet(self, body: dict[str, Any]) -> dict[str, Any]:
        node = self._node
        assert node is not None
        members = [MemberInfo.from_body(member) for member in body["members"]]
        self._outbox = TrainedOutbox(node.coordinator, self._on_confirmed, self._synced_iterations)
        if self._algorithm.needs_center or self._algorithm.needs_peers:
            view = GroupView.from_body(body["group"])
            self._sync = Synchronizer(self._shared, self._algorithm, node, members, self._socket, view)
            self._sync.start()
            if node.index == 0:
                await self._sync.seed()
        fixed = self._sync.fixed if self._sync else []
        self._workers = [
            Worker(
                index,
                self._shared,
                node.zmq_context,
                members,
                node.token,
                self._outbox.put,
                fixed[index] if fixed else None,
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
        if self._sync is not None:
            self._sync.begin()
        return {}

    async def _gone(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("role") == "sync" and self._sync is not None:
            self._sync.lose(str(body["token"]))
        if body.get("role") == "embedding":
            for worker in self._workers:
                worker.lose_shard(str(body["name"]))
        return {}

    async def _group(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._sync is not None:
            await self._sync.regroup(GroupView.from_body(body))
        return {}

    async def _hold(self, body: dict[str, Any]) -> dict[str, Any]:
        """Stops training after the batches at hand; `sequences` are the readers' last ones by identity."""
        node = self._node
        assert node is not None
        if self._sync is not None:
            self._sync.pause()
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
        if self._sync is not None:
            # What is saved should be no mixture, but an interrupt waits for no slow round.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sync.quiet(), 1.0 if body.get("hurry") else None)
        in_flight = sum(future.result() for future in done)
        return self.metrics() | {"in_flight": in_flight, "held": not late}

    async def _settle(self, body: dict[str, Any]) -> dict[str, Any]:
        """The closing round, for what this replica learned since its last one, and the model that comes out
        where it takes all trainers to tell."""
        if self._sync is None:
            return self.metrics() | {"complete": False, "model_ready": False}
        settled = await self._sync.settle(closing_round=bool(body.get("closing_round")))
        return self.metrics() | settled

    async def _replica_chunk(self, body: dict[str, Any]) -> dict[str, Any]:
        start, stop = int(body["start"]), int(body["stop"])
        return {"values": self._shared.replica.flat[start:stop].numpy().tobytes()}

    async def _replica_sample(self, body: dict[str, Any]) -> dict[str, Any]:
        """Every `stride`-th element of the replica as it is now."""
        return {"values": self._shared.replica.flat[:: int(body["stride"])].numpy().tobytes()}

    async def _model(self, origin: str) -> torch.Tensor | None:
        if origin == REPLICAS:
            return self._shared.replica.flat
        return await self._sync.model() if self._sync is not None else None

    async def _prepare_eval(self, body: dict[str, Any]) -> dict[str, Any]:
        """Which weights the next pass scores: those that `model` names."""
        flat = await self._model(str(body["model"]))
        if flat is None:
            return {"ready": False}
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
        dense: torch.Tensor | None = None
        if body.get("dense"):
            dense = await self._model(str(body["model"]))
            if dense is None:
                return {"files": [], "ready": False}
        return await asyncio.to_thread(
            write_trainer,
            Path(str(body["directory"])),
            node.index,
            self._shared,
            dense=dense,
            origin=str(body["model"]),
            state=self._algorithm.state() if dense is not None else None,
        )

    def _bridge(self) -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
        """A future of this loop, and a function that a worker's thread gives its result to."""
        told: asyncio.Future[Any] = self._loop.create_future()

        def tell(result: Any) -> None:
            self._loop.call_soon_threadsafe(told.set_result, result)

        return told, tell

    def _synced_iterations(self) -> int:
        return int(self._sync.metrics()["synced_iterations"]) if self._sync is not None else 0

    def _on_confirmed(self, record: Trained) -> None:
        self._workers[record.worker].confirm(record.reader, record.sequence)

    def _outbox_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and self._node is not None:
            self._node.fail(error)
