"""Kafka topics as input: each message is a row of text (confluent-kafka).

A partition of a topic has the path `kafka://SERVERS/TOPIC/NUMBER`. Its spans are ranges of offsets, of kind
"offsets", so that any reader can read the same rows again as long as the topic retains them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from ...config.kafka import KafkaSection
from ...errors import DataError
from ...text.format import duration
from ...types import TOPIC_PREFIX
from ..span import Span
from .kafka_client import PLAINTEXT, REMEDY, REPLY_SECONDS, KafkaClient, is_topic, open_client

SPAN_MESSAGES: Final = 100_000
"""Most messages of a span."""

_POLL_SECONDS: Final = 0.2
_CONSUMED_AT_ONCE: Final = 10_000


def partitions_of(url: str, kafka: KafkaSection = PLAINTEXT) -> list[str]:
    """Return the paths of a topic's partitions.

    Raises DataError for a URL of another form, a topic that is not there, and without an answer; KafkaRefused
    and JobFileError as `open_client`.
    """
    parts = url.removeprefix(TOPIC_PREFIX).split("/")
    if "@" in parts[0]:
        # Without the address, which has a password.
        raise DataError(
            "the address of a topic has a user", remedy="leave it out, and give [data.kafka] sasl_username"
        )
    if len(parts) not in (2, 3) or not all(parts):
        raise DataError(
            "is not a topic", where=url, remedy="write kafka://HOST:PORT/TOPIC, several hosts with commas"
        )
    if len(parts) == 3:
        return [url]
    with open_client(url, kafka) as client:
        topic = client.ask(lambda seconds: client.consumer.list_topics(parts[1], seconds)).topics[parts[1]]
        client.raise_refusal(topic.error)
    if topic.error is not None:
        raise DataError(
            f"cannot be read ({topic.error.str()})", where=url, remedy="check the name of the topic"
        )
    return [f"{url}/{number}" for number in sorted(topic.partitions)]


def moved_topics(known: Iterable[str], patterns: Iterable[str]) -> dict[str, str]:
    """Return the present paths of known partitions whose topic has moved.

    `known` may have other paths, too. A topic has moved if `known` and `patterns` name it at one address of
    brokers each, and these differ: brokers move, and a list of them may change, while offsets stay the same.
    """
    partitions = [path for path in known if is_topic(path)]
    before, now = _addresses(partitions), _addresses(filter(is_topic, patterns))
    moved = {
        topic: address
        for topic, (address, *more) in now.items()
        if not more and len(before.get(topic, ())) == 1 and address not in before[topic]
    }
    new_paths = {}
    for path in partitions:
        _, topic, number = path.removeprefix(TOPIC_PREFIX).split("/")
        if topic in moved:
            new_paths[path] = f"{TOPIC_PREFIX}{moved[topic]}/{topic}/{number}"
    return new_paths


def _addresses(paths: Iterable[str]) -> dict[str, set[str]]:
    """Return the addresses at which each topic is named."""
    addresses: dict[str, set[str]] = {}
    for path in paths:
        address, topic = path.removeprefix(TOPIC_PREFIX).split("/")[:2]
        addresses.setdefault(topic, set()).add(address)
    return addresses


def offsets_of(path: str, kafka: KafkaSection = PLAINTEXT) -> tuple[int, int]:
    """Return the offsets of a partition's first and next message.

    Raises DataError without an answer, and as `open_client`.
    """
    with open_client(path, kafka) as client:
        return _watermarks(client, path)


def offset_spans(path: str, number: int, start: int, stop: int) -> list[Span]:
    """Cut a range of a partition's offsets into spans.

    They are numbered from `number`.
    """
    return [
        Span(number + index, path, "offsets", first, min(first + SPAN_MESSAGES, stop))
        for index, first in enumerate(range(start, stop, SPAN_MESSAGES))
    ]


@contextmanager
def open_offsets(span: Span, kafka: KafkaSection = PLAINTEXT) -> Iterator[TopicReader]:
    """Open the messages of a span.

    Raises DataError if some are gone, and without an answer, and as `open_client`.
    """
    from confluent_kafka import TopicPartition

    with open_client(span.path, kafka) as client:
        first, _ = _watermarks(client, span.path)
        if first > span.start:
            raise DataError(
                f"messages {span.start} to {min(first, span.stop) - 1} are gone, and"
                f" {min(first, span.stop) - span.start:,} rows with them",
                where=span.path,
                remedy="let the topic retain messages until they are trained on and in a checkpoint",
            )
        client.consumer.assign([TopicPartition(*_partition(span.path), span.start)])
        yield TopicReader(client, span)


class TopicReader:
    """The messages of a span as lines; used by one thread."""

    def __init__(self, client: KafkaClient, span: Span) -> None:
        self._client = client
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
        most = min(_CONSUMED_AT_ONCE, self._span.stop - self._next)
        deadline = time.monotonic() + REPLY_SECONDS
        while not (messages := self._client.consumer.consume(most, timeout=_POLL_SECONDS)):
            if time.monotonic() > deadline:
                self._client.raise_refusal()
                raise DataError(
                    f"no message came within {duration(REPLY_SECONDS)}", where=self._span.path, remedy=REMEDY
                )
        lines = []
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            # Where messages were removed by compaction, the end comes without the last ones.
            self._next = message.offset() if error is not None else message.offset() + 1
            if error is None and message.offset() < self._span.stop:
                # One line for each message; `LineParser` takes the break for a bad row.
                lines.append((message.value() or b"").rstrip(b"\r\n").replace(b"\n", b"\r"))
        self._lines = memoryview(b"".join(line + b"\n" for line in lines))


def _watermarks(client: KafkaClient, path: str) -> tuple[int, int]:
    from confluent_kafka import TopicPartition

    partition = TopicPartition(*_partition(path))
    first, end = client.ask(lambda seconds: client.consumer.get_watermark_offsets(partition, timeout=seconds))
    return int(first), int(end)


def _partition(path: str) -> tuple[str, int]:
    _, topic, number = path.removeprefix(TOPIC_PREFIX).split("/")
    return topic, int(number)
