"""Kafka topics as input: each message is a row of text (confluent-kafka).

A partition of a topic has the path `kafka://SERVERS/TOPIC/NUMBER`. Its spans are ranges of offsets, of kind
"offsets", so that any reader can read the same rows again as long as the topic retains them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from ..errors import DataError
from ..text.format import duration
from ..types import TOPIC_PREFIX
from .span import Span

SPAN_MESSAGES: Final = 100_000
"""Most messages of a span."""

_REPLY_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.2
_CONSUMED_AT_ONCE: Final = 10_000


def is_topic(path: str) -> bool:
    """Return whether a path is a topic or one of its partitions."""
    return path.startswith(TOPIC_PREFIX)


def partitions_of(url: str) -> list[str]:
    """Return the paths of a topic's partitions.

    Raises DataError for a URL of another form, a topic that is not there, and without an answer.
    """
    parts = url.removeprefix(TOPIC_PREFIX).split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise DataError(
            "is not a topic", where=url, remedy="write kafka://HOST:PORT/TOPIC, several hosts with commas"
        )
    if len(parts) == 3:
        return [url]
    with _consumer(url) as consumer:
        found = consumer.list_topics(parts[1], timeout=_REPLY_SECONDS).topics[parts[1]]
    if found.error is not None:
        raise DataError(
            f"cannot be read ({found.error.str()})", where=url, remedy="check the name of the topic"
        )
    return [f"{url}/{number}" for number in sorted(found.partitions)]


def offsets_of(path: str) -> tuple[int, int]:
    """Return the offsets of a partition's first and next message.

    Raises DataError without an answer.
    """
    with _consumer(path) as consumer:
        return _watermarks(consumer, path)


def offset_spans(path: str, number: int, start: int, stop: int) -> list[Span]:
    """Cut a range of a partition's offsets into spans.

    They are numbered from `number`.
    """
    return [
        Span(number + at, path, "offsets", first, min(first + SPAN_MESSAGES, stop))
        for at, first in enumerate(range(start, stop, SPAN_MESSAGES))
    ]


@contextmanager
def open_offsets(span: Span) -> Iterator[TopicReader]:
    """Open the messages of a span.

    Raises DataError if some are gone, and without an answer.
    """
    from confluent_kafka import TopicPartition

    with _consumer(span.path) as consumer:
        first, _ = _watermarks(consumer, span.path)
        if first > span.start:
            raise DataError(
                f"messages {span.start} to {min(first, span.stop) - 1} are gone, and"
                f" {min(first, span.stop) - span.start:,} rows with them",
                where=span.path,
                remedy="let the topic retain messages until they are trained on and in a checkpoint",
            )
        consumer.assign([TopicPartition(*_partition(span.path), span.start)])
        yield TopicReader(consumer, span)


class TopicReader:
    """The messages of a span as lines; used by one thread."""

    def __init__(self, consumer: Any, span: Span) -> None:
        self._consumer = consumer
        self._span = span
        self._next = span.start
        self._lines = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a buffer with bytes of lines, and return their number.

        It is 0 after the last message.
        """
        while not self._lines and self._next < self._span.stop:
            self._fetch()
        count = min(len(buffer), len(self._lines))
        buffer[:count] = self._lines[:count]
        self._lines = self._lines[count:]
        return count

    def _fetch(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        # The call waits for as many as it asks for, or for its timeout.
        wanted = min(_CONSUMED_AT_ONCE, self._span.stop - self._next)
        deadline = time.monotonic() + _REPLY_SECONDS
        while not (messages := self._consumer.consume(wanted, timeout=_POLL_SECONDS)):
            if time.monotonic() > deadline:
                raise DataError(
                    f"no message came within {duration(_REPLY_SECONDS)}",
                    where=self._span.path,
                    remedy=_REMEDY,
                )
        lines = []
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            # Where messages were removed by compaction, the end comes without the last ones.
            self._next = message.offset() if error is not None else message.offset() + 1
            if error is None and message.offset() < self._span.stop:
                lines.append((message.value() or b"").rstrip(b"\r\n"))
        self._lines = memoryview(b"".join(line + b"\n" for line in lines))


_REMEDY: Final = "check the servers, and that they are reached from here"


@contextmanager
def _consumer(path: str) -> Iterator[Any]:
    if find_spec("confluent_kafka") is None:
        raise DataError("a topic needs confluent_kafka", where=path, remedy="pip install 'shadowsync[kafka]'")
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": path.removeprefix(TOPIC_PREFIX).partition("/")[0],
            # Required by the library; nothing is committed, since the ledger knows what is trained.
            "group.id": "shadowsync",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )
    try:
        yield consumer
    except KafkaException as error:
        raise DataError(f"cannot be read ({error.args[0].str()})", where=path, remedy=_REMEDY) from error
    finally:
        consumer.close()


def _watermarks(consumer: Any, path: str) -> tuple[int, int]:
    from confluent_kafka import TopicPartition

    first, end = consumer.get_watermark_offsets(TopicPartition(*_partition(path)), timeout=_REPLY_SECONDS)
    return int(first), int(end)


def _partition(path: str) -> tuple[str, int]:
    _, topic, number = path.removeprefix(TOPIC_PREFIX).split("/")
    return topic, int(number)
