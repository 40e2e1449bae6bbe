"""Whole jobs whose trainers synchronize with each other, and no sync node is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.allreduce.transport import AllReduceGroup, AllReduceTransport
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.report.document import Report
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, finished
from shadowsync.tests.support.jobs.in_process_node import current_node
from shadowsync.tests.support.jobs.runs import EXAMPLES

OFTEN = {"duty": 1.0}
Members = tuple[int, ...]
Met = dict[int, list[Members]]


def tensors(own: InProcessCluster, role: str, name: str) -> np.ndarray:
    """A tensor of the checkpoint, flat."""
    folder, manifest = open_checkpoint(own.run.folder, verify=True)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == role])
    values: np.ndarray = np.array(reader.read(name)).reshape(-1)
    return values


def ordered(values: np.ndarray) -> np.ndarray:
    """Sorted, and without the zeros: a file by name has another order than the buffer, and no padding."""
    flat = np.sort(values.reshape(-1))
    return np.asarray(flat[flat != 0.0])


def dense(own: InProcessCluster) -> np.ndarray:
    """All elements of the saved dense model."""
    folder, manifest = open_checkpoint(own.run.folder, verify=True)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == "dense"])
    return ordered(np.concatenate([np.array(reader.read(name)).reshape(-1) for name in reader.names]))


@pytest.mark.parametrize(
    "mode",
    [OFTEN, pytest.param({"mode": "fixed", "every": 5}, marks=pytest.mark.matrix)],
    ids=["shadow", "fixed"],
)
def test_under_ma_the_mean_of_the_replicas_comes_out(cluster: ClusterMaker, mode: dict[str, object]) -> None:
    # So little that the replicas stay apart, also of trainers that are without input for some rounds.
    options = {"elastic_rate": 0.1}
    own = cluster({"trainer": {"count": 3}, "sync": {"algorithm": "ma", "options": options} | mode}).start()
    assert "sync" not in own.nodes
    report = own.ended()
    assert report.examples.trained == EXAMPLES
    assert report.model_saved == "the mean of the replicas (ma)"
    assert own.run.evaluation.model == "the mean of the replicas (ma)"
    # The closing rounds alone: how many there are in the background before is up to the machine.
    assert report.sync.rounds >= 3
    assert report.sync.bytes > 0
    replicas = [tensors(own, f"trainer-{index}", "replica") for index in range(3)]
    if own.job.sync.mode == "fixed":
        # No one of them is the mean. In the background they may have come together after the last batch.
        assert np.abs(replicas[0] - replicas[1]).max() > 1e-4
    mean = np.mean(np.stack(replicas).astype(np.float64), axis=0).astype(np.float32)
    np.testing.assert_allclose(dense(own), ordered(mean), rtol=0, atol=1e-7)
    again = evaluate_run(own.run.folder, own.job.data.eval_path)
    assert again["ne"] == pytest.approx(own.run.ne, abs=1e-6)


def test_at_a_fixed_rate_all_trainers_have_the_same_rounds(cluster: ClusterMaker) -> None:
    changes = {"trainer": {"workers": 2}, "sync": {"algorithm": "ma", "mode": "fixed", "every": 5}}
    run = finished(cluster, changes)
    report = run.report
    rounds = report.sync.rounds
    batches = run.batches()
    # A round for every 5 iterations of each of 4 workers, more where one of them had no input, and one
    # closing round; both trainers count it.
    assert rounds % 2 == 0
    assert rounds // 2 >= batches // (5 * 4)
    assert present(report.sync.gap_max) <= 2 * 5


@pytest.mark.matrix
def test_under_bmuf_the_global_model_comes_out(cluster: ClusterMaker) -> None:
    # At a rate of 1 the replicas would end as the global model, and at a high one they could after the last
    # batch, when rounds go on.
    options = {"eta": 0.5, "block_momentum": 0.3, "elastic_rate": 0.05}
    own = cluster({"sync": {"algorithm": "bmuf", "options": options} | OFTEN}).start()
    report = own.ended()
    assert report.model_saved == "the global model (bmuf)"
    assert own.run.evaluation.model == "the global model (bmuf)"
    assert not [event for event in report.events if "another model" in event.what]
    folder, manifest = open_checkpoint(own.run.folder, verify=True)
    state = TensorReader(folder, [entry for entry in manifest.files if entry.role == "algorithm"])
    saved = dense(own)
    assert any(np.array_equal(ordered(np.array(state.read(name))), saved) for name in state.names)
    assert not np.array_equal(ordered(tensors(own, "trainer-0", "replica")), saved)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Met:
    """Who was in the groups that each trainer was given a result of: by trainer, in order."""
    found: Met = {}
    reduce = AllReduceTransport.reduce

    async def noted(self: AllReduceTransport, group: AllReduceGroup, *arguments: Any, **more: Any) -> Any:
        result = await reduce(self, group, *arguments, **more)
        node = present(current_node())
        found.setdefault(int(node.name.removeprefix("trainer-")), []).append(group.members)
        return result

    monkeypatch.setattr(AllReduceTransport, "reduce", noted)
    return found


def alike(cluster: ClusterMaker, sync: dict[str, Any]) -> tuple[Report, set[Members]]:
    """The report of a job of four trainers, and which of them end with equal replicas, to the bit."""
    own = cluster({"trainer": {"count": 4}, "sync": {"mode": "fixed", "every": 1} | sync}).start()
    own.ended()
    replicas = [tensors(own, f"trainer-{index}", "replica").tobytes() for index in range(4)]
    return own.report, {tuple(at for at, other in enumerate(replicas) if other == one) for one in replicas}


def assert_equal_in_last_groups(met: Met, equal: set[Members]) -> None:
    """More may be equal: nothing is trained between the last batch's round and the closing one."""
    assert set(met) == {0, 1, 2, 3}
    for groups in met.values():
        assert any(set(groups[-1]) <= set(members) for members in equal), (groups[-1], equal)


