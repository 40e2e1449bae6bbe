"""Watching a hub: `top`, the page and the metrics, and who may look."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
import shadowsync
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from shadowsync.attached.hub.folder import announce
from shadowsync.cli import main
from shadowsync.pipeline.wire.keys.job_key import KEY_VARIABLE, JobKey
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.processes import free_ports, wait_until
from shadowsync.tests.support.loops.attached_loops import hub, small_loop, train_until
from shadowsync.watch.status import Status, read_status


def got(address: str, token: str = "") -> str:
    """What is served there."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=60.0) as response:
        return str(response.read().decode())


def test_top_page_and_metrics_show_the_loops(tmp_path: Path) -> None:
    port = free_ports(1)
    with hub({"metrics_port": port, "folder": tmp_path}, watch__web="0") as own:
        announce(tmp_path, own.endpoint)
        model, optimizer, step = small_loop()
        with shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
            train_until(sync, step, lambda found: found["rounds"] >= 5)
            statuses: list[Status] = []

            def counted() -> bool:
                statuses.append(read_status(json.loads(said("top", str(tmp_path), "--once", "--json"))))
                loops = statuses[-1].loops
                # The loop knew of its rounds after its last step, which a heartbeat may have counted before.
                has_rounds = statuses[-1].sync.rounds >= 5
                return loops is not None and loops.steps == sync.steps and has_rounds

            wait_until(counted, "a heartbeat has all steps and five rounds")
            status = statuses[-1]
            assert status.run == tmp_path.name
            assert [node.name for node in status.nodes] == ["hub", "sync-0", "loop-0"]
            assert status.nodes[2].steps == sync.steps
            assert status.nodes[2].sync_sent_bytes
            assert [(one.node, one.what) for one in status.incidents] == [("loop-0", "joined")]
            assert status.page == own.page

            shown = CliRunner().invoke(main, ["top", "--join", own.endpoint, "--once"])
            assert f"{sync.steps:,} steps = " in shown.output

            def page_has_it() -> bool:
                page = read_status(json.loads(got(f"{own.page}status.json")))
                return page.loops is not None and page.loops.steps == sync.steps

            wait_until(page_has_it, "the page has all steps")
            assert "figures" in got(own.page)
            metrics = {
                (sample.name, sample.labels.get("loop", "")): sample.value
                for family in text_string_to_metric_families(got(f"http://127.0.0.1:{port}/metrics"))
                for sample in family.samples
            }
            assert metrics["shadowsync_hub_steps_total", ""] == sync.steps
            assert metrics["shadowsync_loop_steps_total", "loop-0"] == sync.steps
            assert metrics["shadowsync_job_living_nodes", ""] == 3
            assert got(f"http://127.0.0.1:{port}/healthz").startswith("hub: 1 loop")


def test_off_loopback_page_and_metrics_need_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "job.key"
    JobKey.generate().write(key)
    monkeypatch.setenv(KEY_VARIABLE, str(key))
    port = free_ports(1)
    process = {"bind": "0.0.0.0", "advertise": "127.0.0.1", "metrics_port": port}
    with hub(process, watch__web="0.0.0.0:0") as own:
        address, _, token = own.page.partition("?token=")
        assert token == JobKey.read(key).http_token
        metrics = f"http://127.0.0.1:{port}/metrics"
        for where in (metrics, f"{address}status.json"):
            with pytest.raises(HTTPError, match="401") as refused:
                got(where)
            refused.value.close()
        # The control: with the token.
        assert "shadowsync_hub_steps_total" in got(metrics, token)
        assert json.loads(got(f"{address}status.json", token))["run"] == "hub"
        # Whoever has no key cannot ask the hub either.
        monkeypatch.delenv(KEY_VARIABLE)
        said("top", "--join", own.endpoint, "--once", code=4)
        monkeypatch.setenv(KEY_VARIABLE, str(key))


def test_an_address_off_loopback_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    said("hub", "--bind", "0.0.0.0:0", code=2)
    # Nothing was begun.
    assert list(tmp_path.iterdir()) == []
