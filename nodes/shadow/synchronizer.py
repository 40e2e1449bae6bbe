"""A trainer's synchronization as its control thread sees it: the shadow thread, the fixed rate, the group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from ...pipeline.models.flat import digest_of
from ...pipeline.wire.tasks import TaskSet
from ...sync_algos.base import Algorithm, AlgorithmState, ModelOrigin, PeerLost
from ..allreduce.sockets import PeerListener
from ..replica.replica import TrainerContext
from ..runtime.members import GroupView, summed
from ..runtime.role import MemberInfo, NodeContext
from .fixed_rate import CenterRounds, GatedRounds, RemoteRounds, WorkerRounds
from .links import LinkConfig, PeerCallbacks, ZmqPeers
from .rounds import RoundCounter, RoundGate
from .thread import Shadow

REPORT_SECONDS = 10.0

T = TypeVar("T")

log = logging.getLogger(__name__)


class Synchronizer:
    """Made when the trainer meets the others. All methods are the control thread's, which never blocks.

    Args:
        socket: where the other trainers reach this one; None for an algorithm without peers. The shadow
            thread takes it over.
        state: the algorithm's, of a run that goes on.
    """

    def __init__(
        self,
        shared: TrainerContext,
        algorithm: Algorithm,
        node: NodeContext,
        members: Sequence[MemberInfo],
        socket: PeerListener | None,
        view: GroupView,
        state: AlgorithmState | None = None,
    ) -> None:
        self._shared = shared
        self._algorithm = algorithm
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet(_warn)
        self._gate: RoundGate | None = None
        self._model: torch.Tensor | None = None
        self.rounds = RoundCounter(shared.total_iterations)
        self.fixed: Sequence[WorkerRounds] = []
        self._link_config = LinkConfig(
            node.zmq_context,
            algorithm,
            sorted((m for m in members if m.role == "sync"), key=lambda m: m.index),
            sorted((m for m in members if m.role == "trainer"), key=lambda m: m.index),
            node.index,
            node.token,
        )
        algorithm.start(shared.replica)
        if state is not None and algorithm.state_names:
            algorithm.load_state(state)
        if shared.job.sync.mode == "fixed":
            self._set_up_fixed_rate()
        callbacks = PeerCallbacks(self._report_late, self._report_excluded, self._on_wanted)

        def open_links() -> ZmqPeers:
            return self._link_config.open(shared, "shadow", socket, view, callbacks)

        self._shadow = Shadow(shared, algorithm, open_links, self.rounds, self._gate, node.fail)

    def start(self) -> None:
        """Starts the shadow thread; no round begins yet."""
        self._shadow.start()

    async def seed(self, model: torch.Tensor | None) -> None:
        """Gives the center its first value: `model`, float32 [numel], or else that of this replica. Raises
        PeerLost."""
        if self._algorithm.needs_center:
            first = self._shared.replica.snapshot(self._shared.replica.whole) if model is None else model
            await self._shadow.call(lambda links: links.center.seed(first))

    def begin(self) -> None:
        """Training begins, and rounds with it."""
        self._shadow.begin()

    def pause(self) -> None:
        """Training ends: no further round begins, and no worker waits for one."""
        self._shadow.pause()

    async def wait_idle(self) -> None:
        """Returns when no round is under way."""
        await self._shadow.call(lambda _: self._shadow.wait_idle())

    def mark_lost(self, token: str) -> None:
        """A sync node is gone."""
        self._shadow.call_soon(lambda links: links.mark_lost(token))
        for fixed in self.fixed:
            fixed.mark_lost(token)

    async def regroup(self, view: GroupView) -> None:
        """Another generation of trainers; ends the rounds of the last one."""

        async def on_loop(links: ZmqPeers) -> None:
            if links.peers is not None:
                links.peers.regroup(view.generation, view.members)

        await self._shadow.call(on_loop)

    async def finalize(self, *, closing_round: bool) -> dict[str, Any]:
        """After training: the closing round, if asked for, and the model that comes out if every trainer
        has it. Gives `complete`, `model_ready` and the model's digest."""
        complete = await self._shadow.call(lambda _: self._shadow.round()) if closing_round else False
        self._model = None
        origin = self._algorithm.model
        if origin is ModelOrigin.MEAN:
            self._model = await self._mean_of_replicas()
        # A center still moves while the others settle; it is read when it is asked for.
        model = await self.model() if origin in (ModelOrigin.MEAN, ModelOrigin.GLOBAL) else None
        digest = await asyncio.to_thread(digest_of, model) if model is not None else ""
        return {
            "complete": complete,
            "model_ready": model is not None,
            "model_digest": digest,
            "model_rounds": self._algorithm.state().completed_rounds,
        }

    async def model(self) -> torch.Tensor | None:
        """The model that comes out, float32 [numel]; None if it is each replica's own, or cannot be had. A
        mean is that of the last `finalize`."""
        origin = self._algorithm.model
        if self._model is None and origin is ModelOrigin.CENTER:
            try:
                self._model = await self._shadow.call(lambda links: links.center.read_all())
            except PeerLost as error:
                log.warning("the center cannot be read: %s", error)
        elif self._model is None and origin is ModelOrigin.GLOBAL:
            self._model = self._algorithm.global_model().clone()
        return self._model

    async def between_rounds(self, work: Callable[[], T]) -> T:
        """Runs `work` on the shadow thread, where no step of a round is half done, and gives its result."""

        async def on_loop(links: ZmqPeers) -> T:  # noqa: ARG001
            return work()

        return await self._shadow.call(on_loop)

    def metrics(self) -> dict[str, Any]:
        """Counts so far, over all threads."""
        ends = [self._shadow.bytes(), *(fixed.bytes for fixed in self.fixed)]
        links = summed([self._shadow.link_metrics(), *(fixed.link_metrics() for fixed in self.fixed)])
        return self.rounds.metrics() | {
            **links,
            "sync_sent_bytes": sum(sent for sent, _ in ends),
            "sync_received_bytes": sum(received for _, received in ends),
        }

    def stop(self) -> None:
        """Tells the shadow thread to end, and lets workers go that wait for a round."""
        if self._gate is not None:
            self._gate.open()
        self._shadow.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the shadow thread's end; from a thread of its own."""
        return self._shadow.join(timeout_seconds)

    def _set_up_fixed_rate(self) -> None:
        workers = self._shared.job.trainer.workers
        if self._algorithm.needs_peers:
            gate = self._gate = RoundGate(workers, self._shared.job.sync.every, lambda: self._shadow.wake())
            self.fixed = [GatedRounds(index, gate) for index in range(workers)]
        elif self._algorithm.needs_center and self._shared.job.trainer.worker_kind == "process":
            self.fixed = [RemoteRounds(self.rounds) for _ in range(workers)]
        elif self._algorithm.needs_center:
            self.fixed = [
                CenterRounds(index, self._shared, self._link_config, self.rounds) for index in range(workers)
            ]

    async def _mean_of_replicas(self) -> torch.Tensor | None:
        replica = self._shared.replica

        async def mean(links: ZmqPeers) -> torch.Tensor:
            async with self._shadow.round_lock:
                group = await links.meet()
                return await group.mean(replica.snapshot(replica.whole))

        try:
            return await self._shadow.call(mean)
        except PeerLost as error:
            log.warning("the replicas' mean cannot be had: %s", error)
            return None

    def _report_late(self, generation: int, index: int) -> None:
        self._report("late", {"generation": generation, "index": index})

    def _report_excluded(self) -> None:
        self._report("rejoin", {})

    def _on_wanted(self) -> None:
        # In shadow mode the others wait for this trainer's duty cycle.
        if self._gate is not None:
            self._shadow.wake()

    def _report(self, verb: str, body: dict[str, Any]) -> None:
        """Asks the coordinator, from any thread."""

        def on_control() -> None:
            asking = self._node.coordinator.ask(verb, body, timeout_seconds=REPORT_SECONDS)
            self._tasks.start(asking)

        self._loop.call_soon_threadsafe(on_control)


def _warn(error: BaseException) -> None:
    log.warning("the coordinator did not take a report: %s", error)
