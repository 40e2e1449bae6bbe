"""The priority of work beside training: lower while it works, and that of nobody else."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from shadowsync.nodes.coordinator.validation import process as scoring_process
from shadowsync.nodes.coordinator.validation.scoring import URGENT
from shadowsync.pipeline.performance import priority
from shadowsync.pipeline.performance.priority import BACKGROUND_NICE, at_priority, thread_nice

T = TypeVar("T")
of_threads = pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")


@pytest.fixture(autouse=True)
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the session's priority, of a process that leads none."""
    monkeypatch.setattr(priority, "_SESSION", tmp_path / "autogroup")
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid() + 1)
    priority._has_thread_priorities.cache_clear()
    yield tmp_path / "autogroup"
    priority._has_thread_priorities.cache_clear()


def whole(work: Callable[[], T]) -> Generator[None, None, T]:
    """Work that cannot be divided."""
    yield
    return work()


def seen() -> tuple[int, int]:
    """The thread, and how low its priority is."""
    return threading.get_native_id(), thread_nice()


@of_threads
def test_it_is_lower_while_it_works_and_that_of_others_is_not() -> None:
    before = seen()
    working, looked = threading.Event(), threading.Event()

    def work() -> tuple[int, int]:
        working.set()
        assert looked.wait(60.0)
        return seen()

    with ThreadPoolExecutor(1) as other:
        result = other.submit(at_priority, BACKGROUND_NICE, whole(work))
        assert working.wait(60.0)
        assert seen() == before, "while it works"
        # A thread that starts meanwhile has the usual one, too.
        with ThreadPoolExecutor(1) as third:
            assert third.submit(thread_nice).result() == before[1]
        looked.set()
        thread, nice = result.result()
        # The thread that asked for it goes on as before.
        assert other.submit(thread_nice).result() == before[1]
    assert nice == before[1] + BACKGROUND_NICE
    assert thread not in {one.native_id for one in threading.enumerate()}, "it ends with its work"
    assert seen() == before


@of_threads
def test_one_that_training_waits_for_has_the_usual_priority() -> None:
    assert at_priority(0, whole(seen)) == seen()


@of_threads
def test_it_cannot_be_lower_than_the_lowest() -> None:
    assert at_priority(15, whole(lambda: at_priority(BACKGROUND_NICE, whole(thread_nice)))) == 19


@of_threads
def test_what_it_raises_is_raised() -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        at_priority(BACKGROUND_NICE, whole(fail))


def test_without_priorities_of_threads_it_works_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    caplog.set_level(logging.INFO, priority.log.name)
    here = threading.get_native_id()
    assert [at_priority(BACKGROUND_NICE, whole(threading.get_native_id)) for _ in range(3)] == [here] * 3
    assert caplog.text.count("threads have none of their own on this system") == 1


@of_threads
def test_where_it_is_forbidden_it_works_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbid(*given: object) -> None:
        raise PermissionError(1, "Operation not permitted", str(given))

    usual = thread_nice()
    monkeypatch.setattr(os, "setpriority", forbid)
    assert at_priority(BACKGROUND_NICE, whole(thread_nice)) == usual
    assert "it cannot be lowered (Operation not permitted)" in caplog.text


def test_a_session_of_its_own_gets_it_and_gets_it_back(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Linux groups processes by session, their priorities do not count between sessions."""
    at_priority(BACKGROUND_NICE, whole(lambda: None))
    assert not session.exists(), "in a session with others, such as a shell's, it is theirs, too"
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    assert at_priority(BACKGROUND_NICE, whole(session.read_text)) == str(BACKGROUND_NICE)
    assert at_priority(0, whole(session.read_text)) == "0"


@of_threads
def test_what_becomes_urgent_goes_on_at_the_usual_priority() -> None:
    """After its next yield, on the thread that asked for it: the other one's cannot be raised."""
    urgent, usual = threading.Event(), thread_nice()

    def work() -> Generator[None, None, list[int]]:
        nices = []
        for piece in range(4):
            nices.append(thread_nice())
            if piece == 1:
                urgent.set()
            yield
        return nices

    assert at_priority(BACKGROUND_NICE, work(), urgent) == [usual + BACKGROUND_NICE] * 2 + [usual] * 2
    # The control: nothing is urgent.
    assert at_priority(BACKGROUND_NICE, work(), threading.Event()) == [usual + BACKGROUND_NICE] * 4


@of_threads
def test_a_checkpoint_is_scored_at_the_priority_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring_process, "score", lambda *_: whole(lambda: {"nice": thread_nice()}))
    usual, urgent = thread_nice(), threading.Event()
    assert scoring_process.reply({"nice": BACKGROUND_NICE}, urgent) == {"nice": usual + BACKGROUND_NICE}
    assert scoring_process.reply({"nice": 0}, urgent) == {"nice": usual}
    urgent.set()
    assert scoring_process.reply({"nice": BACKGROUND_NICE}, urgent) == {"nice": usual}


def test_only_the_current_request_becomes_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: queue.SimpleQueue[tuple[str, threading.Event]] = queue.SimpleQueue()
    monkeypatch.setattr(sys, "stdin", ["first\n", f"{URGENT}\n", "second\n"])
    monkeypatch.setattr(os, "_exit", lambda _: None)
    scoring_process.read_requests(requests)
    taken = [requests.get_nowait() for _ in range(2)]
    assert [(line, urgent.is_set()) for line, urgent in taken] == [("first\n", True), ("second\n", False)]
