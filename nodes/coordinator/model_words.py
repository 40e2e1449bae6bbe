"""The model that a job produces, as facts and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...sync_algos.model_origin import ModelOrigin

_WORDS = {
    ModelOrigin.CENTER: "the center",
    ModelOrigin.MEAN: "the mean of the replicas",
    ModelOrigin.GLOBAL: "the global model",
}


@dataclass
class ModelFacts:
    """The trainers' model. `origin` becomes REPLICAS when the single model is lost.

    `digests` are of the single model as each trainer has it, by the trainer's name, and `rounds` how many
    rounds that is of; `saved_by` is whose is saved.
    """

    origin: ModelOrigin
    algorithm: str
    dense_elements: int
    needs_peers: bool
    digests: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    saved_by: str = ""

    @classmethod
    def of(cls, facts: dict[str, Any], algorithm: str) -> ModelFacts:
        """Take one trainer's facts; they all agree."""
        return cls(
            origin=ModelOrigin(facts["model_origin"]),
            algorithm=algorithm,
            dense_elements=int(facts["dense_elements"]),
            needs_peers=bool(facts["needs_peers"]),
        )

    @property
    def single(self) -> bool:
        """Whether the job produces one model, not a replica per trainer."""
        return self.origin != ModelOrigin.REPLICAS

    @property
    def words(self) -> str:
        """Name the single model, without the algorithm."""
        return _WORDS[self.origin]

    def saved(self, trainer: str) -> str:
        """Name the model in the checkpoint, written by `trainer`."""
        return f"{self.words if self.single else f'the replica of {trainer}'} ({self.algorithm})"

    def scored(self, replicas: int) -> str:
        """Name the model of the evaluation."""
        if self.single:
            return f"{self.words} ({self.algorithm})"
        of = "the replica" if replicas == 1 else f"the mean of the {replicas} replicas' own scores"
        return f"{of} ({self.algorithm})"

    def finalized(self, name: str, answer: Mapping[str, Any]) -> None:
        """Record a trainer's model after the closing round."""
        self.digests.pop(name, None)
        if answer["model_ready"]:
            self.digests[name] = str(answer["model_digest"])
            self.rounds[name] = int(answer["model_rounds"])

    def by_promise(self, names: Iterable[str]) -> list[str]:
        """Sort `names`: first those with the single model, of the most rounds."""
        return sorted(names, key=lambda name: (name not in self.digests, -self.rounds.get(name, 0)))

    def agreeing(self, names: Iterable[str]) -> list[str]:
        """Select those of `names` that hold the saved model."""
        return [name for name in names if self.digests.get(name) == self.digests.get(self.saved_by)]
