"""What a hub shows to watchers: the status, the table of `top`, and the metrics."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from shadowsync.attached.hub.folder import announce, make_hub_folder, saved_settings
from shadowsync.attached.hub.state import HubState
from shadowsync.attached.hub.status import hub_status
from shadowsync.attached.job import loop_job
from shadowsync.nodes.clients.watched_job import address_of
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.control.monitoring import flat_figures
from shadowsync.nodes.runtime import main_loop
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.errors import ClusterError, JobFileError
from shadowsync.pipeline.wire.control.loops import LoopsReply, TakeSamples
from shadowsync.pipeline.wire.control.messages import Hello, NodeFacts
from shadowsync.tests.support.coordinator.every_metric import EVERY_METRIC, full_name
from shadowsync.tests.support.coordinator.statuses import a_status
from shadowsync.tests.support.jobs.commands import said
from shadowsync.watch.exporters.metric_names import BY_LABEL, BY_ROLE
from shadowsync.watch.exporters.scalars import scalars_of
from shadowsync.watch.status import Status, read_status
from shadowsync.watch.terminal.live import line_of
from shadowsync.watch.terminal.table import table_of


def begun(own: HubState, token: str, role: str = "trainer") -> Member:
    member = own.members.join(Hello(role, token, "", "tcp://127.0.0.1:1", 7, "a-host"))
    own.places[token] = "a-host", 7
    own.get_ready(member, NodeFacts(dense_elements=16, needs_center=True))
    own.begin(member)
    return member


def a_hub() -> HubState:
    """Two loops that train, one that left, one that died; a data set that two of them share."""
    own = HubState(loop_job({"sync.nodes": 1}), Path("runs/hub-7"))
    begun(own, "s", "sync")
    counts = [(100, 90), (80, 80), (50, 50), (30, 10)]
    for index, (steps, synced) in enumerate(counts):
        member = begun(own, str(index))
        own.heartbeat(
            member,
            {
                "iterations": steps,
                "synced_iterations": synced,
                "rounds": 5,
                "gap_sum": synced,
                "gap_open": steps - synced,
                "sync_sent_bytes": 1000 * steps,
                "sync_received_bytes": 2000 * steps,
                "to/sync-0": 1000 * steps,
            },
        )
    own.lose(own.members.require("2"), "")
    own.take_samples(own.members.require("3"), TakeSamples("train", 100, 10, 0, 1, None, 0))
    own.take_samples(own.members.require("0"), TakeSamples("train", 100, 10, 0, 1, None, 0))
    own.lose(own.members.require("3"), "was silent for 10 s")
    own.add_event("loop-3", "was silent for 10 s")
    return own


def shown(status: Status) -> str:
    text = io.StringIO()
    Console(file=text, width=140).print(table_of(status))
    return text.getvalue()


def test_the_book_of_steps_adds_up_in_the_status() -> None:
    status = read_status(hub_status(a_hub(), {}, 0).model_dump(mode="json"))
    loops = status.loops
    assert loops is not None
    assert (status.run, status.phase, loops.members) == ("hub-7", "training", 2)
    assert (loops.steps, loops.synchronized, loops.open, loops.lost) == (260, 230, 10, 20)
    (samples,) = loops.samples
    assert (samples.granted, samples.finished, samples.returned, samples.held) == (20, 0, 10, 10)
    assert [node.name for node in status.nodes] == ["hub", "sync-0", "loop-0", "loop-1", "loop-2", "loop-3"]
    first = status.nodes[2]
    assert (first.role, first.steps, first.synchronized, first.host) == ("loop", 100, 90, "a-host")
    assert (status.nodes[5].alive, status.nodes[5].why) == (False, "was silent for 10 s")
    # A sync node is a thread of the hub: the process counts once.
    assert status.nodes[0].cpu_seconds is not None
    assert status.nodes[1].cpu_seconds is None
    assert status.sync.rounds == 20
    assert status.sync.gap_open == 10
    assert {edge.source for edge in status.edges} == {"loop-0", "loop-1"}
    assert [one.what for one in status.incidents] == ["was silent for 10 s"]
    assert hub_status(a_hub(), {}, 1).incidents == []


def test_top_shows_steps_where_a_job_has_examples() -> None:
    status = hub_status(a_hub(), None, 0)
    text = shown(status)
    assert "260 steps = 230 synchronized + 10 open + 20 lost" in text
    assert "samples train: granted 20 = finished 0 + returned 10 + held 10" in text
    assert "100 steps, 90 synchronized, 5 rounds" in text
    assert "steps/s" in text
    assert "NE" not in text
    assert "260 steps" in line_of(status)
    # The control: a job.
    other = shown(a_status())
    assert "examples/s" in other
    assert "steps" not in other


def test_metrics_of_each_loop() -> None:
    counts = flat_figures(hub_status(a_hub(), None, 0))
    assert counts["steps"] == 260
    assert counts["lost_steps"] == 20
    assert counts["loop/steps/loop-0"] == 100
    assert counts["loop/received/loop-1"] == 160_000
    assert counts["samples/held/train"] == 10
    known = [metric for metric in BY_ROLE["hub"] if metric.key in counts]
    # All but what is not known yet, the divergence, and what a server counts itself.
    assert {metric.key for metric in BY_ROLE["hub"]} - {metric.key for metric in known} <= {
        "divergence",
        "http_refused",
        "http_closed",
    }
    for metric in (*BY_LABEL["loop"], *BY_LABEL["stream"]):
        assert any(key.startswith(metric.key) for key in counts), metric
        assert full_name(metric) in EVERY_METRIC
    assert not any(key.startswith(("loop/", "samples/")) for key in flat_figures(a_status()))


def test_scalars_of_a_hub() -> None:
    status = hub_status(a_hub(), None, 0)
    assert scalars_of(status)["sync/rounds"] == 20
    faster = status.loops.model_copy(update={"per_second": 5.0}) if status.loops else None
    assert scalars_of(status.model_copy(update={"loops": faster}))["steps_per_second/all"] == 5.0


def test_the_folder_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = NodeSettings(loop_job({"sync.gap": 7}), bind="127.0.0.1:5")
    folders = [made.folder for made in (make_hub_folder(settings, None) for _ in range(2)) if made.folder]
    assert [str(folder) for folder in folders] == ["runs/hub", "runs/hub-2"]
    assert Path("runs/latest").resolve() == folders[1].resolve()
    announce(folders[1], "tcp://127.0.0.1:5")
    assert address_of(Path("runs/latest"), None) == "tcp://127.0.0.1:5"
    given = tmp_path / "a" / "b"
    assert make_hub_folder(settings, given).folder == given
    found, resume = saved_settings(given)
    assert resume is None
    assert (found.job.sync.gap, found.bind, found.folder, found.recover) == (7, "127.0.0.1:5", given, given)
    with pytest.raises(ClusterError, match="a: is not the folder of a hub"):
        saved_settings(tmp_path / "a")
    assert not (tmp_path / "a" / "latest").exists()
    with pytest.raises(JobFileError, match=r"b: is a folder with files in it; give a new or empty one"):
        make_hub_folder(settings, given)


def test_a_full_disk_is_said_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its folder is made, and as the book is written, once all have left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(main_loop, "run_interruptible", lambda _: LoopsReply(()))
    assert "full: cannot be written (No space left on device); free space" in said(
        "hub", "--book", "/dev/full", code=8
    )
    opened = Path.open

    def full(path: Path, *given: Any, **named: Any) -> Any:
        if path.name.startswith("hub.json"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", full)
    assert "hub.json: cannot be written (No space left on device); free space" in said("hub", code=8)
