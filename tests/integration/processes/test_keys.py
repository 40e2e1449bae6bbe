"""Whole jobs with a key: who has it takes part, and nobody else."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.keys.http_token import TOKEN_VARIABLE
from shadowsync.pipeline.wire.keys.job_key import INSECURE_VARIABLE, KEY_VARIABLE, JobKey
from shadowsync.pipeline.wire.sockets import bind
from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.processes import free_ports, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.outside.keyless_client import connect_without_key

TCP = {"network": {"transport": "tcp"}}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.key"
    JobKey.generate().write(path)
    return path


def test_a_job_with_a_key(in_process: ClusterMaker, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, str(key_file))
    report = finished(in_process, TCP).report
    assert report.examples.distinct == EXAMPLES
    assert report.sync.rounds
    assert not any("onnections" in text or "--insecure" in text for text in report.warnings)
    assert not any(node.refused_connections for node in report.nodes), "its own connections stay"


@pytest.mark.matrix
@pytest.mark.parametrize("algorithm", ["easgd", "ma"])
def test_whoever_knocks_without_the_key_is_in_the_report(
    in_process: ClusterMaker, key_file: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """One who has none, at every socket of the job as soon as it listens."""

    def bind_and_knock(socket: Any, address: str, *more: Any) -> str:
        endpoint = bind(socket, address, *more)
        if endpoint.startswith("tcp://"):
            assert connect_without_key(endpoint) == b""
        return endpoint

    monkeypatch.setenv(KEY_VARIABLE, str(key_file))
    for module in ("shadowsync.pipeline.wire.sockets", "shadowsync.nodes.control.control_socket"):
        monkeypatch.setattr(f"{module}.bind", bind_and_knock)
    report = finished(in_process, TCP | {"sync": {"algorithm": algorithm}}).report
    listening = {"reader", "embedding", "sync" if algorithm == "easgd" else "trainer"}
    for node in report.nodes:
        assert node.refused_connections == int(node.role in listening), node.name
    reported = [event.node for event in report.events if event.what.startswith("refused 1 connection ")]
    assert sorted(reported) == sorted(
        ["coordinator", *(node.name for node in report.nodes if node.role in listening)]
    )


def test_a_node_without_the_key_is_told_at_once(
    in_process: ClusterMaker, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, str(key_file))
    own = in_process(TCP)
    own.start_coordinator()
    other = tmp_path / "other.key"
    JobKey.generate().write(other)
    for given in (None, other):
        if given is None:
            monkeypatch.delenv(KEY_VARIABLE)
        else:
            monkeypatch.setenv(KEY_VARIABLE, str(given))
        node = own.join("reader")
        assert node.wait() == ExitCode.CLUSTER
        assert "the coordinator and this node have different keys, or only one has a key" in node.text()
    own.coordinator.interrupt()
    assert own.coordinator.wait() == ExitCode.INTERRUPTED


def test_processes_of_their_own_have_the_key_by_their_environment(
    processes: Callable[..., Cluster], key_file: Path
) -> None:
    own = processes({"embedding": {"nodes": 2}}, environment={KEY_VARIABLE: str(key_file)}).start()
    own.ended()


@pytest.mark.parametrize("role", ["coordinator", "reader"])
def test_off_loopback_without_a_key_nothing_starts(
    role: str, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.delenv(INSECURE_VARIABLE, raising=False)
    arguments = [role, str(job_file()), "--bind", "0.0.0.0", "--advertise", "127.0.0.1"]
    arguments += ["--join", "tcp://127.0.0.1:9"] if role != "coordinator" else []
    text = said(*arguments, code=ExitCode.USAGE)
    assert "without a key" in text
    assert "shadowsync key new FILE" in text
    assert "--insecure" in text


@pytest.mark.parametrize("command", [pytest.param("run", marks=pytest.mark.matrix), "coordinator"])
def test_off_loopback_without_a_key_there_is_no_page(
    command: str, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (KEY_VARIABLE, INSECURE_VARIABLE, TOKEN_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    whole = [sys.executable, "-m", "shadowsync", command, str(job_file()), "--web", "0.0.0.0:0"]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "anyone who can reach this address could read the job's state" in done.stderr
    assert "--http-token FILE" in done.stderr


def test_the_page_and_the_metrics_of_a_job_are_for_who_has_its_token(
    processes: Callable[..., Cluster], key_file: Path
) -> None:
    own, free_port = processes(environment={KEY_VARIABLE: str(key_file)}), free_ports(1)
    ports = ("--web", "0.0.0.0:0", "--metrics-port", str(free_port))
    own.start_coordinator("--bind", "0.0.0.0", "--advertise", "127.0.0.1", *ports)
    wait_until(lambda: "page: " in own.coordinator.text(), "the coordinator tells its page's address")
    (address,) = re.findall(r"page: (\S+)\n", own.coordinator.text())
    reported = CliRunner().invoke(main, ["key", "token", str(key_file)]).output.strip()
    page = urlsplit(address)
    assert page.query == f"token={reported}"
    for port, path in ((page.port, "/status.json"), (free_port, "/metrics")):
        url = f"http://127.0.0.1:{port}{path}"
        with pytest.raises(HTTPError) as caught:
            urlopen(url, timeout=60.0)
        with caught.value as refused:
            assert refused.code == 401
        with urlopen(Request(url, headers={"Authorization": f"Bearer {reported}"}), timeout=60.0) as reply:
            assert reply.status == 200
    own.coordinator.interrupt()
    assert own.coordinator.wait() == ExitCode.INTERRUPTED


def test_the_command_tells_the_token(key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = JobKey.read(key_file).http_token
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert CliRunner().invoke(main, ["key", "token", str(key_file)]).output == f"{token}\n"
    assert "no key was given" in said("key", "token", code=ExitCode.USAGE)
    monkeypatch.setenv(KEY_VARIABLE, str(key_file))
    assert CliRunner().invoke(main, ["key", "token"]).output == f"{token}\n"
    said("key", "token", str(tmp_path / "absent"), code=ExitCode.USAGE)


def test_without_a_key_by_wish_the_report_warns(processes: Callable[..., Cluster]) -> None:
    own = processes({"trainer": {"count": 1}, "sync": {"algorithm": "none"}})
    web = ("--web", "0.0.0.0:0")
    own.start_coordinator("--bind", "0.0.0.0", "--advertise", "127.0.0.1", "--insecure", *web)
    for role, count in own.job.expected.items():
        for _ in range(count):
            own.join(role)
    own.ended()
    sockets, page = own.run.report.warnings[:2]
    assert sockets.startswith("Connections to tcp://0.0.0.0:")
    assert page == "The page at 0.0.0.0:0 was open to anyone who could reach it (--insecure)."


def test_the_command_makes_a_key_once(tmp_path: Path) -> None:
    path = tmp_path / "new.key"
    text = said("key", "new", str(path))
    assert str(path) in text
    key = JobKey.read(path)
    assert key.secret.hex() not in text
    said("key", "new", str(path), code=ExitCode.USAGE)
    said("key", "new", str(path), "--reuse")
    assert JobKey.read(path) == key
