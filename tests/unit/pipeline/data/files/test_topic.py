"""Kafka topics: partitions, offsets, and the rows of a span, by a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.files import kafka_client
from shadowsync.pipeline.data.files import topic as topics
from shadowsync.pipeline.data.files.kafka_client import is_topic
from shadowsync.pipeline.data.files.paths import match_files
from shadowsync.pipeline.data.files.text import line_blocks
from shadowsync.pipeline.data.files.topic import moved_topics, offset_spans, offsets_of, partitions_of
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.tests.support.outside.broker import Broker, running_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as one:
        yield one


def rows(start: int, stop: int) -> list[str]:
    return [f"{row % 2},a{row}" for row in range(start, stop)]


def lines(span: Span, block_bytes: int = 1 << 12) -> list[bytes]:
    found = [block.buffer[: block.stop].tobytes() for block in line_blocks(span, block_bytes)]
    return b"".join(found).splitlines()


def job_of(path: str, **data: Any) -> Job:
    section = {
        "format": "csv",
        "header": False,
        "path": [path],
        "columns": {"clicked": {"kind": "label"}, "ad": {"kind": "categorical"}},
    }
    return Job.model_validate({"data": section | data})


def test_a_topic_has_partitions_and_offsets(broker: Broker) -> None:
    broker.write("offsets", rows(0, 5), partition=1)
    url = broker.url("offsets")
    assert is_topic(url)
    assert partitions_of(url) == [f"{url}/{number}" for number in range(4)]
    assert partitions_of(f"{url}/1") == [f"{url}/1"]
    assert match_files([url, f"{url}/1"]) == partitions_of(url)
    assert offsets_of(f"{url}/1") == (0, 5)
    assert offsets_of(f"{url}/0") == (0, 0)


def test_spans_are_ranges_of_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "SPAN_MESSAGES", 10)
    found = offset_spans("kafka://b:1/t/0", 7, 5, 26)
    assert [(span.number, span.start, span.stop) for span in found] == [(7, 5, 15), (8, 15, 25), (9, 25, 26)]
    assert offset_spans("kafka://b:1/t/0", 0, 5, 5) == []


@pytest.mark.parametrize("block_bytes", [64, 1 << 16])
def test_a_span_has_exactly_its_messages(broker: Broker, block_bytes: int) -> None:
    topic = f"exact-{block_bytes}"
    broker.write(topic, rows(0, 2_000))
    path = f"{broker.url(topic)}/0"
    assert lines(Span(0, path, "offsets", 0, 2_000), block_bytes) == [row.encode() for row in rows(0, 2_000)]
    middle = Span(0, path, "offsets", 700, 1_303)
    assert lines(middle, block_bytes) == [row.encode() for row in rows(700, 1_303)]
    broker.write(topic, rows(2_000, 2_100))
    assert lines(middle, block_bytes) == [row.encode() for row in rows(700, 1_303)], (
        "later ones change nothing"
    )


def test_a_job_reads_its_messages_and_names_a_bad_one_by_its_offset(broker: Broker) -> None:
    broker.write("job", [*rows(0, 10), "what,is,this", "", *rows(12, 20)])
    source = JobInput(job_of(broker.url("job")))
    (span,) = source.plan([broker.url("job")])
    assert (span.kind, span.start, span.stop) == ("offsets", 0, 20)
    bad = BadRows(10)
    found = [chunk for chunk in source.chunks(span, bad) if len(chunk.examples)]
    assert sum(len(chunk.examples) for chunk in found) == 18, "an empty message is no row"
    assert bad.count == 1
    assert str(bad.first[0]).startswith(f"{span.path}:10: ")


def test_a_line_break_in_a_message_is_one_bad_row(broker: Broker) -> None:
    """Also within quotes, and where the next message would end them."""
    good = rows(0, 20)
    odd = ['"a\nb,1,2', 'x\r\ny"', '"', "1\n\n2"]
    broker.write("breaks", [*good[:10], *odd, *good[10:]])
    source = JobInput(job_of(broker.url("breaks")))
    (span,) = source.plan([broker.url("breaks")])
    bad = BadRows(10)
    assert sum(len(chunk.examples) for chunk in source.chunks(span, bad)) == 20
    assert bad.count == len(odd)
    assert [row.line for row in bad.first] == [10, 11, 12, 13]


def test_a_topic_without_a_message_has_no_quantiles(broker: Broker) -> None:
    broker.write("partly", rows(0, 3), partition=1)
    url = broker.url("partly") + "/0"
    assert offsets_of(url) == (0, 0)
    age = {"kind": "bucket", "quantiles": 4}
    columns = {"clicked": {"kind": "label"}, "age": age}
    data = {"format": "csv", "header": False, "path": [url], "columns": columns}
    with pytest.raises(DataError, match="column age has no value in the sample of the training part"):
        job_of_tree({"data": data})


def test_messages_that_are_gone_are_counted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.write("gone", rows(0, 5))
    consumer = pytest.importorskip("confluent_kafka").Consumer

    class Shortened(consumer):  # type: ignore[misc, valid-type]
        """As of a broker that has removed the first three."""

        def get_watermark_offsets(self, partition: Any, **more: Any) -> tuple[int, int]:
            _, end = super().get_watermark_offsets(partition, **more)
            return 3, end

    monkeypatch.setattr("confluent_kafka.Consumer", Shortened)
    path = f"{broker.url('gone')}/0"
    with pytest.raises(DataError, match=r"messages 1 to 2 are gone, and 2 rows with them") as caught:
        lines(Span(0, path, "offsets", 1, 5))
    assert path in str(caught.value)
    assert lines(Span(0, path, "offsets", 3, 5)) == [row.encode() for row in rows(3, 5)]


@pytest.mark.parametrize("path", ["kafka://host:1", "kafka://host:1/", "kafka://host:1/t/0/1", "kafka:///t"])
def test_what_is_no_topic_is_refused(path: str) -> None:
    with pytest.raises(DataError, match="is not a topic; write kafka://HOST:PORT/TOPIC"):
        partitions_of(path)


def test_a_user_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(DataError, match=r"has a user; leave it out, and give \[data.kafka\]") as caught:
        partitions_of("kafka://me:hunter-2@host:1/t")
    assert "hunter-2" not in str(caught.value)


def test_a_topic_that_is_not_there_is_named(broker: Broker) -> None:
    with pytest.raises(DataError, match="check the name of the topic") as caught:
        partitions_of(broker.url("nobody-writes-this"))
    assert broker.url("nobody-writes-this") in str(caught.value)


def test_a_broker_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "REPLY_SECONDS", 0.5)
    with pytest.raises(DataError, match="cannot be read") as caught:
        partitions_of("kafka://127.0.0.1:9/clicks")
    assert "kafka://127.0.0.1:9/clicks" in str(caught.value)
    assert "check the servers" in str(caught.value)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"pip install 'shadowsync\[kafka\]'"):
        offsets_of("kafka://127.0.0.1:9/clicks/0")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"format": "parquet"}, 'data.format: "parquet" given; messages of a topic are text'),
        ({"header": True}, "data.header: is true; messages of a topic have no header, so give false"),
    ],
)
def test_what_does_not_go_with_a_topic(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.split(";")[0]):
        job_of("kafka://127.0.0.1:9/clicks", **data)


KNOWN = ["kafka://old:1/clicks/0", "kafka://old:1/clicks/3", "data/a.csv"]


def test_a_topic_at_other_brokers_has_moved() -> None:
    moved = {path: path.replace("old:1", "new:2,new:3") for path in KNOWN[:2]}
    assert moved_topics(KNOWN, ["kafka://new:2,new:3/clicks", "data/*.csv"]) == moved
    assert moved_topics(KNOWN[:1], ["kafka://new:2/clicks/0"]) == {KNOWN[0]: "kafka://new:2/clicks/0"}


@pytest.mark.parametrize(
    ("known", "patterns"),
    [
        (KNOWN, ["kafka://old:1/clicks"]),
        (KNOWN, ["kafka://old:1/clicks", "kafka://new:2/clicks"]),
        (KNOWN, ["kafka://new:2/clicks", "kafka://new:3/clicks"]),
        (KNOWN, ["kafka://new:2/others"]),
        (KNOWN, []),
        ([*KNOWN, "kafka://else:1/clicks/0"], ["kafka://new:2/clicks"]),
    ],
)
def test_a_topic_has_not_moved_where_that_is_not_clear(known: list[str], patterns: list[str]) -> None:
    assert moved_topics(known, patterns) == {}
