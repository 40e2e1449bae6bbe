"""A Kafka broker in the test's process: the mock of librdkafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer

REPLY_SECONDS = 60.0


class Broker:
    """A broker, and who writes to it.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        (broker,) = producer.list_topics(timeout=REPLY_SECONDS).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def url(self, topic: str) -> str:
        """The path of a topic in a job file."""
        return f"kafka://{self.address}/{topic}"

    def write(self, topic: str, rows: Iterable[str], partition: int = 0) -> None:
        """Append rows to a partition; returns when the broker has them."""
        for row in rows:
            self._producer.produce(topic, value=row.encode(), partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(REPLY_SECONDS) == 0


@contextmanager
def running_broker() -> Iterator[Broker]:
    """A broker that ends with the block. A topic is made when it is first named, with four partitions."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 2, "linger.ms": 5})
    try:
        yield Broker(producer)
    finally:
        producer.flush(0)
        del producer
