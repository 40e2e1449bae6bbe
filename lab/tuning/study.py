"""A study without jobs: which settings come next, which trials are stopped.

It is asynchronous successive halving (Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys
2020), and the settings come from a tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011); both are
Optuna's, of the extra `tune`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from ...pipeline.types import FrozenModel
from .space import Dimension, Parameters

ReportRung: TypeAlias = Callable[[int, float], bool]
"""Takes the number of a rung and the NE there; returns whether the trial is to stop."""
Objective: TypeAlias = Callable[[int, Parameters, ReportRung], "Outcome"]
"""Makes the trial of a number with these settings."""
State: TypeAlias = Literal["complete", "stopped", "failed", "interrupted"]

_NAME: Final = "shadowsync"


class StudyRules(FrozenModel):
    """How a study chooses and stops trials.

    Attributes:
        strategy: "asha", or "random" for settings at random and trials that all train to the end.
        reduction: of so many trials at a rung one goes on.
        rungs: number of rungs; the first is at reduction ** -rungs of the examples.
        seed: of the settings.
    """

    strategy: Literal["asha", "random"] = "asha"
    reduction: int = 3
    rungs: int = 3
    seed: int = 0

    @property
    def shares(self) -> list[float]:
        """The share of a trial's examples at each rung, the least first."""
        if self.strategy == "random":
            return []
        return [float(self.reduction) ** -at for at in range(self.rungs, 0, -1)]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended.

    Attributes:
        ne: normalized entropy of a trial that trained to its end.
        examples: number of examples that it trained.
        stopped: whether the study stopped it.
        why: of a failed trial.
        folder: of its run, if it has one.
    """

    ne: float | None
    examples: int
    stopped: bool = False
    why: str = ""
    folder: str = ""


@dataclass(frozen=True)
class Trial:
    """A trial of the study, with the NE at each rung that it reached."""

    number: int
    parameters: dict[str, Any]
    state: State
    ne: float | None
    examples: int
    rungs: list[float] = field(default_factory=list)
    why: str = ""
    folder: str = ""


class Study:
    """Choose, stop and remember trials, one after another. One thread.

    Args:
        space: the settings to choose.
        rules: how.
        journal: file that remembers every trial; None for a study that is not resumed.
    """

    def __init__(self, space: Sequence[Dimension], rules: StudyRules, journal: Path | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = tuple(space)
        self._random = rules.strategy == "random"
        backend = JournalFileBackend(str(journal)) if journal is not None else None
        storage = (
            optuna.storages.JournalStorage(backend)
            if backend is not None
            else optuna.storages.InMemoryStorage()
        )
        self._study = optuna.create_study(
            storage=storage,
            study_name=_NAME,
            load_if_exists=True,
            direction="minimize",
            pruner=optuna.pruners.NopPruner()
            if self._random
            else optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=rules.reduction),
        )
        self._reduction = rules.reduction
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Its process was killed.
            self._study.tell(trial.number, state=TrialState.FAIL)
        # Otherwise a resumed study would draw the settings again with which it began.
        seed = rules.seed + len(self._study.get_trials(deepcopy=False))
        self._study.sampler = (
            optuna.samplers.RandomSampler(seed=seed)
            if self._random
            else optuna.samplers.TPESampler(seed=seed)
        )

    @property
    def trials(self) -> list[Trial]:
        """All trials that have ended, in order."""
        return [
            _trial(frozen) for frozen in self._study.get_trials(deepcopy=False) if frozen.state.is_finished()
        ]

    @property
    def best(self) -> Trial | None:
        """The complete trial of the least NE."""
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return min(complete, key=lambda trial: (trial.ne, trial.number), default=None)

    def advance(self, objective: Objective) -> Trial:
        """Make the next trial.

        Its error, or an interrupt, is raised when the trial is recorded as interrupted.
        """
        trial = self._study.ask()
        parameters = {dimension.key: dimension.suggest(trial) for dimension in self._space}

        def report(rung: int, ne: float) -> bool:
            # Successive halving counts in steps of which each rung has `reduction` times as many.
            trial.report(ne, step=self._reduction**rung)
            return trial.should_prune()

        try:
            outcome = objective(trial.number, parameters, report)
        except BaseException:
            self._study.tell(trial, state=TrialState.FAIL)
            raise
        trial.set_user_attr("examples", outcome.examples)
        trial.set_user_attr("folder", outcome.folder)
        if outcome.stopped:
            self._study.tell(trial, state=TrialState.PRUNED)
        elif outcome.ne is None:
            trial.set_user_attr("why", outcome.why or "it has no score")
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, outcome.ne)
        return self.trials[-1]


def _trial(frozen: optuna.trial.FrozenTrial) -> Trial:
    why = str(frozen.user_attrs.get("why", ""))
    # A trial that failed by itself says why.
    failed: State = "failed" if why else "interrupted"
    states: dict[TrialState, State] = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "stopped"}
    state = states.get(frozen.state, failed)
    return Trial(
        number=frozen.number,
        parameters=dict(frozen.params),
        state=state,
        ne=frozen.value if state == "complete" else None,
        examples=int(frozen.user_attrs.get("examples", 0)),
        rungs=[value for _, value in sorted(frozen.intermediate_values.items())],
        why=why,
        folder=str(frozen.user_attrs.get("folder", "")),
    )
