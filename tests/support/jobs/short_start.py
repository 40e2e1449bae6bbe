"""Jobs with a start that one trainer goes through alone, short enough for a small job."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState

from .node_faults import Fault
from .runs import EXAMPLES

BATCH = 128
ALL_BATCHES = -(-EXAMPLES // BATCH)
# Without it all trainers begin at once, as they do in most tests: those are about several trainers.
WARM = {"warmup_iterations": 1}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "easgd": {"algorithm": "easgd", "nodes": 2},
    "bmuf": {"algorithm": "bmuf", "nodes": 0},
    "fixed bmuf": {"algorithm": "bmuf", "mode": "fixed", "every": 3, "nodes": 0},
    "fixed easgd": {"algorithm": "easgd", "mode": "fixed", "every": 3},
    "decoupled": {"algorithm": "decoupled", "nodes": 2},
    "none": {"algorithm": "none", "nodes": 0},
    "ds_sync": {"algorithm": "ds_sync", "nodes": 0},
    "gaia": {"algorithm": "gaia", "nodes": 0},
}


def algorithms(*first: str, without: str = "") -> list[Any]:
    """The names of all, of which only the first ones are in every run of the tests."""
    names = [name for name in ALGORITHMS if name not in (*first, without)]
    return [*first, *(pytest.param(name, marks=pytest.mark.matrix) for name in names)]


def short_start(batches: int) -> Fault:
    """No fault, but a start of so many batches of a small job that has `WARM`."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("shadowsync.pipeline.config.job.LEAST_START_EXAMPLES", batches * BATCH)

    return plant


class InOrder(list[str]):
    """No fault: notes which trainer has trained each batch, in the order in which a coordinator learns it.

    One that takes over learns all of it again.
    """

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        acknowledge = LedgerState.acknowledge

        def noting(ledger: LedgerState, trainer: str, *more: Any) -> Any:
            self.append(trainer)
            return acknowledge(ledger, trainer, *more)

        patch.setattr(LedgerState, "acknowledge", noting)
