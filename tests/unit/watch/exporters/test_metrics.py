"""Metrics for Prometheus: their names, and that the dashboard and the documents know no others."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import shadowsync
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from shadowsync.pipeline.errors import ClusterError
from shadowsync.tests.support.coordinator.every_metric import EVERY_METRIC, full_name
from shadowsync.tests.support.outside.watch_servers import response, served_metrics
from shadowsync.watch.exporters.metric_names import BY_ROLE, PREFIX
from shadowsync.watch.exporters.metrics_server import MOST_CONNECTIONS, MetricsServer

ROOT = Path(shadowsync.__file__).resolve().parent
DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "shadowsync.json"
NAME = re.compile(rf"\b{PREFIX}[a-z_]+\b")

COUNTS = {"cpu_seconds": 2.5, "trained_examples": 1024, "gap_open": 3, "to/sync-0": 10, "from/sync-0": 20}


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    """A trainer's."""
    with served_metrics(role="trainer", counts=lambda: COUNTS) as made:
        yield made


def served_text(server: MetricsServer) -> str:
    return response(server.port, "/metrics")[2].decode()


def samples(server: MetricsServer) -> Iterator[Sample]:
    for family in text_string_to_metric_families(served_text(server)):
        yield from family.samples


def scrape(server: MetricsServer) -> dict[tuple[str, str], tuple[float, dict[str, str]]]:
    """By name and peer or table: the value and the labels; without the counts of connections."""
    return {
        (one.name, one.labels.get("peer", one.labels.get("table", ""))): (one.value, one.labels)
        for one in samples(server)
        if not one.name.startswith("shadowsync_http_")
    }


def test_a_scrape_has_the_counts_of_the_last_heartbeat(server: MetricsServer) -> None:
    found = scrape(server)
    labels = {"run": "a-run", "role": "trainer", "node": "trainer-0"}
    assert found == {
        ("shadowsync_cpu_seconds_total", ""): (2.5, labels),
        ("shadowsync_trained_examples_total", ""): (1024.0, labels),
        ("shadowsync_sync_gap_open_iterations", ""): (3.0, labels),
        ("shadowsync_link_sent_bytes_total", "sync-0"): (10.0, labels | {"peer": "sync-0"}),
        ("shadowsync_link_received_bytes_total", "sync-0"): (20.0, labels | {"peer": "sync-0"}),
    }


def test_growing_tables_are_told_apart_by_a_label() -> None:
    """Also one whose name has a slash."""
    counts = {"growing/rows/user": 7, "growing/evicted/user": 2, "growing/rows/a/b": 9, "growing": 1}
    with served_metrics(role="embedding", counts=lambda: counts) as served:
        found = scrape(served)
    labels = {"run": "a-run", "role": "embedding", "node": "embedding-0"}
    assert found == {
        ("shadowsync_growing_rows", "user"): (7.0, labels | {"table": "user"}),
        ("shadowsync_growing_rows", "a/b"): (9.0, labels | {"table": "a/b"}),
        ("shadowsync_growing_evicted_ids_total", "user"): (2.0, labels | {"table": "user"}),
    }


def test_each_of_several_labels_has_a_value() -> None:
    counts = {"ne": 0.9, "ne/clicked": 0.9, "ne/bought": 0.8, "validation/bought": 0.7}
    with served_metrics(role="coordinator", counts=lambda: counts) as served:
        text = served_text(served)
    who = 'node="coordinator",role="coordinator",run="a-run"'
    assert f"shadowsync_job_ne{{{who}}} 0.9" in text
    assert f'shadowsync_job_label_ne{{label="bought",{who}}} 0.8' in text
    assert f'shadowsync_job_label_ne{{label="clicked",{who}}} 0.9' in text
    assert f'shadowsync_job_label_validation_score{{label="bought",{who}}} 0.7' in text
    assert "shadowsync_job_label_recent_ne" not in text


@pytest.mark.parametrize(("well", "code"), [(True, 200), (False, 503)])
def test_health_is_told_by_the_status_code(well: bool, code: int) -> None:
    with served_metrics(is_well=lambda: well) as served:
        assert response(served.port, "/healthz")[::2] == (code, b"reader-0: told\n")


def test_a_port_that_is_taken_is_told(server: MetricsServer) -> None:
    with pytest.raises(ClusterError, match="--metrics-port"), served_metrics(port=server.port):
        pass


def test_the_port_is_free_again_at_the_end() -> None:
    def is_free_again() -> bool:
        with served_metrics() as first:
            port = first.port
        try:
            with served_metrics(port=port):
                return True
        except ClusterError:
            return False

    # Another process may get one port at that moment, but not each of several.
    assert any(is_free_again() for _ in range(5))


def test_idle_connections_hold_up_no_scrape(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # None is closed because the machine is slow.
    monkeypatch.setattr("shadowsync.pipeline.wire.http.connections.BEGIN_SECONDS", 300.0)
    address = ("127.0.0.1", server.port)
    idle = [socket.create_connection(address, timeout=60.0) for _ in range(2 * MOST_CONNECTIONS)]
    try:
        assert scrape(server)
        counts = {one.name: one.value for one in samples(server)}
        assert counts["shadowsync_http_refused_connections_total"] > MOST_CONNECTIONS
        assert counts["shadowsync_http_closed_connections_total"] == 0
    finally:
        for connection in idle:
            connection.close()


def test_names_have_their_units() -> None:
    for role, metrics in BY_ROLE.items():
        names = [full_name(metric) for metric in metrics]
        assert len(set(names)) == len(names), role
        assert len({metric.key for metric in metrics}) == len(names), role
    for name, metric in EVERY_METRIC.items():
        assert NAME.fullmatch(name)
        assert name.endswith("_total") == (metric.kind == "counter")
        if "bytes" in metric.key or "seconds" in metric.key:
            assert re.search(r"_(bytes|seconds)(_total)?$", name), name


def queries() -> list[str]:
    """Every query of the dashboard."""
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = [*board["panels"], *(inner for panel in board["panels"] for inner in panel.get("panels", []))]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    found += [str(variable.get("query", "")) for variable in board["templating"]["list"]]
    return found


def test_the_dashboard_asks_for_what_nodes_serve() -> None:
    found = queries()
    assert len(found) > 12
    for query in found:
        names = NAME.findall(query)
        assert names, query
        assert set(names) <= set(EVERY_METRIC), query
        counters = [name for name in names if EVERY_METRIC[name].kind == "counter"]
        assert not counters or re.search(r"\b(rate|increase)\(", query), f"a counter as it is: {query}"


def test_the_dashboard_has_the_data_source_that_there_is() -> None:
    source = ROOT / "docker" / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    (datasource,) = yaml.safe_load(source.read_text(encoding="utf-8"))["datasources"]
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {datasource["uid"]}


def test_the_documents_have_every_metric_and_no_other() -> None:
    text = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    rows = dict(re.findall(rf"^\| `({PREFIX}\w+)` \| (.+?) \|", text, re.MULTILINE))
    assert rows == {name: metric.text for name, metric in EVERY_METRIC.items()}
