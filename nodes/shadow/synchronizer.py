"""A trainer's synchronization, controlled from its control thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...pipeline.models.training.flat import digest_of
from ...pipeline.wire.control.base import Done, Request
from ...pipeline.wire.control.messages import RejoinGroup, ReportSlowPeer
from ...pipeline.wire.control.orders import GroupView, MemberInfo
from ...pipeline.wire.tasks import TaskSet, post
from ...sync_algos.base import Algorithm, AlgorithmState, ModelOrigin, PeerLost
from ..allreduce.round import PeerCallbacks
from ..allreduce.sockets import PeerListener
from ..replica.replica import ReplicaContext
from ..runtime.members import summed
from ..runtime.role import NodeContext
from .fixed_rate import CenterRounds, FixedRate, GatedRounds
from .rounds import DueSteps, RoundCounter, RoundGate
from .thread import ShadowThread
from .zmq_peers import ConnectionConfig, ZmqPeers

REPORT_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinalizeResult:
    """A trainer's result of `finalize`.

    Attributes:
        complete: whether the closing round was complete.
        ready: whether the model is available; `digest` is its digest, `rounds` the rounds behind it.
    """

    complete: bool
    ready: bool
    digest: str
    rounds: int


class Synchronizer:
    """The shadow thread, the fixed-rate rounds and the group of one trainer.

    Created when the trainer meets the others. All methods belong to the control thread, and never block.

    Attributes:
        shadow: the shadow thread; no round begins before its `begin`.
        fixed: each worker's part in fixed-rate rounds; empty if workers take no part.

    Args:
        socket: the listener for the other trainers; None for an algorithm without peers. The shadow thread
            takes it over.
        state: the algorithm's state, for a resumed run.
        due: see `ShadowThread`.
    """

    def __init__(
        self,
        context: ReplicaContext,
        algorithm: Algorithm,
        node: NodeContext,
        members: Sequence[MemberInfo],
        socket: PeerListener | None,
        view: GroupView,
        state: AlgorithmState | None = None,
        due: DueSteps | None = None,
    ) -> None:
        self._context = context
        self._algorithm = algorithm
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet(_warn)
        self._gate: RoundGate | None = None
        self._model: torch.Tensor | None = None
        self.rounds = RoundCounter(context.total_iterations)
        self.fixed: Sequence[FixedRate] = []
        self._connection_config = ConnectionConfig(
            node.zmq_context,
            algorithm,
            sorted((m for m in members if m.role == "sync"), key=lambda m: m.index),
            sorted((m for m in members if m.role == "trainer"), key=lambda m: m.index),
            node.index,
            node.token,
        )
        algorithm.start(context.replica)
        if state is not None and algorithm.state_names:
            algorithm.load_state(state)
        if context.job.sync.mode == "fixed":
            self._set_up_fixed_rate()
        callbacks = PeerCallbacks(self._report_late, self._report_excluded, self._on_awaited)

        def open_peers() -> ZmqPeers:
            return self._connection_config.open(context, "shadow", socket, view, callbacks)

        self.shadow = ShadowThread(context, algorithm, open_peers, self.rounds, self._gate, node.fail, due)

    async def seed(self, model: torch.Tensor | None) -> None:
        """Send the center its initial value; raises PeerLost."""
        if self._algorithm.needs_center:
            first = self._context.replica.snapshot(self._context.replica.whole)
            if model is not None:
                first[: len(model)] = model
            await self.shadow.run_with_peers(lambda peers: peers.center.seed(first, is_kept=True))

    def mark_lost(self, token: str) -> None:
        self.shadow.call_with_peers(lambda peers: peers.mark_lost(token))
        for fixed in self.fixed:
            fixed.mark_lost(token)

    async def replace(self, number: int, member: MemberInfo) -> None:
        """Replace a slice's sync node, and seed it; raises PeerLost."""

        async def on_loop(peers: ZmqPeers) -> None:
            await peers.center.replace(number, member)
            examples = self._context.replica.trained_examples
            first = self._context.replica.snapshot(self._context.replica.whole)
            if self._algorithm.merges and number < len(peers.center.slices):
                part = peers.center.slices[number]
                # Also if the node does not answer: it may have the seed, and no earlier exchange is answered.
                self._algorithm.recentered(part, first[part.start : part.stop], examples)
            await peers.center.seed(first, number, is_kept=True)

        for fixed in self.fixed:
            fixed.replace(number, member)
        await self.shadow.run_between_rounds(on_loop)

    async def finalize(self, *, closing_round: bool) -> FinalizeResult:
        """Run the closing round, if requested, and make the final model.

        The model is made if every trainer has it. Call it after training.
        """
        complete = await self.shadow.closing_round() if closing_round else False
        self._model = None
        origin = self._algorithm.model
        if origin is ModelOrigin.MEAN:
            self._model = await self._mean_of_replicas()
        # A center still changes while the others finalize, so it is read only on request.
        model = await self.model() if origin in (ModelOrigin.MEAN, ModelOrigin.GLOBAL) else None
        digest = await asyncio.to_thread(digest_of, model) if model is not None else ""
        return FinalizeResult(complete, model is not None, digest, self._algorithm.state().completed_rounds)

    async def model(self) -> torch.Tensor | None:
        """Return the final model, float32 [numel].

        Returns None if each replica is a model of its own, or if the model is not available. A mean was made
        by the last `finalize`.
        """
        origin = self._algorithm.model
        if self._model is None and origin is ModelOrigin.CENTER:
            try:
                center = await self.shadow.read_center()
                self._model = center[: self._context.layout.numel]
            except PeerLost as error:
                log.warning("the center cannot be read: %s", error)
        elif self._model is None and origin is ModelOrigin.GLOBAL:
            # An attached loop asks for it while rounds go on.
            weights = self._context.layout.numel
            self._model = await self.shadow.between_steps(
                lambda: self._algorithm.global_model()[:weights].clone()
            )
        return self._model

    def metrics(self) -> dict[str, Any]:
        """Return the counts so far, over all threads."""
        ends = [self.shadow.bytes(), *(fixed.bytes for fixed in self.fixed)]
        peers = summed(
            [self.shadow.connection_metrics(), *(fixed.connection_metrics() for fixed in self.fixed)]
        )
        return self.rounds.metrics() | {
            **peers,
            "sync_sent_bytes": sum(sent for sent, _ in ends),
            "sync_received_bytes": sum(received for _, received in ends),
        }

    def stop(self) -> None:
        """Tell the shadow thread to end, and release workers that wait for a round."""
        if self._gate is not None:
            self._gate.open()
        for fixed in self.fixed:
            fixed.stop()
        self.shadow.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the shadow thread's end; not on the control thread."""
        return self.shadow.join(timeout_seconds)

    def _set_up_fixed_rate(self) -> None:
        workers = self._context.job.trainer.workers
        if self._algorithm.has_common_rounds:
            gate = self._gate = RoundGate(workers, self._context.job.sync.every, lambda: self.shadow.wake())
            self.fixed = [GatedRounds(index, gate) for index in range(workers)]
        elif self._algorithm.needs_center:
            self.fixed = [
                CenterRounds(index, self._context, self._connection_config, self.rounds)
                for index in range(workers)
            ]

    async def _mean_of_replicas(self) -> torch.Tensor | None:
        replica = self._context.replica

        async def mean(peers: ZmqPeers) -> torch.Tensor:
            group = await peers.meet()
            return await group.mean(replica.snapshot(replica.weights))

        try:
            return await self.shadow.run_between_rounds(mean)
        except PeerLost as error:
            log.warning("the mean of the replicas cannot be computed: %s", error)
            return None

    def _report_late(self, generation: int, index: int) -> None:
        self._report(ReportSlowPeer(generation, index))

    def _report_excluded(self) -> None:
        self._report(RejoinGroup())

    def _on_awaited(self) -> None:
        # In shadow mode the others may have to wait for this trainer's duty cycle, but never for its
        # iterations.
        if self._gate is not None or self._context.job.sync.gap is not None:
            self.shadow.wake()

    def _report(self, request: Request[Done]) -> None:
        """Send a report to the coordinator; any thread may call."""

        def on_control() -> None:
            reporting = self._node.coordinator.call(request, timeout_seconds=REPORT_SECONDS)
            self._tasks.start(reporting)

        post(self._loop, on_control)


def _warn(error: BaseException) -> None:
    log.warning("the coordinator did not accept a report: %s", error)
