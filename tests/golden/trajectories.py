"""Trajectories of every algorithm on a quadratic, in both modes: what the golden files hold.

Three trainers descend on ½ Σ h (w - a)², each toward an `a` of its own and at a speed of its own. At a fixed
rate a trainer steps, then waits for a round. In shadow mode it steps while the round is under way, after its
values have gone out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from shadowsync.sync_algos.base import Algorithm, ModelOrigin
from shadowsync.sync_algos.catalog.registry import ALGORITHMS, find_algorithm
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.memory.faults import Phase
from shadowsync.tests.support.sync.example_algorithms import DILOCO, DOWNPOUR, SYMMETRIC_EASGD
from shadowsync.tests.support.sync.example_algorithms import FOLDER as EXAMPLES

FOLDER = Path(__file__).parent / "recorded"
MODES = ("fixed", "shadow")
TRAINERS, ROUNDS, RATE = 3, 8, 0.2
CURVATURE = torch.tensor([1.0, 0.3, 2.0, 0.05])
TARGETS = torch.tensor([[1.0, -2.0, 0.5, 4.0], [2.0, 0.0, -1.5, 3.0], [-1.0, 1.0, 1.0, -6.0]])
# Equal up to the order in which a machine adds float32.
TOLERANCE = {"relative": 1e-5, "absolute": 1e-6}

# BMUF of Zheng et al.
PAPER: dict[str, Any] = {"block_momentum": 0.0, "elastic_rate": 0.5, "form": "interpolate"}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "easgd": [{}, {"elastic_rate": 0.2}],
    "decoupled": [{}, {"block_momentum": 0.0}, {"block_momentum": "auto", "eta": 0.5}],
    "easgd_symmetric": [{}, {"elastic_rate": 0.2}],
    "downpour": [{}, {"rate": 0.25}],
    "diloco": [{}, {"outer_lr": 1.0, "outer_momentum": 0.0}],
    "ma": [{}, {"elastic_rate": 1.0}, {"form": "keep"}, {"weighted": True}],
    "bmuf": [
        {},
        PAPER,
        PAPER | {"eta": 0.5, "form": "keep"},
        PAPER | {"block_momentum": 0.5},
        PAPER | {"block_momentum": "auto", "elastic_rate": 1.0},
        PAPER | {"block_momentum": 0.5, "nesterov": True, "elastic_rate": 1.0},
    ],
    "gaia": [{}, {"threshold": 0.5}, {"threshold": 0.5, "combine": "mean"}],
    "ds_sync": [{}, {"reshuffle": False}],
    "tree": [{"site_every": 3}, {"site_every": 3, "form": "keep"}, {"site_every": 100}],
    "none": [{}],
}


PLUG_INS = (DILOCO, DOWNPOUR, SYMMETRIC_EASGD) if EXAMPLES.is_dir() else ()
CLASSES: dict[str, type[Algorithm]] = ALGORITHMS | {
    cls.name: cls for cls in (find_algorithm(place) for place in PLUG_INS)
}
"""The built-in algorithms, and the examples."""


def file_of(name: str, mode: str) -> Path:
    """Where one algorithm's trajectories in one mode lie."""
    return FOLDER / f"{name}-{mode}.json"


def trajectories(name: str, mode: str) -> dict[str, Any]:
    """What one golden file holds: for each set of options, the models after each round."""
    found = {json.dumps(options, sort_keys=True): _run(name, options, mode) for options in OPTIONS[name]}
    return {"algorithm": name, "mode": mode, "tolerance": TOLERANCE, "trajectories": found}


def _run(name: str, options: dict[str, Any], mode: str) -> list[dict[str, Any]]:
    cluster = MemoryCluster(
        lambda: CLASSES[name](CLASSES[name].Options(**options)), torch.zeros(4), TRAINERS, seed=1
    )
    if mode == "shadow":
        cluster.on_phase = lambda index, phase: _descend(cluster, index, index + 1, phase)
    rounds = []
    for _ in range(ROUNDS):
        for index in range(TRAINERS):
            _descend(cluster, index, 1 if mode == "shadow" else index + 2)
        if mode == "fixed" and CLASSES[name].needs_center:
            # Each worker has rounds of its own, one after the other.
            for index in range(TRAINERS):
                cluster.round(who=[index])
        else:
            cluster.round()
        rounds.append(_models(cluster, name))
    return rounds


def _descend(cluster: MemoryCluster, index: int, steps: int, phase: Phase = Phase.GIVING) -> None:
    replica = cluster.replicas[index]
    for _ in range(steps if phase is Phase.GIVING else 0):
        replica.values.sub_(RATE * CURVATURE * (replica.values - TARGETS[index]))
        replica.trained_examples += 1


def _models(cluster: MemoryCluster, name: str) -> dict[str, Any]:
    models: dict[str, Any] = {"replicas": [_numbers(replica.values) for replica in cluster.replicas]}
    if CLASSES[name].model is ModelOrigin.CENTER:
        models["center"] = _numbers(cluster.center.values)
    if CLASSES[name].model is ModelOrigin.GLOBAL:
        models["global"] = _numbers(cluster.algorithms[0].global_model())
    return models


def _numbers(values: torch.Tensor) -> list[float]:
    return [float(f"{value:.9g}") for value in values.tolist()]
