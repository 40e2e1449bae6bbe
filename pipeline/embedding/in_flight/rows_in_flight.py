"""Rows that are exact although they are in flight: each has what its own trainer has done to it.

An embedding node answers a lookup with the pushes that it has applied. Those of this trainer that it has
not yet, because they were computed or sent later, are added here, by the rule of the table's optimizer. So
with one worker a batch that was looked up long before its step is trained on the rows that a lookup right
before the step would give. Pushes stay gradients, and nothing else of their way changes. Related: BagPipe
(Agarwal et al., arXiv 2202.12429), whose cache of rows is exact by looking ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from ...config.row_bytes import row_states
from ...types import BatchId, Float32Array, IndexArray, Int32Array
from ..lookup.request import LookupPlan
from ..placement.plan import TablePlan
from ..storage.bf16_rows import RowNumbers, WidenedRows, add_at_random, nearest_bits
from ..storage.first_values import mixed_key
from ..storage.optimizers import RowDecay, RowRule, make_row_rule
from .applied_pushes import parse_applied
from .id_finder import NOWHERE, IdFinder, Ids

# Of the state before: sums that were made of differences may be smaller by their rounding.
_BEGUN_ANEW: Final = 0.99


@dataclass(slots=True)
class Answer:
    """A node's answer to a lookup; made by `RowsInFlight.answer`.

    Attributes:
        term: how many other nodes had the node's place before it.
        values: float32 [floats], the vectors, to which pushes are added.
        state: float32, see `messages.Vectors`.
        absent: int32 [A], likewise.
        applied: the pushes that it contains, see `parse_applied`.
    """

    term: int
    values: Float32Array
    state: Float32Array
    absent: Int32Array
    applied: dict[int, tuple[int, frozenset[int]]]

    def contains(self, push: PushInFlight) -> bool:
        """Return whether this trainer's push is in the rows."""
        if push.answered_in is not None and push.answered_in < self.term:
            # The node of this answer took the other's place: it has the push, or gets its batch anew.
            return True
        through, later = self.applied.get(push.worker, (0, frozenset()))
        return push.sequence <= through or push.sequence in later


@dataclass(slots=True, eq=False)
class PushInFlight:
    """What a push to one node changes.

    Attributes:
        worker: the worker that sent it.
        sequence: its number, see `messages.Push`.
        changes: of each bank's single rows.
        counts: whether it is known to change the rows: a batch trained again only where its node lacked it.
        answered_in: the term of the node that has confirmed it, see `Answer`; None until then.
        last_ticket: lookups that began later contain it; once it is answered.
    """

    worker: int
    sequence: int
    changes: list[_Changes]
    counts: bool = True
    answered_in: int | None = None
    last_ticket: int = 0


@dataclass(frozen=True, slots=True)
class _Bank:
    """One bank of a node, as a `BankLookup` has it.

    Attributes:
        states: for each array of the optimizer's state whether it has `dim` floats a row, or one.
        number: which of the store's banks it is, for rounding.
        begins: whether an absent key gets its row with its first push.
        is_exact: whether a push is known by its single rows: not of mixed tables, whose rows are stepped by
            the gradients of bags, too, of which a trainer has no state.
    """

    rule: RowRule
    decay: RowDecay
    dim: int
    states: tuple[bool, ...]
    storage: str
    growing: bool
    number: int
    begins: bool
    is_exact: bool

    @property
    def is_rounded(self) -> bool:
        """Whether a push changes a row from one bfloat16 to another."""
        return self.storage == "bfloat16"

    @property
    def state_floats(self) -> int:
        return sum(self.dim if by_float else 1 for by_float in self.states)


