"""The contract of a synchronization algorithm.

An algorithm is mathematics over a replica and its peers: one class with one coroutine, `round`. It opens no
socket, reads no clock and starts no thread; the same class runs over ZeroMQ and over the in-memory peers of
`memory`. The caller decides when a round starts, how often, and on which thread: the shadow thread in shadow
mode; at a fixed rate, after every k iterations of a worker (see `needs_peers`).
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch

from .contract.grouping import Grouping, everyone
from .contract.merge_window import MergeTerms as MergeTerms
from .contract.model_origin import ModelOrigin as ModelOrigin


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `start` to `stop` of the flat buffer."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class PeerLost(Exception):
    """A peer died, left, or did not answer within the bound.

    From a center: the exchanged slice is unchanged on this side, and it is not known whether the center
    applied it (`Center.resume_exchange`). From a group: the round has ended for all members, and none of
    them was given a result.
    """


class Replica(Protocol):
    """A trainer's replica: one flat float32 buffer [numel].

    Workers write it concurrently.
    """

    @property
    def numel(self) -> int:
        """Return the number of elements of the flat buffer."""
        ...

    @property
    def whole(self) -> Slice:
        """Return the slice of all elements, `Slice(0, numel)`."""
        ...

    @property
    def trained_examples(self) -> int:
        """Return the examples that this trainer's workers have trained."""
        ...

    def snapshot(self, part: Slice) -> torch.Tensor:
        """Copy a slice, float32 [len(part)]; workers may write meanwhile."""
        ...

    def add_(self, part: Slice, delta: torch.Tensor, scale: float) -> None:
        """Do `w[part] += scale * delta` in place.

        This keeps what workers did since a snapshot.
        """
        ...

    def interpolate_(self, part: Slice, target: torch.Tensor, rate: float) -> None:
        """Move `w[part]` toward `target` in place.

        `w[part] <- (1 - rate) w[part] + rate * target`. Exact where both are equal, and at rate 1. This also
        shrinks what workers did since a snapshot.
        """
        ...


