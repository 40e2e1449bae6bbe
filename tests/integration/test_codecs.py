"""A whole job with lossy codecs on the links of synchronization: fewer bytes, and no worse a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shadowsync.tests.support.in_process_cluster import InProcessCluster


@pytest.mark.parametrize(
    ("algorithm", "link", "holders"),
    [
        ("easgd", "center", {"trainer", "sync"}),
        pytest.param("ma", "peers", {"trainer"}, marks=pytest.mark.matrix),
    ],
)
def test_int8_saves_what_it_says_and_costs_no_quality(
    cluster: Callable[..., InProcessCluster], algorithm: str, link: str, holders: set[str]
) -> None:
    ways = (f"{link}_up", f"{link}_down")
    changes = {"sync": {"algorithm": algorithm, "mode": "fixed", "every": 1}}
    control = cluster(changes).start()
    assert control.wait() == 0, control.coordinator.text()
    plain = control.run.report
    assert {way: carried.codec for way, carried in plain.sync.links.items()} == dict.fromkeys(ways, "float32")
    assert plain.sync.reference_bytes == {}

    own = cluster({**changes, "codecs": dict.fromkeys(ways, "int8")}).start()
    assert own.wait() == 0, own.coordinator.text()
    report = own.run.report
    assert report.ledger.adds_up
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
    # That of the sockets, whatever is in it.
    assert sum(report.sync.links[way].bytes for way in ways) < report.sync.bytes < plain.sync.bytes / 2
    assert report.eval is not None
    assert plain.eval is not None
    assert report.eval.ne is not None
    # Two runs of one job differ by far less than they learn: by 0.013 at most, where it was measured.
    still = cluster({**changes, "trainer": {"lr": 1e-9}, "embedding": {"lr": 1e-9}}).start()
    assert still.wait() == 0, still.coordinator.text()
    untrained = still.run.report.eval
    assert untrained is not None
    assert untrained.ne is not None
    assert plain.eval.ne is not None
    learned = untrained.ne - plain.eval.ne
    assert learned > 0.15
    assert abs(report.eval.ne - plain.eval.ne) < 0.25 * learned
