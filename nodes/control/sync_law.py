"""Control law for gap and elastic rate, without I/O or clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from ...pipeline.config.sections import SyncSection
from ...pipeline.report.adaptation import Control, ControlDecision
from ...pipeline.text.format import number

# Least samples, iterations of a trainer, and rounds of a window. With fewer, one round more or less would
# look like a delay.
WINDOW_SAMPLES: Final = 3
WINDOW_ITERATIONS: Final = 20
WINDOW_ROUNDS: Final = 4
# Rounds until the replicas' distance reflects a new setting.
SETTLING_ROUNDS: Final = 2
# Fraction of the bound below which the gap may grow; differences above it are noise.
LOOSEN_BELOW: Final = 0.85
# In the lab the ratio grows as about this power of the gap (benchmarks/quality/results.md).
RATIO_POWER: Final = 0.5
# Largest changes of the gap by one decision.
LOOSEN_FACTOR: Final = 2
TIGHTEN_FACTOR: Final = 4
# Rounds that come later than wanted by this factor are limited by something else.
HELD_UP_FACTOR: Final = 1.5
# Windows for which a gap that proved wrong is not tried again; doubled each time.
PATIENCE_WINDOWS: Final = 8
LONGEST_PATIENCE_WINDOWS: Final = 64
# Rates closer than this count as equal.
SAME_RATE: Final = 0.02
MAX_DECISIONS: Final = 128


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Settings of the controller.

    Attributes:
        gap: iterations of a trainer between two rounds.
        elastic_rate: None for an algorithm whose rate it may not change.
    """

    gap: int
    elastic_rate: float | None


@dataclass(frozen=True, slots=True)
class ControlSample:
    """One measurement for the controller.

    Attributes:
        iterations: iterations of a trainer so far, mean over trainers.
        rounds: complete rounds of a trainer so far, mean over trainers.
        ratio: the replicas' distance from their mean, relative to the movement of that mean; see
            `ReplicaMotion`.
    """

    seconds: float
    iterations: float
    rounds: float
    ratio: float


class Limit:
    """A limit of the gap that expires after some windows.

    Each repetition doubles its lifetime. Limits expire because data and links change.

    Attributes:
        value: the largest gap to try; None while unlimited.
    """

    def __init__(self) -> None:
        self.value: int | None = None
        self._patience = PATIENCE_WINDOWS
        self._windows_left = 0

    def show(self, value: int) -> None:
        """Set the limit and restart its lifetime."""
        self.value, self._windows_left = value, self._patience

    def pass_window(self) -> None:
        """Count a window."""
        if self.value is None:
            return
        self._windows_left -= 1
        if self._windows_left <= 0:
            self.value = None
            self._patience = min(2 * self._patience, LONGEST_PATIENCE_WINDOWS)


