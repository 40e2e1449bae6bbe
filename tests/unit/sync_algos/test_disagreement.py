"""How trainers that only ever meet in small groups come to agree, and that fixed groups never do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from shadowsync.sync_algos.base import Algorithm
from shadowsync.sync_algos.contract.grouping import fixed, sites
from shadowsync.sync_algos.ds_sync import DSSync, DSSyncOptions
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.tree import Tree, TreeOptions

SIZE, ROUNDS = 32, 40
SEEDS = [1, 2, 3]


def _disagreements(make: Callable[[], Algorithm], trainers: int, seed: int) -> tuple[list[float], float]:
    """The distance of the replicas from their mean after each round, as part of what it was; and how far
    their mean has moved."""
    cluster = MemoryCluster(make, torch.zeros(SIZE), trainers, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for replica in cluster.replicas:
        replica.values.copy_(torch.randn(SIZE, generator=generator))
    found = []
    mean = torch.stack([replica.values for replica in cluster.replicas]).mean(0)
    for _ in range(ROUNDS + 1):
        together = torch.stack([replica.values for replica in cluster.replicas])
        found.append(float((together - together.mean(0)).norm()))
        assert set(cluster.round().values()) == {True}
    return [one / found[0] for one in found], float((together.mean(0) - mean).norm())


def _ds(size: int, reshuffle: bool) -> Callable[[], Algorithm]:
    options = DSSyncOptions(elastic_rate=1.0, group_size=size, reshuffle=reshuffle)
    return lambda: DSSync(options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("trainers", "size"), [(8, 2), (8, 4), (9, 3), (7, 2), (4, 2)])
def test_ds_sync_decays_with_reshuffling_and_plateaus_without(trainers: int, size: int, seed: int) -> None:
    anew, drift = _disagreements(_ds(size, True), trainers, seed)
    kept, _ = _disagreements(_ds(size, False), trainers, seed)
    assert anew[-1] < 1e-3
    assert anew[10] < 0.5 * anew[1]
    # After one round a fixed group agrees, and what its mean lacks to the mean of all stays for ever.
    assert kept[-1] > 0.15
    assert kept[-1] == pytest.approx(kept[1], rel=1e-5)
    assert drift < 1e-4, "the mean of all stays where it is"


@pytest.mark.parametrize(("trainers", "size"), [(8, 2), (7, 3)])
def test_sites_agree_at_once_and_all_in_the_round_of_all(trainers: int, size: int) -> None:
    options = TreeOptions(elastic_rate=1.0, site_size=size, site_every=4)
    found, drift = _disagreements(lambda: Tree(options), trainers, 1)
    # Rounds 1 to 3 are of the sites; what their means lack to the mean of all stays until the fourth.
    assert found[1] > 0.15
    assert found[3] == pytest.approx(found[1], rel=1e-5)
    assert found[4] < 1e-5
    assert drift < 1e-4


def test_nobody_changes_sites_when_one_leaves() -> None:
    """Sites go by the trainers' indexes; groups cut of those who are left, the control, would shift."""
    left = (0, 2, 3, 4, 5)
    assert sites(2, 4)(left, 0, 1) == ((0,), (2, 3), (4, 5))
    assert sites(2, 4)(left, 3, 1) == (left,)
    assert fixed(2)(left, 0, 1) == ((0, 2), (3, 4), (5,))