class Center(Protocol):
    """A parameter center, split into slices over the sync nodes."""

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Return the slices in order; together they are the flat buffer."""
        ...

    @property
    def is_exact(self) -> bool:
        """Return whether exchanges leave nothing to a later one: in the last round codecs lose nothing."""
        ...

    async def exchange(self, part: Slice, values: torch.Tensor, examples: int | None = None) -> torch.Tensor:
        """Send a slice to the center and await the reply.

        The reply is the `center_rule`'s. Under `Algorithm.merges` it is the center after the merge that has
        these values, and `examples`, how many examples are behind them, must be given: at least 0.
        `values` and the reply are float32 [len(part)]; neither may be written afterwards. The center applies
        the whole slice at once, or nothing. Raises PeerLost if the sync node is gone or silent. If it had
        applied the slice by then, the center has moved and this replica has not; the run counts and reports
        such exchanges.
        """
        ...

    def lost(self, part: Slice) -> torch.Tensor:
        """Return what a lossy codec has lost of the values that were sent in a slice's last exchange.

        So the center was given `values - lost`, and it is for the algorithm to send the rest later. Float32
        [len(part)], or [1], a 0, if the codec loses nothing; valid until the slice's next exchange. Only with
        `Algorithm.counts_once`: elsewhere the next exchange makes up for it.
        """
        ...

    async def resume_exchange(self, part: Slice) -> torch.Tensor:
        """Await the reply to a slice's last exchange, which ended with PeerLost.

        The same values are sent again as the same exchange, and count once: a center that has applied them
        repeats its reply, and one that has not applies them now. Call it before the slice's next exchange,
        on the same thread. Raises PeerLost as `exchange` does, and may then be called again. Raises
        RuntimeError if the slice's last exchange was answered, or if another node has taken the slice since,
        which happens only without `Algorithm.counts_once`.
        """
        ...


class Group(Protocol):
    """The trainers of one round, this one included.

    Every member calls `mean` once. In a group of one it returns the member's own values.
    """

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members' indexes among all trainers, ascending.

        All members see the same tuple.
        """
        ...

    @property
    def round_number(self) -> int:
        """Return the number of earlier rounds of these trainers.

        All members see the same number.
        """
        ...

    async def mean(self, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        """Await the weighted mean of the members' `values`, float32 [n].

        The result is whole, exact to float32 rounding, and bit-identical on every member. Each member
        reduces one slice and sends it back, all slices at once, in chunks; about 2 (n - 1) / n of the values
        leave a member. `weight` is at least 0; if all weights are 0, all members count the same. Do not
        change `values` before the result arrives, and do not write to the result: the link may keep it.
        Raises PeerLost if the round ended; then no member is given a result.
        """
        ...


class Peers(Protocol):
    """The other nodes, as an algorithm sees them."""

    @property
    def center(self) -> Center:
        """Return the center; only for algorithms with `needs_center`."""
        ...

    @property
    def index(self) -> int:
        """Return this trainer's place among all trainers, from 0."""
        ...

    async def meet(self, grouping: Grouping = everyone) -> Group:
        """Await the round's group, which `grouping` chooses.

        Returns when all members are ready. `grouping` is given every trainer that can take part, the round's
        number and the job's seed, so that all trainers find the same groups without asking. Take a snapshot
        after this call, not before: it may wait as long as the slowest member's duty cycle. Before it
        returns, members whose state lags (see `Algorithm.state`) are given the state with the most completed
        rounds. Only for algorithms that declare `needs_peers`. Raises PeerLost if a member died or left
        meanwhile; the next round meets those who are left.
        """
        ...


@dataclass(frozen=True)
class NoOptions:
    """Options of an algorithm that has none."""


@dataclass
class AlgorithmState:
    """The state that an algorithm keeps from round to round.

    `completed_rounds` orders the states of two trainers: the higher is adopted. `tensors` are float32
    [numel], flat like the replica, so that they can be checkpointed and handed to a trainer that joins.
    """

    completed_rounds: int = 0
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Merge:
    """What a center merges.

    `examples` are the weights of the contributions, at least one of them above 0: how many examples are
    behind each, and see `merge_weights`. `trainers` is the number of trainers that take part, in this merge
    or not. `number` counts the earlier merges.
    """

    examples: tuple[int, ...]
    trainers: int
    number: int


AVERAGED = ("adagrad", "adam", "adamw")
"""The optimizers whose state may be averaged as weights are."""


class Algorithm(ABC):
    """Base of all algorithms.

    Class attributes that say what it is:
        name: its name in a job file.
        summary: one line for `shadowsync algos`.
        needs_center: whether there must be sync nodes. At a fixed rate each worker then runs rounds of its
            own, several at a time on one instance.
        needs_peers: whether it calls `meet`. At a fixed rate all workers of a trainer wait for the round.
        model: which model a job with this algorithm produces.
        state_names: the names of the tensors of `state`; if there are any, rounds run one at a time.
        Options: a frozen dataclass; its fields are the keys of `sync.options`. Its `__post_init__` raises
            ValueError("key: ...") for a value that cannot be used.

    Class attributes that say which settings go with it, of which others are refused before anything starts:
        counts_once: whether what is sent to the center must count exactly once, as deltas that the center
            sums; its replies are its new values. At a fixed rate all workers of a trainer then wait for one
            round, as with `needs_peers`. What a lossy codec rounds away of a delta, `Center.lost`, must be in
            the next one.
            If false, the slice of a sync node that died is made again, as the mean of the replicas.
        merges: whether the center merges what several trainers have sent, by `merge_rule`, and answers all of
            them when the merge closes. With `counts_once`; the slice of a sync node that died is made again
            then, too (see `recentered`).
        center_state_names: the names of the tensors that the center keeps for its merges, float32 like it and
            0 at first.
        changes_groups: whether its groups change from round to round. Lossy codecs are then refused: they
            need a reference that both ends hold from the last round.
        optimizer_states: the optimizers whose state `sync.optimizer_state` may synchronize with the weights,
            in the same flat buffer: AVERAGED where a round averages, fewer where it sums or has a momentum
            of its own.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    needs_center: ClassVar[bool] = False
    needs_peers: ClassVar[bool] = False
    model: ClassVar[ModelOrigin] = ModelOrigin.REPLICAS
    state_names: ClassVar[tuple[str, ...]] = ()
    Options: ClassVar[type[Any]] = NoOptions

    counts_once: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    center_state_names: ClassVar[tuple[str, ...]] = ()
    changes_groups: ClassVar[bool] = False
    optimizer_states: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: Any) -> None:
        self.options = options

    def check_trainers(self, trainers: int) -> None:  # noqa: B027
        """Refuse options that cannot work with so many trainers; raises ValueError("key: ...").

        Called before anything starts, and by each trainer and sync node.
        """

    def start(self, replica: Replica) -> None:  # noqa: B027
        """Prepare, once, before training starts; all replicas are equal."""

    @abstractmethod
    async def round(self, replica: Replica, peers: Peers) -> bool:
        """Synchronize this trainer once.

        Returns whether the round is complete, that is, whether all of it was applied. Raises nothing for a
        lost peer: what came back whole is applied, the rest is left unchanged.
        """

    def center_rule(self, center: torch.Tensor, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Move `center` for a replica's `values`, and return the reply.

        `center` (float32 [n]) is changed in place, `values` (float32 [n]) only read; the reply is a
        new float32 [n]. Runs on the sync node's service thread, element by element: the slice of an
        exchange may come in several parts, one after the other.

        Only algorithms with `needs_center` have one.
        """
        raise TypeError(f"{type(self).__name__} has no center")

    def merge_terms(self, trainers: int) -> MergeTerms:  # noqa: ARG002
        """Return when a merge closes while so many trainers take part; only with `merges`."""
        raise TypeError(f"{type(self).__name__} does not merge")

    def merge_rule(
        self,
        center: torch.Tensor,  # noqa: ARG002
        state: Mapping[str, torch.Tensor],  # noqa: ARG002
        mean: torch.Tensor,  # noqa: ARG002
        merge: Merge,  # noqa: ARG002
    ) -> None:
        """Move `center` by the mean of what was sent, weighted by examples.

        All tensors are float32 [n]. `center` and those of `state` (see `center_state_names`) are changed in
        place, `mean` is only read. Runs on the sync node's service thread, element by element: a merge may
        come in several parts, one after the other. Only with `merges`.
        """
        raise TypeError(f"{type(self).__name__} does not merge")

    def recentered(self, part: Slice, values: torch.Tensor, examples: int) -> None:  # noqa: B027
        """Record that the center's slice was made again, as the mean of all replicas.

        `values` is this replica's part in that mean, float32 [len(part)]; it never changes any more.
        `examples` are the trained examples that it has. Called between rounds. An exchange of the slice that
        was not answered is void. Only with `merges`.
        """

    @property
    def recenters(self) -> bool:
        """Whether a lost slice of the center may be made again as the mean of the replicas.

        Deltas that a center sums would be part of that mean, and would be sent a second time.
        """
        return self.needs_center and (self.merges or not self.counts_once)

    def state(self) -> AlgorithmState:
        """Return the state, not copied, with the tensors of `state_names`.

        Called between rounds.
        """
        return AlgorithmState()

    def load_state(self, state: AlgorithmState) -> None:
        """Adopt the state of another instance or of a checkpoint.

        This instance owns it from then on. Called between rounds and in `meet`. Only for algorithms with
        `state_names`.
        """
        raise TypeError(f"{type(self).__name__} has no state, and was given {sorted(state.tensors)}")

    def global_model(self) -> torch.Tensor:
        """Return the resulting model, float32 [numel], not copied.

        Only for `ModelOrigin.GLOBAL`.
        """
        raise TypeError(f"{type(self).__name__} has no global model")

    @property
    def has_common_rounds(self) -> bool:
        """Whether at a fixed rate all workers of a trainer wait for one round.

        Otherwise each has its own.
        """
        return self.needs_peers or self.counts_once or bool(self.state_names)

    def describe(self) -> Mapping[str, Any]:
        """Return the options in effect, for reports."""
        return dataclasses.asdict(self.options)