class SyncLaw:
    """Controller that keeps the ratio within a bound.

    A window is a few samples under one setting. Its median decides:

    - Above the bound, the gap falls to where the ratio is expected to be within the bound, but not below a
      quarter. For some windows no gap as large as the last one is tried. At a gap of 1, or if rounds are
      held up, the elastic rate moves halfway to that of the closest replicas instead.
    - Clearly below the bound, the changes are undone in the opposite order. The gap at most doubles, and
      grows only as far as the ratio is expected to stay below the bound. If it exceeds the bound all the
      same, the limit above applies, so that settings swing less and less often.
    - If rounds come clearly later than wanted, since the duty cycle or the link allows no more, their actual
      gap becomes the wanted one, whatever the ratio: a smaller one would change nothing. It is tried again
      after some windows.

    Args:
        elastic: see `Algorithm.elastic`.
    """

    def __init__(self, sync: SyncSection, elastic: tuple[float, float] | None) -> None:
        assert sync.gap is not None
        assert sync.control_bound is not None
        assert sync.control_max_gap is not None
        self._bound, self._max_gap = sync.control_bound, sync.control_max_gap
        self._first = SyncSettings(sync.gap, elastic[0] if elastic is not None else None)
        self._closest = elastic[1] if elastic is not None else None
        self._settings = self._first
        # The rates before each step toward the closest one.
        self._rates: list[float] = []
        self._window: list[ControlSample] = []
        # Earlier samples do not count: the gap still grows to its first value, or the replicas still have the
        # distance of the previous setting.
        self._from_iterations = float(sync.start_iterations)
        self._held_up_at = Limit()
        self._within_bound = Limit()
        self._windows: list[int] = [0, 0]
        self._ratios: tuple[float, float] | None = None
        self._held_up = False
        self._decisions: list[ControlDecision] = []
        self._decision_count = 0

    @property
    def settings(self) -> SyncSettings:
        """The settings that trainers and sync nodes should have now."""
        return self._settings

    def sample(self, sample: ControlSample) -> bool:
        """Add a sample; return whether the settings have changed."""
        if sample.iterations < self._from_iterations:
            return False
        self._window.append(sample)
        spanned = sample.iterations - self._window[0].iterations
        needed = max(WINDOW_ITERATIONS, WINDOW_ROUNDS * self._settings.gap)
        if len(self._window) < WINDOW_SAMPLES or spanned < needed:
            return False
        window, self._window = self._window, []
        return self._decide(window)

    def forget_window(self) -> None:
        """Restart the window, since the trainers have changed."""
        self._window = []

    def report(self) -> Control:
        """Return the bound, what was reached, and the decisions."""
        last, lowest = self._ratios or (None, None)
        return Control(
            bound=self._bound,
            windows=sum(self._windows),
            windows_within=self._windows[0],
            ratio=last,
            ratio_lowest=lowest,
            first_gap=self._first.gap,
            gap=self._settings.gap,
            first_elastic_rate=self._first.elastic_rate,
            elastic_rate=self._settings.elastic_rate,
            held_up=self._held_up,
            decision_count=self._decision_count,
            decisions=list(self._decisions),
        )

    def _decide(self, window: Sequence[ControlSample]) -> bool:
        ratio = median(sample.ratio for sample in window)
        self._windows[ratio > self._bound] += 1
        self._ratios = (ratio, min(ratio, self._ratios[1]) if self._ratios is not None else ratio)
        settings, why = self._next_settings(ratio, _gap_of(window))
        if settings == self._settings:
            return False
        self._settings = settings
        last = window[-1]
        self._from_iterations = last.iterations + max(WINDOW_ITERATIONS, SETTLING_ROUNDS * settings.gap)
        made = ControlDecision(
            seconds=last.seconds, gap=settings.gap, elastic_rate=settings.elastic_rate, ratio=ratio, why=why
        )
        self._decision_count += 1
        if len(self._decisions) == MAX_DECISIONS:
            self._decisions = self._decisions[::2]
        self._decisions.append(made)
        return True

    def _next_settings(self, ratio: float, gap: float) -> tuple[SyncSettings, str]:
        """Return the next settings and the reason."""
        now = self._settings
        self._held_up_at.pass_window()
        self._within_bound.pass_window()
        self._held_up = gap > HELD_UP_FACTOR * now.gap + 1
        if self._held_up and now.gap < self._max_gap:
            kept_gap = round(min(gap, self._max_gap))
            self._held_up_at.show(kept_gap)
            came = (
                f"rounds came only every {gap:.0f} iterations" if gap < math.inf else "no round was completed"
            )
            return replace(now, gap=kept_gap), f"{came}, limited by the duty cycle or the link"
        return self._tighter(ratio) if ratio > self._bound else self._looser(ratio)

    def _tighter(self, ratio: float) -> tuple[SyncSettings, str]:
        now, why = self._settings, f"{number(ratio, 2)} is above the bound"
        least = self._held_up_at.value or 1
        if now.gap > least:
            self._within_bound.show(now.gap - 1)
            gap = min(now.gap - 1, math.floor(now.gap * (self._bound / ratio) ** (1 / RATIO_POWER)))
            return replace(now, gap=max(least, now.gap // TIGHTEN_FACTOR, gap)), why
        if now.elastic_rate is None or self._closest is None or now.elastic_rate == self._closest:
            return now, why
        missing = self._closest - now.elastic_rate
        rate = self._closest if abs(missing) < SAME_RATE else now.elastic_rate + missing / 2
        self._rates.append(now.elastic_rate)
        return replace(now, elastic_rate=rate), f"{why}, and rounds come as often as they can"

    def _looser(self, ratio: float) -> tuple[SyncSettings, str]:
        now, why = self._settings, f"{number(ratio, 2)} is clearly below the bound"
        target = self._bound * LOOSEN_BELOW
        if self._rates:
            # A step toward the closest rate at most halves the ratio, so undoing it at most doubles it.
            undone = replace(now, elastic_rate=self._rates.pop()) if ratio <= target / 2 else now
            return undone, why
        expected = now.gap * (target / ratio) ** (1 / RATIO_POWER) if ratio else math.inf
        limits = LOOSEN_FACTOR * now.gap, self._within_bound.value or self._max_gap, self._max_gap
        gap = math.floor(min(expected, *limits))
        return replace(now, gap=max(gap, now.gap)), why


def _gap_of(window: Sequence[ControlSample]) -> float:
    """Return a trainer's mean iterations per round in a window."""
    rounds = window[-1].rounds - window[0].rounds
    iterations = window[-1].iterations - window[0].iterations
    return iterations / rounds if rounds else math.inf
