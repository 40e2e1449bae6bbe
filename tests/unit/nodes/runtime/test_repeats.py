"""Equal warnings in a log: one line, once."""

from __future__ import annotations

import json
import logging

from shadowsync.nodes.runtime.process import REMEMBERED_TEXTS, REPEAT_SECONDS, JsonLines, Repeats


class Log:
    """What gets through the filter, as lines, by a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self._repeats = Repeats(lambda: self.now)

    def write(self, text: str, level: int = logging.WARNING, failed: bool = False) -> None:
        error = ValueError("why")
        given = (type(error), error, None) if failed else None
        record = logging.LogRecord("log", level, "file", 1, "%s", (text,), given)
        if self._repeats.filter(record):
            self.lines.append(json.loads(JsonLines().format(record))["text"])


def test_equal_warnings_are_written_once_and_counted_later() -> None:
    log = Log()
    for _ in range(40):
        log.write("trainer-0 did not complete Finalize")
        log.write("another one")
        log.now += 0.005
    assert log.lines == ["trainer-0 did not complete Finalize", "another one"]
    log.now += REPEAT_SECONDS
    log.write("another one")
    assert log.lines[2:] == ["another one (and 39 times since it was last written)"]


def test_what_is_not_equal_or_says_more_is_written() -> None:
    log = Log()
    for number in range(3):
        log.write(f"text {number}")
        log.write("the same", logging.INFO)
        log.write("it failed", logging.ERROR, failed=True)
    assert len(log.lines) == 9


def test_it_remembers_few_texts() -> None:
    log = Log()
    log.write("the first")
    for number in range(REMEMBERED_TEXTS):
        log.write(f"text {number}")
    log.write("the first")
    assert log.lines[-1] == "the first"
