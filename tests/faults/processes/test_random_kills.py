"""Nodes of every role are killed at any moment of a job, one or two at once, and nothing is lost.

Each job has one kill or two at once, and later another one or two, which may meet the recovery from the
first. A job that stops is resumed, or started again if it has no checkpoint yet; it may stop for its last
trainer only if the center died too, or the job did not train. By hand over more jobs:
SHADOWSYNC_RANDOM_KILL_JOBS=300, SHADOWSYNC_RANDOM_KILL_SEED for other moments, and SHADOWSYNC_RANDOM_KILL_LOG
for a file with a line about each job.
"""

from __future__ import annotations

import json
import os
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from shadowsync.lab.chaos.ledger_check import problems_of
from shadowsync.nodes.coordinator.requests import RequestHandler
from shadowsync.nodes.coordinator.state.phases import JobPhase
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster
from shadowsync.tests.support.jobs.in_process_node import InProcess
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import going_on
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder, Settings

JOBS: Final = int(os.environ.get("SHADOWSYNC_RANDOM_KILL_JOBS", "6"))
SEED: Final = int(os.environ.get("SHADOWSYNC_RANDOM_KILL_SEED", "1"))
LOG: Final = os.environ.get("SHADOWSYNC_RANDOM_KILL_LOG")
ROLES: Final = ("coordinator", "reader", "trainer", "embedding", "sync")
PAIRED_SHARE: Final = 0.3
# A whole job has about so many requests; the second moment is later by up to half of them.
REQUESTS: Final = 45
FEW_EXAMPLES: Final = 6_000
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "run": {"node_timeout_seconds": 2.0},
    "data": {"readers": 2, "span_bytes": 1 << 16},
    "embedding": {"nodes": 2},
    "checkpoint": {"every_examples": FEW_EXAMPLES},
}
# Of a job whose last reader died when only the held-out files were to be scored.
TRAINED: Final = "all of the input is trained"
NO_TRAINER: Final = "the last trainer died"
WELL: Final = (ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS)


@dataclass(frozen=True)
class Moment:
    """Kills at once: as the coordinators have handled so many requests, of one node of each role."""

    requests: int
    roles: tuple[str, ...]


def moments_of(seed: int) -> list[Moment]:
    """Draw the moments of one job."""
    draw = random.Random(seed)
    first = draw.randrange(1, REQUESTS)
    return [
        Moment(at, tuple(draw.choices(ROLES, k=1 + (draw.random() < PAIRED_SHARE))))
        for at in (first, first + draw.randrange(1, REQUESTS // 2))
    ]


class RequestCount:
    """Requests that the coordinators have handled, and the phase of the job at that time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.phase = 0, ""
        handle = RequestHandler.handle

        async def handle_and_count(handler: RequestHandler, token: str, request: Any, number: int) -> Any:
            self.count += 1
            self.phase = handler._state.lifecycle.phase.value
            return await handle(handler, token, request, number)

        monkeypatch.setattr(RequestHandler, "handle", handle_and_count)


def kill(own: InProcessCluster, roles: tuple[str, ...], draw: random.Random) -> list[str]:
    """Kill one node of each role at once, then replace them as a supervisor does; return whom."""
    victims: list[InProcess] = []
    for role in roles:
        alive = [node for node in own.nodes[role] if node.poll() is None and node not in victims]
        victims += draw.sample(alive, min(1, len(alive)))
    together = [threading.Thread(target=node.kill) for node in victims]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    # The coordinator first: the next one is told of the others.
    for node in sorted(victims, key=lambda node: node.role != "coordinator"):
        if node.role == "coordinator":
            own.take_over()
        else:
            own.replace_dead(node)
    return [node.role for node in victims]


def run_with_kills(
    own: InProcessCluster, moments: list[Moment], requests: RequestCount, draw: random.Random
) -> tuple[int, list[str]]:
    """Run a job with its kills; return its exit code and whom they met, with the phase."""
    met: list[str] = []
    own.start()
    for moment in moments:
        wait_until(
            lambda at=moment.requests: requests.count >= at or own.coordinator.poll() is not None,  # type: ignore[misc]
            f"{moment.requests} requests are handled",
        )
        if own.coordinator.poll() is None:
            phase = requests.phase
            met.append(f"{' and '.join(kill(own, moment.roles, draw))}, {phase}")
    return own.wait(), met


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(SEED, SEED + JOBS))
def test_nothing_is_lost(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    requests, draw = RequestCount(monkeypatch), random.Random(seed)
    own = in_process(CHANGES, replaces=True)
    code, met = run_with_kills(own, moments_of(seed), requests, draw)
    codes, said = [code], [own.coordinator.text()]
    while code == ExitCode.STOPPED_BY_DEATH and TRAINED not in said[-1] and len(codes) < 3:
        own = in_process(_next_settings(own.run), replaces=True).start()
        code = own.wait()
        codes.append(code)
        said.append(own.coordinator.text())
    if LOG is not None:
        ne = own.run.ne if own.run.report.eval is not None else None
        line = {"seed": seed, "kills": met, "exit_codes": codes, "said": said, "ne": ne}
        with Path(LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    assert code in WELL or TRAINED in said[-1], (own.coordinator.text(), met)
    assert NO_TRAINER not in said[0] or TRAINED in said[0] or _may_stop_without_trainer(met), (said[0], met)
    assert problems_of(own.run.folder, EXAMPLES) == [], met
    assert code == ExitCode.OK or own.run.report.events, met


def _may_stop_without_trainer(met: list[str]) -> bool:
    """Whether the center may have died, the job did not train, or nobody replaced a trainer that joined.

    A coordinator that takes over declares joining nodes dead. A supervisor then starts others, the test does
    not.
    """
    return any(
        not one.endswith(f", {JobPhase.TRAINING.value}") or "sync" in one or "coordinator" in one
        for one in met
    )


def _next_settings(run: RunFolder) -> Settings:
    """Those of a job that goes on with the checkpoint of a stopped one, or begins anew without one."""
    return going_on(CHANGES, run) if (run.folder / "checkpoint").exists() else CHANGES
