"""A reader or a trainer dies after training: nothing is lost, and the held-out files are scored."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from shadowsync.nodes.coordinator.controller import JobController
from shadowsync.nodes.coordinator.evaluation import Evaluator
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.processes import until, wait_until
from shadowsync.tests.support.runs import EVAL_EXAMPLES, EXAMPLES

SECONDS = 120.0
CHANGES: dict[str, dict[str, Any]] = {
    "run": {"node_timeout_seconds": 2.0},
    "data": {"readers": 2, "span_bytes": 1 << 16},
}
PHASES: dict[str, tuple[type, str]] = {
    "closing": (JobController, "_drain"),
    "evaluation": (Evaluator, "_deliver"),
}


def ends_without(
    own: InProcessCluster, patch: pytest.MonkeyPatch, phase: str, roles: Iterable[str]
) -> ExitCode:
    """Starts the job, and kills a node of each of these roles as a phase of its end begins."""
    owner, name = PHASES[phase]
    work, due, done = getattr(owner, name), threading.Event(), threading.Event()

    async def lose_and_work(self: Any, *arguments: Any, **options: Any) -> Any:
        due.set()
        await until(done.is_set, "they are dead", SECONDS)
        return await work(self, *arguments, **options)

    patch.setattr(owner, name, lose_and_work)
    own.start()
    wait_until(due.is_set, "the job ends")
    for role, dead in Counter(roles).items():
        for node in own.nodes[role][:dead]:
            node.kill()
    done.set()
    return ExitCode(own.wait(SECONDS))


def test_a_trainer_while_the_held_out_files_are_scored(
    in_process: Callable[..., InProcessCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = in_process(CHANGES, supervised=True)
    code = ends_without(own, monkeypatch, "evaluation", ["trainer"])
    assert code == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    report = own.run.report
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == EXAMPLES
    assert report.eval is not None
    assert report.eval.examples == EVAL_EXAMPLES


@pytest.mark.parametrize("others", [(), ("trainer",)])
def test_an_embedding_node_while_the_held_out_files_are_scored(
    in_process: Callable[..., InProcessCluster], monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...]
) -> None:
    """With it a trainer, say, of the same machine."""
    own = in_process(CHANGES, supervised=True)
    code = ends_without(own, monkeypatch, "evaluation", ("embedding", *others))
    assert code == ExitCode.STOPPED_BY_DEATH, own.coordinator.text()
    report = own.run.report
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == EXAMPLES
    assert report.eval is None
    # It was written before.
    assert open_checkpoint(own.run.folder, verify=True)[1].examples_trained == EXAMPLES


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("dead", [1, 2])
def test_a_reader(
    in_process: Callable[..., InProcessCluster], monkeypatch: pytest.MonkeyPatch, phase: str, dead: int
) -> None:
    own = in_process(CHANGES, supervised=True)
    code = ends_without(own, monkeypatch, phase, ["reader"] * dead)
    report = own.run.report
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == EXAMPLES
    open_checkpoint(own.run.folder, verify=True)
    if dead == 1:
        assert code == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
        assert report.eval is not None
        assert report.eval.examples == EVAL_EXAMPLES
        return
    # Nobody can read the held-out files; what can be done is said.
    assert code == ExitCode.STOPPED_BY_DEATH
    assert "the last reader died, and the held-out files were not scored" in own.coordinator.text()
    assert "score the checkpoint with `shadowsync eval " in own.coordinator.text()


def test_a_trainer_whose_replica_is_scored(
    in_process: Callable[..., InProcessCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes the rest of its pass, which must not keep the readers from that of the other replica."""
    changes = CHANGES | {"sync": {"algorithm": "none"}, "trainer": {"count": 2, "batch": 8}}
    own = in_process(changes, supervised=True)
    deliver, due, dead = Evaluator._deliver, threading.Event(), threading.Event()

    async def lose_and_deliver(self: Evaluator, *arguments: Any) -> Any:
        due.set()
        await until(dead.is_set, "the trainer is dead", SECONDS)
        return await deliver(self, *arguments)

    monkeypatch.setattr(Evaluator, "_deliver", lose_and_deliver)
    own.start()
    wait_until(due.is_set, "the first replica is scored")
    own.nodes["trainer"][0].kill()
    dead.set()
    code, report = own.wait(SECONDS), own.run.report
    assert code == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    assert report.ledger.adds_up, report.ledger.identities
    assert report.eval is not None
    assert report.eval.examples == EVAL_EXAMPLES
