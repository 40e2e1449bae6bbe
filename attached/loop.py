"""An attached loop, as the user's code sees it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence, Sized
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import torch
from torch import nn

from ..nodes.shadow.fixed_rate import FixedRate
from ..pipeline.errors import ClusterError
from ..pipeline.wire.control.base import ReplyType, Request
from ..pipeline.wire.control.loops import TakeSamples
from ..sync_algos.base import ModelOrigin
from .errors import AttachError
from .node_thread import NodeThread, await_first
from .parameters import LoopParameters
from .reconnect import HubReconnect
from .role import LoopRole
from .sampler import SharedSampler
from .steps import StepHooks
from .torchrun import HubSlot

WhichModel = Literal["center", "mean", "global", "mine"]

_ORIGINS: Final = {
    ModelOrigin.CENTER: "center",
    ModelOrigin.MEAN: "mean",
    ModelOrigin.GLOBAL: "global",
    ModelOrigin.REPLICAS: "mine",
}
END_SECONDS = 15.0
# Two heartbeats: within them a loop hears that the hub does not know it.
LOSS_SECONDS = 1.0

T = TypeVar("T")

log = logging.getLogger(__name__)


class AttachedLoop:
    """A training loop that synchronizes in the background; `attach` makes it.

    All methods are for the loop's thread. A process that was forked from the loop's must not use it: its
    steps are refused, and leaving the block does nothing there.
    """

    def __init__(
        self,
        parameters: LoopParameters,
        optimizers: Sequence[torch.optim.Optimizer],
        thread: NodeThread[LoopRole],
        role: LoopRole,
        slot: HubSlot,
        *,
        raise_if_lost: bool = False,
        seek: Callable[[NodeThread[LoopRole], LoopRole], HubReconnect] | None = None,
        hub_wait_seconds: float = 0.0,
    ) -> None:
        self._parameters, self._thread, self._role = parameters, thread, role
        self._slot = slot
        self._raise_if_lost = raise_if_lost
        self._seek, self._hub_wait_seconds = seek, hub_wait_seconds
        self._reconnect: HubReconnect | None = None
        self._pid = os.getpid()
        self._is_over = False
        self._is_paused = False
        self._told_loss = False
        self._samplers: list[SharedSampler] = []
        self._fixed: FixedRate | None = role.fixed
        if self._fixed is not None:
            self._fixed.before_step()
        self._await_device()
        self._hooks = StepHooks(
            parameters,
            optimizers,
            steps=lambda: self.steps,
            count=self._after_step,
            rounds_wait=self._fixed is not None,
        )

    @property
    def steps(self) -> int:
        """Steps of any optimizer over parameters of the first one."""
        return int(self._role.iterations[0])

    @property
    def is_lost(self) -> bool:
        """Whether the loop has lost its hub, and trains alone."""
        return self._role.over and not self._is_over

    @property
    def is_over(self) -> bool:
        """Whether the loop has left by `finish` or `abandon`; its steps are no longer counted."""
        return self._is_over

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Leave without a closing round, as an exception does; a second call does nothing.

        What goes wrong is logged: the user's exception is the one to see.
        """
        if self._is_over or os.getpid() != self._pid:
            return
        try:
            self._leave(closing_round=False)
        except BaseException:
            log.exception("the loop could not leave its hub cleanly")

    def finish(self) -> None:
        """Make the closing round and leave.

        A second call does nothing. If the closing round could not be made, that is logged, or with
        `on_lost="raise"` a ClusterError, after all else is done; so is an AttachError if something was
        trained, and no step counted.
        """
        if self._is_over or os.getpid() != self._pid:
            return
        is_complete = self._leave(closing_round=True)
        self._hooks.require_counted()
        if not is_complete:
            what = "the closing round could not be made, so the last steps of this loop are not synchronized"
            if self._raise_if_lost:
                raise ClusterError(what, remedy="the model has the parameters of this loop")
            log.error("%s; the model has the parameters of this loop", what)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let nothing but the loop's own thread change the parameters within the block.

        Waits for a round that is under way. The other loops go on without this one meanwhile.
        """
        self._require_here()
        if self._is_paused:
            raise AttachError("paused() is on already", remedy="do not nest it")
        with contextlib.ExitStack() as held:
            if self._reconnect is not None:
                # A new place would begin rounds.
                held.enter_context(self._reconnect.turn)
                self._take_up()
            with self._paused():
                yield

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        if self._fixed is not None:
            # Rounds of the others do not wait for a loop that evaluates.
            self._fixed.nothing_to_train()
        pausing = self._role.pausing()
        with contextlib.suppress(concurrent.futures.CancelledError):
            self._run(lambda: pausing.__aenter__())
        self._await_device()
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False
            with contextlib.suppress(concurrent.futures.CancelledError):
                self._run(lambda: pausing.__aexit__(None, None, None))
            if self._fixed is not None and not self._role.over:
                self._fixed.before_step()

    def _await_device(self) -> None:
        """Wait for what rounds have enqueued on a GPU."""
        if self._parameters.device.type == "cuda":
            torch.cuda.synchronize(self._parameters.device)

    def model(self, which: WhichModel | None = None) -> nn.Module:
        """Return a copy of the module with the weights of one model.

        By default it is the one that the algorithm makes of all loops: "center", "mean" or "global". "mine"
        is this loop's. Buffers are this loop's. After the block it is the model as of the closing round.

        Raises AttachError if the algorithm has no such model, ClusterError if it cannot be had now.
        """
        self._require_here()
        origin = _ORIGINS[self._role.algorithm.model]
        chosen = origin if which is None else which
        if chosen not in (origin, "mine"):
            raise AttachError(
                f"model({chosen!r}) wanted; {self._role.job.sync.algorithm} makes the model {origin!r}",
                remedy=f'give "{origin}" or "mine"',
            )
        result = copy.deepcopy(self._parameters.module)
        if chosen == "mine":
            return result
        self._parameters.require_all()
        flat = self._role.last_model if self._is_over else self._single_model()
        if flat is None:
            raise ClusterError(
                f"the {chosen} of all loops cannot be had{self._why_no_model()}",
                remedy='model("mine") has this loop\'s parameters; the hub may have a checkpoint',
            )
        parameters = dict(result.named_parameters())
        with torch.no_grad():
            for name, values in self._parameters.values(flat):
                parameters[name].copy_(values)
        return result

    def _why_no_model(self) -> str:
        if self._is_over:
            return ": the hub was gone as this loop left, or the block was left by an exception"
        return ": the hub is gone" if self._role.over else " now: the other nodes do not answer"

    def metrics(self) -> dict[str, float]:
        """Return what was measured so far.

        `steps`, `synchronized_steps`, `rounds`, `incomplete_rounds`, `sync_gap_mean` and `sync_gap_max` (in
        steps), `sent_bytes`, `received_bytes`, `divergence` (NaN if unknown), `members` (loops that train
        now) and `lost` (1 if the hub is gone). The last three are at most some seconds old.
        """
        self._require_here()
        if self._seek is not None and self.is_lost and not self._is_paused and not self._take_up():
            self._tell_loss()
        counts, book = self._role.metrics(), self._role.book
        rounds = counts.get("rounds", 0)
        return {
            "steps": float(self.steps),
            "synchronized_steps": float(counts.get("synced_iterations", 0)),
            "rounds": float(rounds),
            "incomplete_rounds": float(counts.get("incomplete_rounds", 0)),
            "sync_gap_mean": counts["gap_sum"] / rounds if rounds else float("nan"),
            "sync_gap_max": float(counts.get("gap_max", 0)),
            "sent_bytes": float(counts.get("sync_sent_bytes", 0)),
            "received_bytes": float(counts.get("sync_received_bytes", 0)),
            "divergence": float("nan") if book.divergence is None else book.divergence,
            "members": float(sum(loop.state == "training" for loop in book.loops)),
            "lost": float(self.is_lost),
        }

    def sampler(
        self,
        dataset: Sized,
        *,
        examples_per_step: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        epochs: int = 0,
        span: int = 0,
        name: str = "train",
    ) -> SharedSampler:
        """Return a sampler that shares a data set with the other loops; see `SharedSampler`."""
        self._require_here()
        made = SharedSampler(
            self._call_hub,
            lambda: self.steps,
            len(dataset),
            examples_per_step=examples_per_step,
            seed=seed if shuffle else None,
            epochs=epochs,
            span=span,
            name=name,
        )
        if made.count_name in self._role.finished:
            raise AttachError(f"there is a sampler {name!r} already", remedy="give another name")
        self._role.finished[made.count_name] = made.finished
        self._samplers.append(made)
        return made

    def _after_step(self) -> None:
        self._role.stepped()
        if self._role.over and not self._is_paused and self._take_up():
            return
        if self._role.over:
            self._tell_loss()
        elif self._fixed is not None and not self._is_paused:
            self._fixed.after_iteration()
            self._fixed.before_step()

    def _tell_loss(self) -> None:
        """Say once that the loop is no longer synchronized, or raise it."""
        if self._fixed is not None:
            # Its sockets belong to this thread, and the node's end waits for them.
            self._fixed.close()
            self._fixed = None
        why = "the hub is gone, or has declared this loop dead; from now on the loop trains alone"
        if self._raise_if_lost:
            raise ClusterError(why, remedy="attach again to take part again")
        if not self._told_loss:
            self._told_loss = True
            log.error("%s%s", why, "" if self._seek is None else ", until a hub is at that address again")
            if self._seek is not None:
                self._reconnect = self._seek(self._thread, self._role)

    def _take_up(self) -> bool:
        """Go on at the hub that has come back; return whether there is one."""
        place = self._reconnect.place() if self._reconnect is not None else None
        if place is None or self._reconnect is None:
            return False
        self._reconnect.end()
        self._reconnect, self._told_loss = None, False
        self._thread, self._role = place
        self._fixed = self._role.fixed
        if self._fixed is not None:
            self._fixed.before_step()
        log.warning("the hub is back, and the loop is synchronized again")
        return True

    def _single_model(self) -> torch.Tensor | None:
        if self._is_paused and self._role.algorithm.model is ModelOrigin.MEAN:
            raise AttachError(
                "the mean needs a round, and rounds are paused", remedy="call model() before paused()"
            )
        with contextlib.suppress(concurrent.futures.CancelledError):
            return self._run(self._role.single_model)
        return None

    def _leave(self, *, closing_round: bool) -> bool:
        """Leave the hub and detach; return whether all steps are synchronized."""
        if self._reconnect is not None:
            self._reconnect.end()
            self._take_up()
        try:
            if closing_round:
                self._end_samples()
            self._is_over = True
            self._hooks.remove()
            if self._fixed is not None:
                self._fixed.close()
            with contextlib.suppress(concurrent.futures.CancelledError):
                self._run(lambda: self._role.leave(closing_round=closing_round))
        finally:
            self._is_over = True
            if not self._thread.join(END_SECONDS):
                self._thread.fail(ClusterError("the loop left"))
                self._thread.join(END_SECONDS)
            self._hooks.remove()
            self._parameters.release()
            if self._thread.join(0):
                self._role.release()
                self._parameters.buffer.close()
            self._slot.leave()
        if closing_round:
            # An exception of the user's is not kept until the other loops have left.
            self._slot.await_others()
        return self._role.is_complete

    def _end_samples(self) -> None:
        for sampler in self._samplers:
            try:
                sampler.finish()
            except ClusterError as error:
                log.warning("the hub was not told which samples were trained: %s", error)

    def _call_hub(self, request: Request[ReplyType]) -> ReplyType:
        """Return the hub's reply; for samples wait until it is back."""
        self._require_here()
        while not self._is_over:
            try:
                with contextlib.suppress(concurrent.futures.CancelledError):
                    return self._run(lambda: self._role.call(request))
            except ClusterError:
                # A hub that has just come back does not know the loop: its node ends.
                concurrent.futures.wait([self._thread.ended], LOSS_SECONDS)
                if not self._thread.ended.done():
                    raise
            if not isinstance(request, TakeSamples) or self._is_paused or not self._await_hub():
                break
        raise ClusterError("the loop is not at its hub any more")

    def _await_hub(self) -> bool:
        """Wait for the hub to come back; return whether it has."""
        self._tell_loss()
        return (
            self._reconnect is not None and self._reconnect.wait(self._hub_wait_seconds) and self._take_up()
        )

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the control thread; raises CancelledError if that has ended."""
        future = self._thread.submit(work)
        await_first(future, self._thread.ended)
        if not future.done():
            raise concurrent.futures.CancelledError
        return future.result()

    def _require_here(self) -> None:
        if os.getpid() != self._pid:
            raise AttachError(
                "this process was forked after attach, and the loop is another process's",
                remedy="attach in each process that trains, after it was started",
            )
