"""A whole job with lossy codecs on the links of synchronization: fewer bytes, and a model that learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished, shared_run

# What training does to NE at the least, however trainers race; it does 0.25.
LEARNED = 0.15


@pytest.fixture(scope="module")
def untrained(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """NE of a job that learns nothing."""
    nothing = {"trainer": {"count": 1, "batch": 512, "lr": 1e-9}, "embedding": {"lr": 1e-9}}
    return shared_run(tmp_path_factory.mktemp("untrained"), click_log, nothing).ne


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("algorithm", "link", "holders", "ends"),
    [("easgd", "center", {"trainer", "sync"}, 1), ("ma", "peers", {"trainer"}, 2)],
)
def test_int8_saves_what_it_says_and_the_model_learns(
    cluster: ClusterMaker, untrained: float, algorithm: str, link: str, holders: set[str], ends: int
) -> None:
    ways = (f"{link}_up", f"{link}_down")
    changes = {"sync": {"algorithm": algorithm, "mode": "fixed", "every": 1}}
    plain = finished(cluster, changes)
    floats = plain.report
    assert {way: carried.codec for way, carried in floats.sync.links.items()} == dict.fromkeys(
        ways, "float32"
    )
    assert floats.sync.reference_bytes == {}

    coded = finished(cluster, {**changes, "codecs": dict.fromkeys(ways, "int8")})
    report = coded.report
    assert report.sync.rounds > 100
    assert set(report.sync.links) == set(ways)
    for way in ways:
        saved, compared = report.sync.links[way], floats.sync.links[way]
        assert saved.codec == "int8"
        assert present(saved.compression) > 3.4
        assert 0.95 < present(compared.compression) < 1.0
    assert set(report.sync.reference_bytes) == holders
    # That of the sockets, whatever is in it, beside what the values of the same job take as float32.
    assert sum(report.sync.links[way].bytes for way in ways) < report.sync.bytes
    # Sockets of trainers count what they receive, too: a message between two of them has two such ends.
    assert report.sync.bytes < ends * sum(report.sync.links[way].float32_bytes for way in ways) / 2
    assert floats.sync.bytes > ends * sum(floats.sync.links[way].float32_bytes for way in ways), "the control"
    # A codec that spoils the model would leave it no better than one that has learned nothing.
    assert untrained - plain.ne > LEARNED
    assert untrained - coded.ne > LEARNED


@pytest.mark.parametrize(
    ("codec", "saved"),
    [
        pytest.param({"name": "int4"}, 5.0, marks=pytest.mark.matrix),
        ({"name": "topk", "topk_fraction": 0.1}, 12.0),
    ],
)
def test_few_bits_of_deltas_and_the_model_learns(
    cluster: ClusterMaker, untrained: float, codec: dict[str, Any], saved: float
) -> None:
    ways, options = ("center_up", "center_down"), {key: codec[key] for key in codec if key != "name"}
    changes = {
        "sync": {"algorithm": "decoupled", "mode": "fixed", "every": 1},
        "codecs": dict.fromkeys(ways, codec["name"]) | options,
    }
    run = finished(cluster, changes)
    report = run.report
    assert report.sync.rounds > 100
    for way in ways:
        # The first answers and the last deltas are float32.
        assert (report.sync.links[way].compression or 0.0) > saved
    assert set(report.sync.reference_bytes) == {"trainer", "sync"}
    assert untrained - run.ne > LEARNED
