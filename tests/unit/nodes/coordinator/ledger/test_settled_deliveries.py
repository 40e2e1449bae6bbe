"""Which deliveries trainers have acknowledged."""

from __future__ import annotations

import random

import msgpack
from shadowsync.nodes.coordinator.ledger.settled_deliveries import SettledDeliveries
from shadowsync.pipeline.wire.control.messages import UNKNOWN_DELIVERY


def test_it_knows_each_by_trainer_reader_worker_and_sequence() -> None:
    settled = SettledDeliveries()
    settled.add("trainer-0", ("reader-0", 1, 3))
    assert settled.has("trainer-0", ("reader-0", 1, 3))
    others = [("reader-0", 1, 2), ("reader-0", 1, 4), ("reader-0", 0, 3), ("reader-1", 1, 3)]
    assert not any(settled.has("trainer-0", delivery) for delivery in others)
    assert not settled.has("trainer-1", ("reader-0", 1, 3))


def test_of_an_unknown_delivery_it_knows_nothing() -> None:
    settled = SettledDeliveries()
    settled.add("trainer-0", UNKNOWN_DELIVERY)
    assert not settled.has("trainer-0", UNKNOWN_DELIVERY)
    assert settled.saved() == []


def test_memory_is_of_the_gaps_and_a_saved_one_knows_the_same() -> None:
    settled = SettledDeliveries()
    sequences = [number for number in range(1, 2000) if number != 1000]
    random.Random(1).shuffle(sequences)
    for sequence in sequences:
        settled.add("trainer-0", ("reader-0", 0, sequence))
    saved = msgpack.packb(settled.saved())
    assert len(saved) < 100
    other = SettledDeliveries()
    other.restore(msgpack.unpackb(saved))
    assert [n for n in range(2001) if not other.has("trainer-0", ("reader-0", 0, n))] == [0, 1000, 2000]
