"""A job under a flood of hostile messages, to every socket: it ends as it does undisturbed.

By hand over more of them: SHADOWSYNC_FUZZ_EPOCHS=500 and SHADOWSYNC_FUZZ_SEED for others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.deterministic import deterministic, digests, was_trained
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

from .hostile_messages import HostileMessages

EPOCHS = int(os.environ.get("SHADOWSYNC_FUZZ_EPOCHS", "3"))
SEED = int(os.environ.get("SHADOWSYNC_FUZZ_SEED", "1"))
# The flood takes as much of a machine as it gets.
SECONDS = 200.0 + 2.0 * EPOCHS
pytestmark = pytest.mark.timeout(4.0 * SECONDS)
SYNC = {
    "easgd": {"algorithm": "easgd", "mode": "fixed", "every": 2},
    "ma": {"algorithm": "ma", "mode": "fixed", "every": 2},
}


class Attack:
    """A process that sends messages to the sockets it is told of.

    Attributes:
        counts: at the end, of each socket how many messages were sent, and how many answered.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._orders = process, present(process.stdin)
        self.counts: list[tuple[int, int]] = []

    def add(self, endpoint: str) -> None:
        """Attack this one, too."""
        self._orders.write(f"{endpoint}\n")
        self._orders.flush()

    def end(self) -> None:
        """End it, and take its counts."""
        said, _ = self._process.communicate(timeout=120.0)
        assert self._process.returncode == 0
        self.counts = [(int(sent), int(replied)) for sent, replied in map(str.split, said.splitlines())]


@contextmanager
def attack() -> Iterator[Attack]:
    """Attack while the block lasts."""
    command = [sys.executable, "-m", "shadowsync.tests.fuzz.attack", str(SEED)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert present(process.stdout).readline() == "ready\n"
        running = Attack(process)
        try:
            yield running
        finally:
            running.end()


def test_the_same_seed_gives_the_same_messages() -> None:
    one, same, other = HostileMessages(3, ["x"]), HostileMessages(3, ["x"]), HostileMessages(4, ["x"])
    first = [one.next() for _ in range(200)]
    assert first == [same.next() for _ in range(200)]
    assert first != [other.next() for _ in range(200)]


@pytest.mark.matrix
@pytest.mark.parametrize("algorithm", ["easgd", "ma"])
def test_a_flood_of_hostile_messages_changes_nothing(in_process: ClusterMaker, algorithm: str) -> None:
    def job(name: str) -> InProcessCluster:
        settings = deterministic({"sync": SYNC[algorithm]}, 5, name)
        return in_process({**settings, "data": {"epochs": EPOCHS}})

    calm = job("calm").start()
    assert calm.wait(SECONDS) == 0, calm.coordinator.text()
    own = job("attacked")
    own.start_coordinator()
    with attack() as attacker:
        attacker.add(own.endpoint)
        for role, count in own.job.expected.items():
            for _ in range(count):
                node = own.join(role)
                # Trainers listen only for each other.
                if role != "trainer" or algorithm == "ma":
                    attacker.add(node.settings.listen_at())
        wait_until(lambda: own.coordinator.poll() is not None, "the job ends", SECONDS)
    assert own.wait(SECONDS) == 0, own.coordinator.text()
    report = own.run.report
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == EPOCHS * EXAMPLES
    assert report.examples.returned == 0
    assert was_trained(own.run)
    assert digests(own.run) == digests(calm.run)
    # Each socket was attacked, and refused what came: most of it is answered.
    if "SHADOWSYNC_FUZZ_EPOCHS" in os.environ:
        print(attacker.counts)
    assert all(sent > 0 and replied > 0 for sent, replied in attacker.counts), attacker.counts