@dataclass(slots=True, eq=False)
class _Changes:
    """What a push changes in a bank's single rows.

    A batch has few of another batch's rows in common, so at first they are computed for these; for all rows
    once a second lookup lacks the push. Threads that do so at the same time compute the same.

    Attributes:
        ids: of the rows.
        gradients: float32 [S, dim].
        state: float32 [S, floats of a row's state], before the push.
        values: float32 [S, dim], the rows before it; [0, dim] for a bank that is not rounded.
        lr_scale: see `messages.Push`.
        rounding: the key of the step, see `rounding_bits`; 0 for a bank that is not rounded.
    """

    bank: _Bank
    ids: Ids
    gradients: Float32Array
    state: Float32Array
    values: Float32Array
    lr_scale: float
    rounding: int
    _of_all: tuple[Float32Array, Float32Array] | None = None
    _is_used: bool = False

    def to(
        self, rows: IndexArray, values: Float32Array, state: Float32Array, targets: IndexArray
    ) -> tuple[Float32Array, Float32Array]:
        """Return what the push adds to `values[targets]` and `state[targets]`, which hold its `rows`.

        A row may have begun anew since the push was computed: it was evicted, or its node was replaced. The
        last number of a row's state only grows, so such a row has a smaller one. What the push changes then
        follows from the new state: of Adam's the difference from the old one may leave a negative square.
        """
        of_values, of_state = self._changes_of(rows)
        if self.bank.states:
            anew = np.flatnonzero(state[targets, -1] < _BEGUN_ANEW * self.state[rows, -1])
            if len(anew):
                chosen = targets[anew]
                changes = self._compute(rows[anew], values[chosen], state[chosen])
                of_values[anew], of_state[anew] = changes
        # What is rounded was computed with its decay.
        if self.bank.decay and not self.bank.is_rounded:
            self.bank.decay.add(torch.from_numpy(of_values), torch.from_numpy(values[targets]), self.lr_scale)
        return of_values, of_state

    def _changes_of(self, rows: IndexArray) -> tuple[Float32Array, Float32Array]:
        """Return what the push adds to rows as they were when it was computed, as new arrays."""
        if self._of_all is None:
            if not self._is_used:
                self._is_used = True
                return self._compute_before(rows)
            self._of_all = self._compute_before(np.arange(len(self.ids)))
        values, state = self._of_all
        return np.take(values, rows, axis=0, mode="clip"), np.take(state, rows, axis=0, mode="clip")

    def _compute_before(self, rows: IndexArray) -> tuple[Float32Array, Float32Array]:
        values = self.values[rows] if self.bank.is_rounded else self.values
        return self._compute(rows, values, np.take(self.state, rows, axis=0, mode="clip"))

    def _compute(
        self, rows: IndexArray, values: Float32Array, state: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        columns = _columns(state, self.bank)
        gradients = torch.from_numpy(np.take(self.gradients, rows, axis=0, mode="clip"))
        steps: Float32Array = self.bank.rule.step(columns, gradients, self.lr_scale).numpy()
        if self.bank.is_rounded:
            if self.bank.decay:
                self.bank.decay.add(
                    torch.from_numpy(steps), torch.from_numpy(_writable(values)), self.lr_scale
                )
            ids = self.ids[rows] if self.bank.growing else self.ids[rows].astype(np.int64)
            steps = _rounded(values, steps, ids, self.rounding)
        if columns:
            state = np.column_stack(columns) - state
        return steps, state


class RowsInFlight:
    """All pushes of a trainer that an answer may lack; any of its workers' threads may call.

    A lookup has a ticket from when it is sent until its batch's rows are complete. A push is kept until it is
    answered and no lookup is left that began before.

    Args:
        plan: the split of all tables.
        seed: the seed of the run, on which the rounding of bfloat16 rows depends.
    """

    def __init__(self, plan: TablePlan, seed: int) -> None:
        self._seed = seed
        self._banks = [_bank(plan, number) for number in range(len(plan.banks))]
        self._lock = threading.Lock()
        self._pushes: list[list[PushInFlight]] = [[] for _ in range(plan.nodes)]
        # Of each place the nodes that had it, in this order.
        self._names: list[list[str]] = [[] for _ in range(plan.nodes)]
        self._tickets: set[int] = set()
        self._next_ticket = 1

    def __len__(self) -> int:
        """Return how many pushes are kept, of all nodes."""
        return sum(map(len, self._pushes))

    def connect(self, node: int, name: str) -> None:
        """Record that a worker turns to the node of this name: at first, and when it has taken a place.

        All workers turn to the same nodes in the same order.
        """
        with self._lock:
            if name not in self._names[node]:
                self._names[node].append(name)

    def begin(self) -> int:
        """Return the ticket of a batch whose lookups are sent now."""
        with self._lock:
            ticket = self._next_ticket
            self._next_ticket += 1
            self._tickets.add(ticket)
        return ticket

    def end(self, ticket: int) -> None:
        """Take back the ticket of a batch whose rows are complete, or no longer needed."""
        with self._lock:
            self._tickets.discard(ticket)
            self._forget()

    def state_floats(self, lookup: LookupPlan) -> int:
        """Return how many floats of state the answer to a lookup has."""
        banks = zip(lookup.banks, self._banks_of(lookup), strict=True)
        return sum(part.share.single * bank.state_floats for part, bank in banks)

    def answer(
        self,
        lookup: LookupPlan,
        name: str,
        values: Float32Array,
        state: Float32Array,
        absent: Int32Array,
        applied: Sequence[int],
    ) -> Answer:
        """Return the answer of the node of this name to a lookup; the rest is that of `messages.Vectors`.

        Raises ValueError for what cannot be.
        """
        singles = sum(part.share.single for part in lookup.banks)
        expected = lookup.floats, self.state_floats(lookup)
        if (len(values), len(state)) != expected:
            raise ValueError(
                f"{len(values)} floats and {len(state)} of state, not the {expected[0]} and {expected[1]}"
                " requested"
            )
        inside = not len(absent) or (absent[0] >= 0 and absent[-1] < singles)
        if not inside or not (absent[1:] > absent[:-1]).all():
            raise ValueError(f"positions of absent keys that do not ascend within {singles}")
        return Answer(self._names[lookup.node].index(name), values, state, absent, parse_applied(applied))

    def complete(self, lookup: LookupPlan, answer: Answer, finder: IdFinder) -> int:
        """Add to an answer this trainer's own pushes that it lacks; return how many these are.

        `answer.values` and `answer.state` are changed, or replaced where their memory is read-only. `finder`
        is the calling thread's.
        """
        with self._lock:
            pushes = list(self._pushes[lookup.node])
        lacking = [push for push in pushes if push.counts and not answer.contains(push)]
        if not lacking:
            return 0
        answer.values, answer.state = _writable(answer.values), _writable(answer.state)
        every = zip(self._banks_of(lookup), self._ids(lookup), self._parts(lookup, answer), strict=True)
        for number, (bank, ids, (values, state, rowless)) in enumerate(every):
            if not bank.is_exact:
                continue
            hits = finder.find(ids, [push.changes[number].ids for push in lacking])
            for push, (sources, targets) in zip(lacking, hits, strict=True):
                if len(rowless):
                    kept = ~np.isin(targets, rowless)
                    sources, targets = sources[kept], targets[kept]
                if not len(targets):
                    continue
                of_values, of_state = push.changes[number].to(sources, values, state, targets)
                _add(values, targets, of_values, as_bfloat16=bank.is_rounded)
                if bank.state_floats:
                    _add(state, targets, of_state)
        return len(lacking)

    def pushed(
        self,
        lookup: LookupPlan,
        answer: Answer,
        gradients: Float32Array,
        *,
        worker: int,
        sequence: int,
        lr_scale: float,
        batch: BatchId,
        again: bool,
    ) -> None:
        """Record a push.

        Args:
            lookup, answer: of its batch; the answer is complete.
            gradients: float32 [floats], as the node gets them. They are kept, not copied, so they must not
                change: memory that was lent for them is not lent again while the push is kept.
            worker, sequence: see `PushInFlight`.
            lr_scale, batch: see `messages.Push`.
            again: whether the batch was trained before, so that only the node knows whether it changes rows.
        """
        words = (self._seed, lookup.node, batch.epoch, batch.span, batch.number, batch.seed)
        changes, start = [], 0
        every = zip(
            self._banks_of(lookup), self._ids(lookup), self._parts(lookup, answer), lookup.banks, strict=True
        )
        for bank, ids, (values, state, _), part in every:
            of_bank = gradients[start : start + part.share.single * bank.dim].reshape(-1, bank.dim)
            start += part.share.floats
            if not bank.is_exact:
                of_bank, state, values = of_bank[:0], state[:0], values[:0]
            elif not bank.is_rounded:
                values = values[:0]
            key = mixed_key(*words, bank.number) if bank.is_rounded else 0
            # Copies, since the memory of the answer is used again.
            changes.append(_Changes(bank, ids, of_bank, state.copy(), values.copy(), lr_scale, key))
        push = PushInFlight(worker, sequence, changes, counts=not again)
        with self._lock:
            self._pushes[lookup.node].append(push)

    def answered(
        self, node: int, worker: int, sequence: int, name: str, *, changed: bool, is_resent: bool
    ) -> None:
        """Record that a push is confirmed by the node of this name.

        If it was resent, it may have changed the rows although its last copy has not `changed` them.
        """
        with self._lock:
            for push in self._pushes[node]:
                if (push.worker, push.sequence) == (worker, sequence):
                    push.answered_in = self._names[node].index(name)
                    push.last_ticket = self._next_ticket - 1
                    push.counts = changed or (push.counts and is_resent)
            self._forget()

    def _forget(self) -> None:
        oldest = min(self._tickets, default=self._next_ticket)
        self._pushes = [
            [push for push in pushes if push.answered_in is None or push.last_ticket >= oldest]
            for pushes in self._pushes
        ]

    def _banks_of(self, lookup: LookupPlan) -> list[_Bank]:
        """Return the first bank of each `BankLookup`, which may stand for several of equal settings."""
        banks, number = [], 0
        for part in lookup.banks:
            banks.append(self._banks[number])
            number += len(part.counts) or 1
        return banks

    def _ids(self, lookup: LookupPlan) -> list[Ids]:
        """Return what the lookup asks for one by one in each bank."""
        ids: list[Ids] = []
        row = key = 0
        for bank, part in zip(self._banks_of(lookup), lookup.banks, strict=True):
            share = part.share
            if bank.growing:
                # Ids of different tables have different keys.
                ids.append(lookup.keys[key : key + share.single])
                key += share.rows
            else:
                ids.append(lookup.rows[row : row + share.single])
                row += share.rows
        return ids

    def _parts(
        self, lookup: LookupPlan, answer: Answer
    ) -> list[tuple[Float32Array, Float32Array, IndexArray]]:
        """Return views of each bank's values and state, [S, ...], and which of its rows no push begins."""
        parts = []
        value = state = single = number = 0
        for bank, part in zip(self._banks_of(lookup), lookup.banks, strict=True):
            count, width = part.share.single, bank.state_floats
            values = answer.values[value : value + count * bank.dim].reshape(count, bank.dim)
            states = answer.state[state : state + count * width].reshape(count, width)
            tables = len(part.counts) or 1
            absent = NOWHERE
            if len(answer.absent):
                low, high = np.searchsorted(answer.absent, [single, single + count])
                absent = answer.absent[low:high].astype(np.int64) - single
                begins = np.array([table.begins for table in self._banks[number : number + tables]])
                absent = absent[~begins[np.searchsorted(np.cumsum(part.counts[:-1]), absent, side="right")]]
            parts.append((values, states, absent))
            value, state, single = value + part.share.floats, state + count * width, single + count
            number += tables
        return parts


NO_ANSWER: Final = Answer(0, np.zeros(0, np.float32), np.zeros(0, np.float32), np.zeros(0, np.int32), {})
"""In place of one that has not arrived."""


def _bank(plan: TablePlan, number: int) -> _Bank:
    bank = plan.banks[number]
    growth = next((table.growth for table in plan.tables if table.name == bank.growing), None)
    return _Bank(
        rule=make_row_rule(bank.optimizer, bank.lr),
        decay=RowDecay(bank.lr, bank.weight_decay),
        dim=bank.dim,
        states=tuple(state.by_float for state in row_states(bank.optimizer)),
        storage=bank.storage,
        growing=bank.growing != "",
        number=next(place for place, numbers in enumerate(plan.bank_groups) if number in numbers),
        begins=growth is None or growth.admit_after <= 1,
        is_exact=not bank.mixed,
    )


def _columns(state: Float32Array, bank: _Bank) -> list[torch.Tensor]:
    """Return copies of a state's arrays, each [S] or [S, dim]."""
    columns, start = [], 0
    for by_float in bank.states:
        part = state[:, start : start + bank.dim] if by_float else state[:, start]
        columns.append(torch.from_numpy(part.copy()))
        start += bank.dim if by_float else 1
    return columns


def _add(target: Float32Array, rows: IndexArray, changes: Float32Array, *, as_bfloat16: bool = False) -> None:
    """Add `changes`, [M, dim], to distinct rows of `target`; both are C-contiguous."""
    sums = np.take(target, rows, axis=0, mode="clip")
    sums += changes
    if as_bfloat16:
        # A float32 may not have all digits of the difference of two of them.
        sums = np.asarray(WidenedRows(nearest_bits(sums)))
    # As one value of all its bytes, a row is written at once.
    whole = np.dtype((np.void, target.itemsize * target.shape[1]))
    np.put(target.view(whole), rows, sums.view(whole), mode="clip")


def _writable(values: Float32Array) -> Float32Array:
    return values if values.flags.writeable else values.copy()


def _rounded(values: Float32Array, steps: Float32Array, rows: RowNumbers, key: int) -> Float32Array:
    """Return what steps change in rows of bfloat16."""
    bits = add_at_random(torch.from_numpy(_writable(values)), torch.from_numpy(steps), rows, key)
    after: Float32Array = bits.view(torch.bfloat16).float().numpy()
    return after - values
