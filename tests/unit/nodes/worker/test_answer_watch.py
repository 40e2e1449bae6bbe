"""A node that lives and does not answer is an error after a while, and never before."""

from __future__ import annotations

import pytest
from shadowsync.nodes.worker.answer_watch import AnswerWatch, PeerUnreachable
from shadowsync.pipeline.errors import ExitCode

LIMIT = 10.0


def watched(watch: AnswerWatch, begin: float, end: float, *asked: str) -> None:
    """Checks once a second."""
    for second in range(int(begin), int(end)):
        watch.check(float(second), asked)


def test_silence_for_longer_than_the_limit_is_an_error() -> None:
    watch = AnswerWatch("trainer-1", LIMIT)
    watched(watch, 0, 11, "reader-0", "embedding-0")
    watch.heard("reader-0")
    with pytest.raises(PeerUnreachable) as raised:
        watched(watch, 11, 12, "reader-0", "embedding-0")
    error = raised.value
    assert str(error).startswith("embedding-0: has not answered trainer-1 for 10 s, although both are alive")
    assert error.exit_code is ExitCode.STOPPED_BY_DEATH


def test_every_answer_begins_anew() -> None:
    watch = AnswerWatch("trainer-1", LIMIT)
    for begin in range(0, 100, 10):
        watched(watch, begin, begin + 10, "embedding-0")
        watch.heard("embedding-0")


def test_who_was_not_asked_owes_nothing() -> None:
    watch = AnswerWatch("trainer-1", LIMIT)
    for begin in range(0, 100, 10):
        watched(watch, begin, begin + 9, "embedding-0")
        watch.check(begin + 9.0, ())
