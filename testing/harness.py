"""A cluster in memory under test, whose workers train between and during rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from ..sync_algos.base import Algorithm, AlgorithmState, ModelOrigin
from ..sync_algos.contract.options import make_options
from ..sync_algos.memory.cluster import MemoryCluster, RoundStuck
from ..sync_algos.memory.faults import Fault, Phase
from .error import ConformanceError
from .write_guard import GuardedPeers, WriteGuard

NUMEL = 24
PARTS = 3


@dataclass(frozen=True)
class Subject:
    """The algorithm under test, with its options."""

    cls: type[Algorithm]
    options: Mapping[str, Any]

    def make(self) -> Algorithm:
        """Make a new instance."""
        return self.cls(make_options(self.cls.name, self.cls.Options, self.options))


class Harness:
    """One cluster, and its replicas as workers alone would leave them."""

    def __init__(
        self,
        subject: Subject,
        check: str,
        trainers: int = 3,
        *,
        members: Sequence[int] | None = None,
        trains: bool = True,
    ) -> None:
        self.subject, self.check, self.trains = subject, check, trains
        self.first = torch.randn(NUMEL, generator=torch.Generator().manual_seed(5))
        self.cluster = MemoryCluster(subject.make, self.first, trainers, members=members, parts=PARTS)
        self.cluster.on_phase = self._meanwhile
        self.guard = WriteGuard()
        for index, peers in enumerate(self.cluster.peers):
            self.cluster.peers[index] = GuardedPeers(peers, self.guard)
        self.steps = [0] * trainers
        self.alone = self.replicas()

    def fail(self, step: str, expected: str, found: str) -> NoReturn:
        """Raise ConformanceError."""
        raise ConformanceError(self.check, step, expected, found)

    def replicas(self) -> list[torch.Tensor]:
        """Copy all replicas."""
        return [replica.values.clone() for replica in self.cluster.replicas]

    def state(self, index: int) -> AlgorithmState:
        """Copy one trainer's state."""
        state = self.cluster.algorithms[index].state()
        return AlgorithmState(state.completed_rounds, {k: v.clone() for k, v in state.tensors.items()})

    def train(self) -> None:
        """Let every worker take its own step."""
        if self.trains:
            for index in range(len(self.steps)):
                self._step(index)

    def round(self, step: str, faults: Iterable[Fault] = ()) -> dict[int, bool]:
        """Run one round of every member, with the checks that every round gets."""
        self.alone = self.replicas()
        try:
            results = self.cluster.round(faults)
        except RoundStuck as error:
            raise ConformanceError(
                self.check, step, "a round that waits for its peers only, and ends", str(error)
            ) from error
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            raise ConformanceError(self.check, step, "a round that raises nothing", raised) from error
        for index, result in results.items():
            if not isinstance(result, bool):
                self.fail(step, "a round that returns True or False", f"{result!r} from trainer {index}")
        self.guard.find_writes()
        if self.guard.written:
            self.fail(step, "no writes to tensors of the peers", f"{self.guard.written[0]} changed")
        self._check_states(step)
        return results

    def rounds(self, count: int) -> dict[int, bool]:
        """Run rounds with training before each; return the last results."""
        results: dict[int, bool] = {}
        for number in range(count):
            self.train()
            results = self.round(f"round {number + 1}")
        return results

    def global_models(self) -> dict[int, torch.Tensor]:
        """Return each member's global model, if the algorithm has one."""
        if self.subject.cls.model is not ModelOrigin.GLOBAL:
            return {}
        return {index: self.cluster.algorithms[index].global_model() for index in self.cluster.members}

    def check_global_models(self, step: str) -> None:
        """Check that all members have the same global model, bit by bit."""
        models = self.global_models()
        for index, model in models.items():
            if not torch.equal(model, next(iter(models.values()))):
                self.fail(step, "the same global model on all trainers", f"another on trainer {index}")

    def _check_states(self, step: str) -> None:
        names = self.subject.cls.state_names
        for index in self.cluster.members:
            state = self.cluster.algorithms[index].state()
            if sorted(state.tensors) != sorted(names):
                self.fail(step, f"a state of {sorted(names)}, as in state_names", f"{sorted(state.tensors)}")
            for name, tensor in state.tensors.items():
                if tensor.shape != (NUMEL,) or tensor.dtype != torch.float32:
                    expected = f"state {name!r} as float32 [{NUMEL}], flat like the replica"
                    self.fail(step, expected, f"{tensor.dtype} {list(tensor.shape)}")

    def _meanwhile(self, index: int, phase: Phase) -> None:
        if self.trains and phase in (Phase.MET, Phase.GIVING):
            self._step(index)

    def _step(self, index: int) -> None:
        self.steps[index] += 1
        generator = torch.Generator().manual_seed(1000 * index + self.steps[index])
        update = torch.randn(NUMEL, generator=generator) * 0.1
        for values in (self.cluster.replicas[index].values, self.alone[index]):
            values.add_(update)
        self.cluster.replicas[index].trained_examples += 10 + 7 * ((index + self.steps[index]) % 3)


def same_state(first: AlgorithmState, second: AlgorithmState) -> bool:
    """Return whether two states are equal, bit by bit."""
    if first.completed_rounds != second.completed_rounds or first.tensors.keys() != second.tensors.keys():
        return False
    return all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())
