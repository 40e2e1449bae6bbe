"""Goodput: useful examples a second with faults, over the same without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .faulted_job import FaultedJob, report_of


@dataclass(frozen=True)
class Stretch:
    """What one job trained, with all of its resumptions.

    Attributes:
        input_examples: the distinct examples of its input that it trained.
        repeated_examples: examples that it trained again, also after it was resumed.
        lost_examples: at most so many of them are not in the dense parameters: their trainer died before its
            replica was synchronized.
        seconds: from its first trained batch to its last one, with the time until it was resumed.
        cpu_seconds: of all its processes, from their start to their end.
    """

    input_examples: int
    repeated_examples: int
    lost_examples: int
    seconds: float
    cpu_seconds: float

    @property
    def useful_examples(self) -> int:
        """Examples that are in the trained model, each counted once."""
        return max(0, self.input_examples - self.lost_examples)


def useful_per_second(stretches: Sequence[Stretch]) -> float:
    """Return the useful examples a second of several jobs; 0 without any."""
    seconds = sum(stretch.seconds for stretch in stretches)
    return sum(stretch.useful_examples for stretch in stretches) / seconds if seconds else 0.0


def cpu_seconds_per_million(stretches: Sequence[Stretch]) -> float | None:
    """Return the CPU seconds for a million useful examples; None without any example."""
    useful = sum(stretch.useful_examples for stretch in stretches)
    return sum(stretch.cpu_seconds for stretch in stretches) / useful * 1e6 if useful else None


def goodput(faulted: Sequence[Stretch], clean: Sequence[Stretch]) -> float | None:
    """Return the useful examples a second with faults over those without; None if a side has none."""
    undisturbed = useful_per_second(clean)
    return useful_per_second(faulted) / undisturbed if faulted and undisturbed else None


def stretch_of(done: FaultedJob, batch: int) -> Stretch:
    """Read what a job trained from the reports of its runs; `batch` is the examples of an update.

    A job without a last report has no model, and so no useful example.
    """
    reports = [report for folder in done.folders if (report := report_of(folder)) is not None]
    last = done.report()
    counts = {} if last is None else last["examples"]
    distinct = int(counts.get("distinct", 0)) + (int(last["restored_examples"]) if last is not None else 0)
    trained = sum(int(report["examples"]["trained"]) for report in reports)
    lost = sum(int(report["ledger"]["lost_dense_updates"]) for report in reports)
    return Stretch(
        input_examples=distinct,
        repeated_examples=max(0, trained - distinct),
        lost_examples=lost * batch,
        seconds=done.trained_seconds,
        cpu_seconds=done.cpu_seconds,
    )


def speeds_after(done: FaultedJob) -> list[tuple[str, float, int]]:
    """Return for each fault its label, the seconds until the next one, and the examples trained in them.

    The last fault of a run counts to its run's last batch, and faults at the same moment count as one.
    """
    ends = list(done.run_ends)
    speeds = []
    faults = list(done.injected)
    for index, injected in enumerate(faults):
        while len(ends) > 1 and ends[0][0] < injected.trained_seconds:
            ends.pop(0)
        end_seconds, end_examples = ends[0] if ends else (injected.trained_seconds, injected.examples)
        if index + 1 < len(faults) and faults[index + 1].trained_seconds <= end_seconds:
            end_seconds, end_examples = faults[index + 1].trained_seconds, faults[index + 1].examples
        if end_seconds > injected.trained_seconds:
            seconds = end_seconds - injected.trained_seconds
            speeds.append((injected.fault.label, seconds, end_examples - injected.examples))
    return speeds
