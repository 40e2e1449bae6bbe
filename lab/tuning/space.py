"""The settings that a study chooses, as `--search` gives them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...nodes.sync_rules import with_sync_nodes
from ...pipeline.config.job import Job
from ...pipeline.errors import JobFileError
from ...pipeline.jobfile.load import override_value, validate_job, without_one_trainer_sync

if TYPE_CHECKING:
    import optuna

Parameters: TypeAlias = Mapping[str, Any]
"""Values by key of the job file, such as `sync.gap`."""

# Others would change what is measured, or where it is written.
SECTIONS: Final = ("codecs", "embedding", "model", "sync", "tables", "trainer")
_EXAMPLE: Final = "write sync.algorithm=easgd,ma or sync.gap=1..64 or trainer.lr=1e-4..1e-1:log"
_NUMBER: Final = r"[+-]?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_RANGE: Final = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    key: str
    values: tuple[Any, ...]

    def suggest(self, trial: optuna.Trial) -> Any:
        """Let a study choose."""
        return trial.suggest_categorical(self.key, self.values)

    def examples(self) -> Sequence[Any]:
        """Return values that stand for all."""
        return self.values


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`, both included; whole numbers if both are."""

    key: str
    low: int | float
    high: int | float
    log: bool

    def suggest(self, trial: optuna.Trial) -> Any:
        """Let a study choose."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.key, self.low, self.high, log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log)

    def examples(self) -> Sequence[Any]:
        """Return values that stand for all."""
        return (self.low, self.high)


Dimension: TypeAlias = Choice | Range


def parse_space(texts: Iterable[str]) -> tuple[Dimension, ...]:
    """Read `--search` options, each KEY=A,B,C or KEY=LOW..HIGH with :log for a logarithmic scale.

    Raises JobFileError.
    """
    found: dict[str, Dimension] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        section, dot, name = key.partition(".")
        if not (equals and dot and name and values):
            raise JobFileError(f"--search: {text!r} is not SECTION.KEY=VALUES", remedy=_EXAMPLE)
        if section not in SECTIONS:
            raise JobFileError(
                f"--search: {key} is not to be searched, since trials must train and score the same examples",
                remedy=f"give keys of {', '.join(SECTIONS)}",
            )
        if key in found:
            raise JobFileError(f"--search: {key} is given twice", remedy="give all its values at once")
        found[key] = _dimension(text, key, values)
    if not found:
        raise JobFileError("no --search given, so there is nothing to tune", remedy=_EXAMPLE)
    return tuple(found.values())


def _dimension(text: str, key: str, values: str) -> Dimension:
    if ".." in values:
        matched = _RANGE.fullmatch(values)
        if matched is None:
            raise JobFileError(f"--search: {text!r} has no range LOW..HIGH", remedy=_EXAMPLE)
        low, high = _end(matched[1]), _end(matched[2])
        log = matched[3] is not None
        if type(low) is not type(high):
            low, high = float(low), float(high)
        if not -math.inf < low < high < math.inf or (log and low <= 0):
            above = "a logarithmic range begins above 0" if log and low <= 0 else "LOW must be below HIGH"
            raise JobFileError(f"--search: {text!r}: {above}", remedy=_EXAMPLE)
        return Range(key, low, high, log)
    chosen = tuple(override_value(part.strip()) for part in values.split(","))
    if not all(isinstance(value, str | int | float | bool) and value != "" for value in chosen):
        raise JobFileError(f"--search: {text!r} has an empty value or a list", remedy=_EXAMPLE)
    if len(chosen) != len({repr(value) for value in chosen}):
        raise JobFileError(f"--search: {text!r} has a value twice", remedy=_EXAMPLE)
    return Choice(key, chosen)


def _end(text: str) -> int | float:
    """Return an end of a range: a whole number without a point or exponent.

    It is infinite if it is too large.
    """
    number = float(text)
    return int(text) if math.isfinite(number) and text.lstrip("+-").replace("_", "").isdigit() else number


def check_space(space: Sequence[Dimension], base: Job) -> None:
    """Check that the job can have every choice and both ends of ranges.

    Each value is tried by itself. Raises JobFileError, which names the option.
    """
    for dimension in space:
        for value in dimension.examples():
            try:
                trial_job(base, {dimension.key: value}, base.run.name, base.run.directory)
            except JobFileError as error:
                raise JobFileError(
                    f"--search: {dimension.key} = {value}: {error.what}", remedy=error.remedy
                ) from error
    _check_sync_keys(space, base)


def _check_sync_keys(space: Sequence[Dimension], base: Job) -> None:
    """Raise JobFileError for keys of synchronization where no trial has two trainers."""
    counts = [value for one in space if one.key == "trainer.count" for value in one.examples()]
    keys = [one.key for one in space if one.key.startswith("sync.")]
    if keys and all(count == 1 for count in counts or [base.trainer.count]):
        raise JobFileError(
            f"--search: {', '.join(keys)} would make no difference: the job has one trainer, which has no"
            " other to synchronize with",
            remedy="give more trainers: --set trainer.count=4; or search other keys",
        )


def trial_job(base: Job, parameters: Parameters, name: str, directory: str) -> Job:
    """Build the job of a trial.

    The options of `base` belong to its own algorithm, so only trials of that algorithm start from them.
    Raises JobFileError.
    """
    tree = without_one_trainer_sync(base.model_dump(by_alias=True))
    if parameters.get("sync.algorithm", base.sync.algorithm) != base.sync.algorithm:
        tree["sync"]["options"] = {}
    for key, value in parameters.items():
        _put(tree, key.split("."), value, key)
    tree["run"] |= {"name": name, "directory": directory}
    return with_sync_nodes(validate_job(tree, where="the job"), may_import=True)


def _put(tree: dict[str, Any], path: Sequence[str], value: Any, key: str) -> None:
    for part in path[:-1]:
        below = tree.setdefault(part, {})
        if not isinstance(below, dict):
            raise JobFileError(f"{key}: {part} has no keys", remedy="see docs/job-file.md for the keys")
        tree = below
    tree[path[-1]] = value


def as_options(parameters: Parameters) -> Iterator[str]:
    """Yield `--set` options that give a job these values."""
    for key, value in parameters.items():
        yield f"--set {key}={str(value).lower() if isinstance(value, bool) else value}"
