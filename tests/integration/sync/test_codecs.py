"""A whole job with lossy codecs on the links of synchronization: fewer bytes, and a model that learns."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished

# What training does to NE at the least, however trainers race; it does 0.25.
LEARNED = 0.15


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("algorithm", "link", "holders", "ends"),
    [
        ("easgd", "center", {"trainer", "sync"}, 1),
        pytest.param("ma", "peers", {"trainer"}, 2, marks=pytest.mark.matrix),
    ],
)
def test_int8_saves_what_it_says_and_the_model_learns(
    cluster: ClusterMaker, algorithm: str, link: str, holders: set[str], ends: int
) -> None:
    ways = (f"{link}_up", f"{link}_down")
    changes = {"sync": {"algorithm": algorithm, "mode": "fixed", "every": 1}}
    plain = finished(cluster, changes).report
    assert {way: carried.codec for way, carried in plain.sync.links.items()} == dict.fromkeys(ways, "float32")
    assert plain.sync.reference_bytes == {}

    report = finished(cluster, {**changes, "codecs": dict.fromkeys(ways, "int8")}).report
    assert report.sync.rounds > 100
    assert set(report.sync.links) == set(ways)
    for way in ways:
        saved, compared = report.sync.links[way], plain.sync.links[way]
        assert saved.codec == "int8"
        assert saved.compression is not None
        assert saved.compression > 3.4
        assert compared.compression is not None
        assert 0.95 < compared.compression < 1.0
    assert set(report.sync.reference_bytes) == holders
    # That of the sockets, whatever is in it, beside what the values of the same job take as float32.
    assert sum(report.sync.links[way].bytes for way in ways) < report.sync.bytes
    # Sockets of trainers count what they receive, too: a message between two of them has two such ends.
    assert report.sync.bytes < ends * sum(report.sync.links[way].float32_bytes for way in ways) / 2
    assert plain.sync.bytes > ends * sum(plain.sync.links[way].float32_bytes for way in ways), "the control"
    assert report.eval is not None
    assert plain.eval is not None
    assert report.eval.ne is not None
    # A codec that spoils the model would leave it no better than one that has learned nothing.
    still = cluster({**changes, "trainer": {"lr": 1e-9}, "embedding": {"lr": 1e-9}}).start()
    assert still.wait() == 0, still.coordinator.text()
    untrained = still.run.report.eval
    assert untrained is not None
    assert untrained.ne is not None
    assert plain.eval.ne is not None
    assert untrained.ne - plain.eval.ne > LEARNED
    assert untrained.ne - report.eval.ne > LEARNED


@pytest.mark.parametrize(
    ("codec", "saved"),
    [
        pytest.param({"name": "int4"}, 5.0, marks=pytest.mark.matrix),
        ({"name": "topk", "topk_fraction": 0.1}, 12.0),
    ],
)
def test_few_bits_of_deltas_and_the_model_learns(
    cluster: ClusterMaker, codec: dict[str, Any], saved: float
) -> None:
    ways, options = ("center_up", "center_down"), {key: codec[key] for key in codec if key != "name"}
    changes = {
        "sync": {"algorithm": "decoupled", "mode": "fixed", "every": 1},
        "codecs": dict.fromkeys(ways, codec["name"]) | options,
    }
    report = finished(cluster, changes).report
    assert report.sync.rounds > 100
    for way in ways:
        # The first answers and the last deltas are float32.
        assert (report.sync.links[way].compression or 0.0) > saved
    assert set(report.sync.reference_bytes) == {"trainer", "sync"}
    still = cluster({**changes, "trainer": {"lr": 1e-9}, "embedding": {"lr": 1e-9}}).start()
    assert still.wait() == 0, still.coordinator.text()
    learned, untrained = report.eval, still.run.report.eval
    assert learned is not None
    assert untrained is not None
    assert (untrained.ne or 0.0) - (learned.ne or 9.0) > LEARNED
