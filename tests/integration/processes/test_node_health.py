"""Health and `--advertise auto` of a whole job's processes, each with a place of its own to answer at."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from shadowsync.nodes.runtime.health import VARIABLE, request_health
from shadowsync.pipeline.wire.keys.job_key import KEY_VARIABLE, JobKey
from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.processes import wait_until

ANYWHERE = ("--bind", "0.0.0.0", "--advertise", "auto")


def test_nodes_that_listen_everywhere_are_found_and_tell_how_they_are(
    processes: Callable[..., Cluster], tmp_path: Path
) -> None:
    own = processes({"data": {"epochs": 10_000}})
    places = {}
    key_file = tmp_path / "job.key"
    JobKey.generate().write(key_file)

    def replying(name: str) -> None:
        places[name] = tmp_path / f"{name}.sock"
        own.environment = {VARIABLE: str(places[name]), KEY_VARIABLE: str(key_file)}

    replying("coordinator")
    own.start_coordinator("--bind", "0.0.0.0", "--advertise", "127.0.0.1")
    for role, count in own.job.expected.items():
        for index in range(count):
            replying(f"{role}-{index}")
            own.join(role, *ANYWHERE)
    own.wait_for_batches(30)
    for name, path in places.items():
        found = request_health(path, 60.0)
        assert found.healthy, (name, found)
        assert found.text.startswith(f"{name.partition('-')[0]}: ")
    reported = request_health(places["coordinator"], 60.0).figures
    assert reported["there"] == reported["expected"]
    assert reported["trained"] > 0

    (trainer, *_) = own.nodes["trainer"]
    trainer.signal(signal.SIGSTOP)
    assert not request_health(places["trainer-0"], 0.5).healthy
    trainer.signal(signal.SIGCONT)
    wait_until(lambda: request_health(places["trainer-0"], 60.0).healthy, "the trainer answers again")

    own.coordinator.signal(signal.SIGTERM)
    assert own.wait() == 130, own.coordinator.text()
    assert not request_health(places["trainer-0"], 1.0).healthy
    assert [path for path in places.values() if path.exists()] == []
