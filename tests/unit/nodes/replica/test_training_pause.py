"""The pause of a trainer's workers: each begins and ends once."""

from __future__ import annotations

from shadowsync.nodes.replica.replica import TrainingPause


def test_pauses_begin_and_end_in_turn() -> None:
    pause = TrainingPause()
    seen = []
    for number in (1, 2):
        for paused in (True, False):
            pause.set(number, paused)
            seen.append(pause.is_on)
    assert seen == [True, False, True, False]


def test_what_comes_late_or_twice_changes_nothing() -> None:
    pause = TrainingPause()
    for number, paused in ((1, True), (1, False), (1, True)):
        pause.set(number, paused)
    assert not pause.is_on
    # The end of a pause that was never heard of, by a coordinator that took over.
    pause.set(5, False)
    pause.set(4, True)
    assert not pause.is_on
    pause.set(6, True)
    pause.set(5, False)
    assert pause.is_on
