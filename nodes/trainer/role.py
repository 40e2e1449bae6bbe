"""The trainer role: a replica, its workers, and its shadow thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import torch
import zmq

from ...pipeline.config.job import Job
from ...pipeline.data.span import from_runs
from ...pipeline.errors import ClusterError, ProtocolError, ShadowSyncError
from ...pipeline.models.state_check import check_stateless
from ...pipeline.models.training.flat import digest_of
from ...pipeline.text.format import duration
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import EVENT_CHARACTERS, NodeFacts, ReportEvent, ReportReader
from ...pipeline.wire.control.orders import (
    TOP_PIECE_BYTES,
    Begin,
    ComposeModel,
    ConnectPeers,
    Drain,
    DrainReader,
    DrainReply,
    EvalSums,
    Finalize,
    FinalizeReply,
    GetEvalSums,
    NodeLost,
    PauseTraining,
    PrepareEval,
    PrepareEvalReply,
    ReaderJoined,
    ReadReplica,
    ReplicaValues,
    ShardReplaced,
    SyncReplaced,
    TakeCenter,
    TakeCenterReply,
    WriteCheckpoint,
    WriteReplica,
)
from ...pipeline.wire.tasks import TaskSet, post
from ...sync_algos.base import Algorithm, PeerLost
from ...sync_algos.contract.model_origin import ModelOrigin
from ..allreduce.sockets import PeerListener
from ..replica.replica import ReplicaContext
from ..runtime.process import tune_malloc
from ..runtime.role import NodeContext, unexpected_request
from ..shadow.synchronized_role import SynchronizedRole
from ..shadow.synchronizer import Synchronizer
from ..worker.batches import BatchAck
from ..worker.worker import Worker
from .acknowledgements import AckSender
from .checkpoint import TrainerCheckpoint, TrainerSnapshot
from .restore import (
    Restored,
    optimizer_sizes,
    read_state,
    restore_optimizer,
    restore_trainer,
    saved_average,
    write_state,
)
from .worker_pool import WorkerPool

DRAIN_SECONDS = 5.0
# For a round at an interrupt.
ROUND_SECONDS = 1.0
END_SECONDS = 3.0

log = logging.getLogger(__name__)


class TrainerRole(SynchronizedRole):
    """The control side of a trainer.

    The control thread uses no socket of the trainer's threads, and never blocks on them.
    """

    name: ClassVar[str] = "trainer"

    def __init__(self, job: Job, algorithm: Algorithm) -> None:
        super().__init__()
        self._job = job
        self._scored_groups = b""
        self._algorithm = algorithm
        self._loop = asyncio.get_running_loop()
        self._node: NodeContext | None = None
        self._pool: WorkerPool | None = None
        self._workers: list[Worker] = []
        self._socket: PeerListener | None = None
        self._restored: Restored | None = None
        self._is_late = False
        self._ack_sender: AckSender | None = None
        self._ack_task: asyncio.Task[None] | None = None
        self._reports = TaskSet(self._fail)

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Bind the socket that other trainers connect to; return its endpoint.

        The endpoint is empty if the algorithm needs no peers: the trainer then only connects.
        """
        if not self._algorithm.needs_peers:
            return ""
        self._socket = PeerListener(context, address, self._job.sync.chunk_bytes)
        return self._socket.endpoint

    @property
    def replica_context(self) -> ReplicaContext:
        return self._context

    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Build the model and the flat replica, with first or restored weights."""
        self._node = node
        torch.set_num_threads(1)
        # Each step frees its activations; without this, the next one faults their pages in again.
        tune_malloc()
        self._pool = WorkerPool(self._job, node)
        self._context = await self._pool.prepare()
        await asyncio.to_thread(check_stateless, self._job, self._context.template)
        self._checkpoint = TrainerCheckpoint(
            self._context, self._algorithm, node.index, self._between_rounds, self._model
        )
        # Taken of the initial weights: in a resumed run the replicas are no longer equal.
        digest = digest_of(torch.cat([self._context.replica.read(), self._context.constants.flat.cpu()]))
        self._restored = await asyncio.to_thread(restore_trainer, self._context, node.index)
        return NodeFacts(
            dense_elements=self._context.layout.numel,
            precision=self._context.precision,
            weights_digest=digest,
            fresh_parameters=tuple(self._restored.fresh) if self._restored is not None else (),
            start_digest=self._restored.digest if self._restored is not None else "",
            checkpoint_bytes=self._checkpoint.bytes,
            plan_digest=self._context.router.plan.digest,
            model_origin=self._algorithm.model.value,
            needs_center=self._algorithm.needs_center,
            optimizer_state=optimizer_sizes(self._context),
            recenters=self._algorithm.recenters,
            needs_peers=self._algorithm.needs_peers,
            merges=self._algorithm.merges,
        )

    async def handle(self, request: Request[Any]) -> Reply:
        """Reply to a request of the coordinator; raises ProtocolError for other roles' requests."""
        handlers: dict[type[Request[Any]], Callable[[Any], Awaitable[Reply]]] = {
            **self.replica_handlers,
            ConnectPeers: self._connect_peers,
            Begin: self._begin,
            NodeLost: self._node_lost,
            DrainReader: self._drain_reader,
            ReaderJoined: self._reader_joined,
            SyncReplaced: self._sync_replaced,
            ShardReplaced: self._shard_replaced,
            WriteReplica: self._write_replica,
            TakeCenter: self._take_center,
            PauseTraining: self._pause,
            Drain: self._drain,
            Finalize: self._finalize,
            ReadReplica: self._read_replica,
            PrepareEval: self._prepare_eval,
            GetEvalSums: self._eval_sums,
            WriteCheckpoint: self._checkpoint.checkpoint,
            ComposeModel: self._checkpoint.compose,
        }
        if type(request) not in handlers:
            raise unexpected_request(self.name, request)
        return await handlers[type(request)](request)

    def metrics(self) -> dict[str, Any]:
        """Return counts so far, over all workers."""
        if self._pool is None or not self._workers:
            return {}
        total = self._pool.metrics()
        total["iterations"] = self._context.total_iterations()
        total["lr_scale"] = self._job.trainer.schedule.factor(self._all_examples())
        total["confirmed_examples"] = self._ack_sender.confirmed_examples if self._ack_sender else 0
        total["left_out_examples"] = self._ack_sender.left_out_examples if self._ack_sender else 0
        return total | (self._sync.metrics() if self._sync else {})

    def progress(self, examples: int) -> None:
        """Record the examples of all trainers, which drive the learning rate schedule."""
        if self._ack_sender is not None:
            first = self._ack_sender.confirmed_examples - self._ack_sender.replayed_examples
            self._context.count.update(examples, first)

    async def close(self) -> None:
        """End the threads."""
        if self._ack_task is not None:
            self._ack_task.cancel()
        self._reports.cancel()
        threads: list[WorkerPool | Synchronizer] = [
            part for part in (self._pool, self._sync) if part is not None
        ]
        for thread in threads:
            thread.stop()
        try:
            joined = await asyncio.gather(
                *(asyncio.to_thread(thread.join, END_SECONDS) for thread in threads), return_exceptions=True
            )
        finally:
            # Even if cancelled meanwhile: a context with an open socket cannot be terminated.
            if self._socket is not None and self._sync is None:
                self._socket.close()
        for ended in joined:
            if isinstance(ended, BaseException):
                log.error("a thread failed", exc_info=ended)
            elif not ended:
                log.error("a thread did not end within %s", duration(END_SECONDS))

    async def _connect_peers(self, request: ConnectPeers) -> Done:
        node = self._node
        assert node is not None
        members = list(request.members)
        self._is_late = request.late
        self._ack_sender = AckSender(
            node.coordinator, self._on_confirmed, self._synced_iterations, node.patience_seconds
        )
        if self._algorithm.needs_center or self._algorithm.needs_peers:
            restored = self._restored
            state = restored.state if restored is not None else None
            sync = Synchronizer(
                self._context, self._algorithm, node, members, self._socket, request.group, state
            )
            self.start_sync(sync)
            if node.index == 0 and not request.late:
                await self._seed(sync, restored.model if restored is not None else None)
        assert self._pool is not None
        rounds = self._sync.fixed if self._sync else []
        self._pool.connect(members, self._ack_sender.put, self._on_refused, self._on_event, rounds)
        self._workers = self._pool.workers
        return Done()

    async def _seed(self, sync: Synchronizer, model: torch.Tensor | None) -> None:
        try:
            await sync.seed(model)
        except PeerLost as error:
            raise ClusterError(
                f"the center cannot be reached: {error}",
                remedy="check the network between trainers and sync nodes, and --advertise",
            ) from error

    async def _begin(self, request: Begin) -> Done:
        assert self._ack_sender is not None
        if self._is_late:
            # The replica has changed since the trainer met the others.
            self._algorithm.start(self._context.replica)
        self._context.count.start(request.examples)
        self._ack_task = self._loop.create_task(self._ack_sender.run())
        self._ack_task.add_done_callback(self._on_ack_task_done)
        for worker in self._workers:
            worker.start(from_runs(request.progressive))
        if self._sync is not None:
            self._sync.shadow.begin()
        if self._pool is not None and self._pool.nearest_cores:
            self._on_event(
                f"it stays on the {len(self._pool.nearest_cores)} cores that are nearest to its GPU,"
                f" {self._context.device.torch_device}"
            )
        return Done()

    async def _node_lost(self, lost: NodeLost) -> Done:
        self.lose_peer(lost)
        if lost.role in ("reader", "embedding"):
            for worker in self._workers:
                worker.node_lost(lost.name)
        return Done()

    async def _drain_reader(self, request: DrainReader) -> Done:
        assert self._pool is not None
        await self._pool.drain_reader(request.name)
        return Done()

    async def _reader_joined(self, request: ReaderJoined) -> Done:
        for worker in self._workers:
            worker.connect_reader(request.member)
        return Done()

    async def _shard_replaced(self, request: ShardReplaced) -> Done:
        assert self._pool is not None
        await self._pool.replace_shard(request.member)
        return Done()

    async def _sync_replaced(self, request: SyncReplaced) -> Done:
        if self._sync is not None:
            try:
                await self._sync.replace(request.number, request.member)
            except PeerLost as error:
                raise ClusterError(f"its slice could not be sent: {error}") from error
        return Done()

    async def _pause(self, request: PauseTraining) -> Done:
        self._context.pause.set(request.number, request.paused)
        return Done()

    async def _drain(self, request: Drain) -> DrainReply:
        """Stop training after the current batches."""
        node = self._node
        assert node is not None
        assert self._pool is not None
        if self._sync is not None:
            self._sync.shadow.pause()
        last = [
            {name: by.get(f"{node.token}/{worker.index}", 0) for name, by in request.sequences.items()}
            for worker in self._workers
        ]
        # A dead node is declared so meanwhile, without a hurry. A leaving trainer has reported everything.
        more = (self._job.sync.timeout_seconds, self._job.run.node_timeout_seconds)[not request.leaving]
        seconds = DRAIN_SECONDS + (-ROUND_SECONDS if request.hurry else more)
        drained, stopped = await self._pool.drain(last, seconds, leaving=request.leaving)
        if request.leaving and not stopped:
            raise ClusterError(f"its workers did not stop within {duration(seconds)}")
        if self._sync is not None:
            # A saved model should not be a mixture, but an interrupt does not wait for a slow round.
            with contextlib.suppress(TimeoutError):
                idle = self._sync.shadow.wait_idle()
                await asyncio.wait_for(idle, ROUND_SECONDS if request.hurry else None)
        sums = drained.progressive.to_bytes()
        return DrainReply(self.metrics(), {}, drained.in_flight, sums, stopped=stopped)

    async def _finalize(self, request: Finalize) -> FinalizeReply:
        """Run the closing round, and make the final model.

        The model is made if every trainer has it. The closing round synchronizes what this replica has
        learned since its last round.
        """
        if self._sync is None:
            return FinalizeReply(self.metrics(), complete=False, model_ready=False)
        final = await self._sync.finalize(closing_round=request.closing_round)
        return FinalizeReply(self.metrics(), final.complete, final.ready, final.digest, final.rounds)

    async def _read_replica(self, request: ReadReplica) -> ReplicaValues:
        return ReplicaValues(read_state(self._context, request.name, request.start, request.stop))

    async def _write_replica(self, request: WriteReplica) -> Done:
        if self._ack_task is not None:
            raise ProtocolError("training has begun")
        write_state(self._context, request.name, request.start, request.values)
        return Done()

    async def _take_center(self, request: TakeCenter) -> TakeCenterReply:  # noqa: ARG002
        node, context = self._node, self._context
        assert node is not None
        if self._ack_task is not None or self._sync is None:
            raise ProtocolError("training has begun, or there is no center")
        optimizer = await asyncio.to_thread(restore_optimizer, context, node.index, node.folder)
        try:
            center = await self._sync.shadow.read_center()
        except PeerLost as error:
            raise ClusterError(f"the center cannot be read: {error}") from error
        context.replica.interpolate_(context.replica.whole, center, 1.0)
        synchronized = self._job.sync.optimizer_state == "synchronized"
        return TakeCenterReply("its optimizer" if synchronized and optimizer else optimizer)

    async def _model(self, origin: str) -> torch.Tensor | None:
        if origin == ModelOrigin.REPLICAS:
            return self._context.replica.flat
        return await self._sync.model() if self._sync is not None else None

    async def _scored(self, origin: str) -> torch.Tensor | None:
        """Return the model that is scored: with `ema` its moving average, if it is single as it is saved."""
        if self._job.trainer.ema is None:
            return await self._model(origin)
        if origin == ModelOrigin.REPLICAS:
            return self._context.optimizer.averaged()
        assert self._node is not None
        try:
            return await asyncio.to_thread(saved_average, self._context, self._node.folder)
        except ShadowSyncError as error:
            log.warning("the moving average cannot be read: %s", error)
            return None

    async def _prepare_eval(self, request: PrepareEval) -> PrepareEvalReply:
        """Set the weights that the next pass scores, named by `model`."""
        flat = await self._scored(request.model)
        if flat is None:
            return PrepareEvalReply(ready=False)
        for worker in self._workers:
            worker.evaluate(request.pass_number, flat)
        return PrepareEvalReply(ready=True)

    async def _eval_sums(self, request: GetEvalSums) -> EvalSums:
        assert self._pool is not None
        quality = b""
        if request.start == 0:
            sums = await self._pool.collect(request.pass_number, self._job.ranking)
            quality = sums.quality.to_bytes()
            self._scored_groups = b"" if sums.top is None else sums.top.to_bytes()
        piece = self._scored_groups[request.start : request.start + TOP_PIECE_BYTES]
        return EvalSums(quality, piece, len(self._scored_groups))

    async def _between_rounds(self, copy: Callable[[], TrainerSnapshot]) -> TrainerSnapshot:
        if self._sync is not None:
            return await self._sync.shadow.between_steps(copy)
        return await asyncio.to_thread(copy)

    def _all_examples(self) -> int:
        return self._context.count.now(self._context.replica.trained_examples)

    def _synced_iterations(self) -> int:
        return int(self._sync.metrics()["synced_iterations"]) if self._sync is not None else 0

    def _on_confirmed(self, record: BatchAck) -> None:
        self._workers[record.worker].confirm(record.reader, record.sequence)

    def _on_refused(self, reader: str, why: str) -> None:
        """Report a reader that delivered what cannot be; any thread may call."""
        self._report(ReportReader(reader, why))

    def _on_event(self, what: str) -> None:
        """Put something into the events of the job; any thread may call."""
        self._report(ReportEvent(what[:EVENT_CHARACTERS]))

    def _report(self, report: Request[Done]) -> None:
        node = self._node
        assert node is not None

        def on_control() -> None:
            self._reports.start(node.coordinator.call(report, timeout_seconds=node.patience_seconds))

        post(self._loop, on_control)

    def _on_ack_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._node is not None:
            self._node.fail(error)