# All of the mean is taken, so that those who meet in the closing round end with one replica.
ALL_OF_IT = {"elastic_rate": 1.0}


def test_groups_that_change_from_round_to_round(cluster: ClusterMaker, met: Met) -> None:
    report, equal = alike(cluster, {"algorithm": "ds_sync", "options": ALL_OF_IT})
    assert present(report.eval).model == "the mean of the 4 replicas' own scores (ds_sync)"
    assert report.sync.rounds > 4
    for index, groups in met.items():
        assert {len(group) for group in groups} == {2}
        assert set().union(*groups) == {0, 1, 2, 3}, f"trainer {index} has met every other one"
    assert_equal_in_last_groups(met, equal)


@pytest.mark.matrix
def test_groups_that_stay_never_meet(cluster: ClusterMaker, met: Met) -> None:
    """The control of the test above: others are not met, and replicas not equal, as a matter of course."""
    _, equal = alike(cluster, {"algorithm": "ds_sync", "options": ALL_OF_IT | {"reshuffle": False}})
    assert equal == {(0, 1), (2, 3)} == {group for groups in met.values() for group in groups}


@pytest.mark.matrix
@pytest.mark.parametrize(
    "site_every", [2, 1_000_000], ids=["a tree", "the control, of which sites stay apart"]
)
def test_a_tree_of_two_sites(cluster: ClusterMaker, met: Met, site_every: int) -> None:
    report, equal = alike(cluster, {"algorithm": "tree", "options": ALL_OF_IT | {"site_every": site_every}})
    assert report.model_saved == "the mean of the replicas (tree)"
    assert report.sync.rounds > 4
    sites, everyone = [(0, 1), (2, 3)], (0, 1, 2, 3)
    # The last one is for the model that is saved, and no round.
    assert {groups.pop() for groups in met.values()} == {everyone}
    for index, groups in met.items():
        assert set(groups) == {sites[index // 2]} | ({everyone} if site_every == 2 else set())
    assert_equal_in_last_groups(met, equal)
    assert site_every == 2 or equal == set(sites)


@pytest.mark.matrix
def test_what_is_not_significant_does_not_travel(cluster: ClusterMaker) -> None:
    """By the counts of the links; the controls filter nothing, or send the zeros: 0.1, 2.7 and 4 bytes."""

    def bytes_of_a_value(threshold: float, codec: str) -> float:
        options = {"threshold": threshold, "combine": "mean"}
        run = finished(
            cluster,
            {
                "trainer": {"batch": 256},
                "sync": {"algorithm": "gaia", "mode": "fixed", "every": 1, "options": options},
                "codecs": {"peers_up": codec, "peers_down": codec},
            },
        )
        report = run.report
        assert run.evaluation.model == "the global model (gaia)"
        assert report.sync.rounds > 4
        links = report.sync.links.values()
        # Of what was sent, so that a round more, or a message sent again, is no matter.
        return 4 * sum(link.bytes for link in links) / sum(link.float32_bytes for link in links)

    # At this threshold no element is significant whose weight is not 0, however training goes.
    assert bytes_of_a_value(1e30, "sparse") < 0.4
    assert bytes_of_a_value(0.0, "sparse") > 1.0
    assert bytes_of_a_value(1e30, "float32") >= 4.0


@pytest.mark.matrix
def test_one_trainer_is_a_group_too(cluster: ClusterMaker) -> None:
    report = finished(cluster, {"trainer": {"count": 1}, "sync": {"algorithm": "ma"} | OFTEN}).report
    assert report.sync.rounds > 0
    assert report.model_saved == "the mean of the replicas (ma)"
