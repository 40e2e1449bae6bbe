"""One job under everything that can watch it: metrics of every node, the page in a browser, `top`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from shadowsync.cli import main
from shadowsync.pipeline.wire.control.messages import GetStatus
from shadowsync.pipeline.wire.rpc.channel import RemoteError
from shadowsync.pipeline.wire.rpc.client import open_channel
from shadowsync.tests.support.coordinator.every_metric import EVERY_METRIC, full_name
from shadowsync.tests.support.jobs.processes import Starting, free_ports, wait_until
from shadowsync.tests.support.jobs.runs import Settings, small_job, write_job
from shadowsync.tests.support.jobs.supervised import Supervised
from shadowsync.tests.support.outside.browser import browser, find_browser
from shadowsync.watch.exporters.metric_names import BY_LABEL, BY_ROLE, HUB
from shadowsync.watch.status import NodeStatus, Status, read_status

ROLES = ["coordinator", "reader", "trainer", "trainer", "embedding", "sync"]
# What only some jobs have: of a validation, of several labels.
RARE = {
    "shadowsync_job_validation_score",
    # Of algorithms that merge.
    "shadowsync_merges_total",
    "shadowsync_late_merges_total",
    *(full_name(metric) for metric in BY_LABEL["trainer"]),
    # Of algorithms whose rounds begin when all are ready.
    "shadowsync_sync_waited_seconds_total",
    *(full_name(metric) for metric in BY_LABEL["label"]),
}
# What only a hub of attached loops has.
OF_HUBS = {full_name(metric) for metric in (*HUB, *BY_LABEL["loop"], *BY_LABEL["stream"])} - {
    full_name(metric) for metric in BY_ROLE["coordinator"]
}
PHONE, SCREEN = 390, 1280


class Watched(Supervised):
    """A run that is watched.

    Attributes:
        first_port: of the nodes' metrics.
    """

    first_port: int = 0

    @property
    def note(self) -> dict[str, str]:
        """What coordinator.json says."""
        text = (self.run.folder / "coordinator.json").read_text(encoding="utf-8")
        note: dict[str, str] = json.loads(text)
        return note


@pytest.fixture(scope="module")
def watched(
    starting: Starting, click_log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """A job of minutes, which the last test of this file interrupts."""
    folder = tmp_path_factory.mktemp("watched")
    port = free_ports(len(ROLES))
    more: Settings = {
        "data": {"epochs": 500},
        "watch": {"web": "0", "tensorboard": True, "metrics_port": port},
        "tables": {"C1": {"kind": "growing"}},
        # Half of the rows, so that others lie on disk.
        "embedding": {"memory_bytes": "1MB"},
    }
    job = write_job(folder / "job.toml", small_job(click_log, folder / "runs"), more)
    with starting(folder) as starter:
        run = Watched(starter.fork("run", str(job)), folder / "runs")
        run.first_port = port
        run.wait_for_batches(60)
        yield run
        end(run)


def end(run: Watched) -> None:
    """Interrupts it, if nobody did, and waits for the end."""
    if run.process.poll() is None:
        run.process.signal(signal.SIGINT)
        assert run.process.wait() == 130


def top_once(run: Watched) -> Status:
    """What `top --once --json` says."""
    done = CliRunner().invoke(main, ["top", str(run.run.folder), "--once", "--json"])
    assert done.exit_code == 0, done.output
    return read_status(json.loads(done.stdout))


def trainers_of(status: Status) -> list[NodeStatus]:
    return [node for node in status.nodes if node.role == "trainer"]


def pairs_of(status: Status) -> set[tuple[str, str]]:
    """The links that bytes went over, both ways."""
    return {(edge.source, edge.target) for edge in status.edges if edge.up > 0 and edge.down > 0}


def figures_of(status: Status) -> list[float | None]:
    """What is above 0 as soon as it is measured."""
    trainers = [(one.examples_per_second, one.rounds) for one in trainers_of(status)]
    return [
        *(status.quality.ne, status.quality.ne_recent, status.speed.now, status.speed.mean),
        *(status.sync.gap_mean, status.sync.sent_bytes_per_second, status.sync.divergence),
        *(status.embedding.lookups_per_second, status.embedding.pushes_per_second),
        *(status.embedding.memory_share, status.embedding.disk_wait_share),
        *(status.embedding.staleness_mean, *(figure for pair in trainers for figure in pair)),
    ]


def test_the_status_has_every_figure(watched: Watched) -> None:
    statuses: list[Status] = []
    pairs = {
        (trainer, other)
        for trainer in ("trainer-0", "trainer-1")
        for other in ("reader-0", "embedding-0", "sync-0")
    }
    curves = {"ne", "divergence", "throughput/trainer-0", "gap/trainer-1"}

    def measured() -> bool:
        status = top_once(watched)
        statuses.append(status)
        return all(figures_of(status)) and pairs <= pairs_of(status) and curves <= set(status.curves)

    wait_until(measured, "all was measured")
    status = statuses[-1]
    assert status.phase == "training"
    assert status.progress.exact
    assert status.progress.total == 500 * 20_000
    assert [node.role for node in status.nodes] == sorted(ROLES)
    assert all(node.alive and node.host and node.pid and node.memory_bytes for node in status.nodes)
    assert all(trainer.wait is not None for trainer in trainers_of(status))
    assert pairs_of(status) == pairs
    assert min(figure or 0.0 for figure in figures_of(status)) > 0
    # The trainers' own counts against the coordinator's: nearly the same, from two processes.
    speeds = sum(trainer.examples_per_second or 0.0 for trainer in trainers_of(status))
    assert status.speed.now == pytest.approx(speeds)


def test_every_node_serves_the_metrics_of_its_role(watched: Watched) -> None:
    wanted_of = {role: {full_name(metric) for metric in BY_ROLE[role]} - RARE for role in ROLES}
    served: dict[str, set[str]] = {role: set() for role in ROLES}
    every = set(EVERY_METRIC) - OF_HUBS

    def all_are_served() -> bool:
        for place, role in enumerate(ROLES):
            url = f"http://127.0.0.1:{watched.first_port + place}/metrics"
            with urllib.request.urlopen(url, timeout=60.0) as response:
                families = list(text_string_to_metric_families(response.read().decode()))
            samples = [sample for family in families for sample in family.samples]
            assert {sample.labels["role"] for sample in samples} == {role}
            assert {sample.labels["run"] for sample in samples} == {"small"}
            served[role].update(sample.name for sample in samples)
        assert set().union(*served.values()) <= every
        return RARE | set().union(*served.values()) == every and all(
            wanted <= served[role] for role, wanted in wanted_of.items()
        )

    # What was not measured yet is not served, nor what was measured since its node counted last.
    wait_until(all_are_served, "all is measured and served")
    for role, names in served.items():
        wanted = wanted_of[role]
        links = {name for name in names if "_link_" in name}
        growing = {name for name in names if "_growing_" in name}
        shared = {name for name in names if "_shared_rows_" in name}
        assert names - links - growing - shared == wanted, role
        assert bool(links) == (role == "trainer")
        assert bool(growing) == (role == "embedding")
        assert bool(shared) == (role == "reader")


def test_a_question_that_is_none_is_refused_and_the_job_goes_on(watched: Watched) -> None:
    async def ask(**wrong: Any) -> None:
        async with open_channel(watched.note["endpoint"]) as channel:
            await channel.call(GetStatus(**wrong), timeout_seconds=60.0)

    questions: list[dict[str, Any]] = [{"curves": 3}, {"curves": {"ne": [1]}}, {"incidents": "x"}]
    for wrong in questions:
        with pytest.raises(RemoteError, match=f"status: {next(iter(wrong))}"):
            asyncio.run(ask(**wrong))
    asyncio.run(ask())


def test_top_on_a_terminal_leaves_it_clean(watched: Watched) -> None:
    ours, theirs = pty.openpty()
    text = b""
    try:
        command = [sys.executable, "-m", "shadowsync.cli", "top", "--join", watched.note["endpoint"]]
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "40"}
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        while b"trainer-1" not in text or text.count(b"\x1b[2K") < 5:
            text += os.read(ours, 1 << 16)
        process.send_signal(signal.SIGINT)
        # Once closed on the other side, a terminal has no end of file. One that nobody reads is full soon,
        # and whoever writes to it waits.
        with contextlib.suppress(OSError):
            while more := os.read(ours, 1 << 16):
                text += more
        assert process.wait(60.0) == 130
    finally:
        os.close(ours)
    assert text.rindex(b"\x1b[?25h") > text.rindex(b"\x1b[?25l")
    assert b"Traceback" not in text
    last = text[text.rindex(b"\x1b[?25h") :]
    assert last.count(b"\x1b[2K") > 10, "the table is erased"
    assert re.search(rb"\x1b\[2Kshadowsync top: interrupted\s*$", last), last


@pytest.mark.skipif(find_browser() is None, reason="there is no Chromium here")
def test_the_page_in_a_browser_to_the_end(watched: Watched, tmp_path: Path) -> None:
    page = top_once(watched).page

    async def watch_to_the_end() -> None:
        async with browser(tmp_path / "profile") as tab:
            await tab.open_page(page, width=SCREEN)
            await tab.until("document.body.dataset.ready === 'yes'")
            await tab.until("document.querySelectorAll('.uplot').length === 4")
            await tab.until("document.querySelectorAll('#topology .rate').length >= 6")
            assert await tab.value("document.querySelectorAll('#topology rect').length") == len(ROLES)
            assert await tab.value("document.getElementById('phase').textContent") == "training"
            assert "small" in await tab.value("document.title")
            before = await tab.value("document.getElementById('done').textContent")
            await tab.until(f"document.getElementById('done').textContent !== {json.dumps(before)}")
            await tab.size(PHONE, 844)
            await tab.until("document.documentElement.scrollWidth <= innerWidth")
            await tab.picture(tmp_path / "phone.png")
            watched.process.signal(signal.SIGINT)
            await tab.until("document.getElementById('phase').textContent === 'ended'")
            assert "interrupted" in await tab.value("document.getElementById('notice').textContent")
            assert await asyncio.to_thread(watched.process.wait) == 130
            # Nobody serves it any more, and it stands.
            assert await tab.value("document.querySelectorAll('.uplot').length") == 4
            await tab.size(SCREEN, 900)
            await tab.picture(tmp_path / "ended.png")
            assert tab.complaints == []
            assert {url.split("/")[2] for url in tab.requests} == {page.split("/")[2]}, (
                "nothing from elsewhere"
            )

    asyncio.run(watch_to_the_end())
    for name in ("phone.png", "ended.png"):
        assert (tmp_path / name).stat().st_size > 20_000
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page, timeout=60.0)
    assert len(list((watched.run.folder / "tensorboard").iterdir())) == 1


def test_top_of_a_job_that_has_ended_says_so(watched: Watched) -> None:
    end(watched)
    done = CliRunner().invoke(main, ["top", str(watched.run.folder)])
    assert done.exit_code == 4
    assert "no coordinator answered" in done.stderr
    assert done.stderr.count("\n") == 1
