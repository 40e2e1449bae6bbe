"""Whole jobs whose trainers synchronize with each other, and no sync node is there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.report.model import Report
from shadowsync.tests.support.evaluate_run import evaluate_run
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.runs import EXAMPLES

OFTEN = {"duty": 1.0}


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


@pytest.mark.parametrize("mode", [OFTEN, {"mode": "fixed", "every": 5}], ids=["shadow", "fixed"])
def test_under_ma_the_mean_of_the_replicas_comes_out(
    cluster: Callable[..., InProcessCluster], mode: dict[str, object]
) -> None:
    options = {"elastic_rate": 0.5}
    own = cluster({"trainer": {"count": 3}, "sync": {"algorithm": "ma", "options": options} | mode}).start()
    assert "sync" not in own.nodes
    assert own.wait() == 0, own.coordinator.text() + own.nodes["trainer"][0].text()
    report = own.run.report
    assert report.ledger.adds_up
    assert report.examples.trained == EXAMPLES
    assert report.model_saved == "the mean of the replicas (ma)"
    assert report.eval is not None
    assert report.eval.model == "the mean of the replicas (ma)"
    assert report.sync.rounds >= 3 * 3
    assert report.sync.bytes > 0
    replicas = [tensors(own, f"trainer-{index}", "replica") for index in range(3)]
    if own.job.sync.mode == "fixed":
        # With elastic rate 0.5 the closing round leaves the replicas apart: no one of them is the mean. In
        # the background they may have come together after the last batch.
        assert np.abs(replicas[0] - replicas[1]).max() > 1e-4
    mean = np.mean(np.stack(replicas).astype(np.float64), axis=0).astype(np.float32)
    np.testing.assert_allclose(dense(own), ordered(mean), rtol=0, atol=1e-7)
    again = evaluate_run(own.run.folder, own.job.data.eval_path)
    assert again["ne"] == pytest.approx(report.eval.ne, abs=1e-6)


def test_at_a_fixed_rate_all_trainers_have_the_same_rounds(cluster: Callable[..., InProcessCluster]) -> None:
    changes = {"trainer": {"workers": 2}, "sync": {"algorithm": "ma", "mode": "fixed", "every": 5}}
    own = cluster(changes).start()
    assert own.wait() == 0, own.coordinator.text()
    report = own.run.report
    rounds = report.sync.rounds
    batches = own.run.batches()
    # A round for every 5 iterations of each of 4 workers, more where one of them had no input, and one
    # closing round; both trainers count it.
    assert rounds % 2 == 0
    assert rounds // 2 >= batches // (5 * 4)
    assert report.sync.gap_max is not None
    assert report.sync.gap_max <= 2 * 5
    assert report.ledger.adds_up


@pytest.mark.matrix
def test_under_bmuf_the_global_model_comes_out(cluster: Callable[..., InProcessCluster]) -> None:
    options = {"eta": 0.5, "block_momentum": 0.3}
    own = cluster({"sync": {"algorithm": "bmuf", "options": options} | OFTEN}).start()
    assert own.wait() == 0, own.coordinator.text()
    report = own.run.report
    assert report.model_saved == "the global model (bmuf)"
    assert report.eval is not None
    assert report.eval.model == "the global model (bmuf)"
    assert not [event for event in report.events if "another model" in event.what]
    folder, manifest = open_checkpoint(own.run.folder, verify=True)
    state = TensorReader(folder, [entry for entry in manifest.files if entry.role == "algorithm"])
    saved = dense(own)
    assert any(np.array_equal(ordered(np.array(state.read(name))), saved) for name in state.names)
    assert not np.array_equal(ordered(tensors(own, "trainer-0", "replica")), saved)


def apart(cluster: Callable[..., InProcessCluster], sync: dict[str, object]) -> tuple[Report, float]:
    """The report of a job of four trainers, and how far their replicas are apart when training ends."""
    own = cluster({"trainer": {"count": 4}, "sync": sync}).start()
    assert own.wait() == 0, own.coordinator.text()
    assert own.report.replicas.divergence is not None
    return own.report, own.report.replicas.divergence


@pytest.mark.parametrize("algorithm", [pytest.param("gossip", marks=pytest.mark.matrix), "ds_sync"])
def test_groups_that_change_from_round_to_round(
    cluster: Callable[..., InProcessCluster], algorithm: str
) -> None:
    report, divergence = apart(cluster, {"algorithm": algorithm, "mode": "fixed", "every": 1})
    assert report.ledger.adds_up
    assert report.eval is not None
    assert report.eval.model == f"the mean of the 4 replicas' own scores ({algorithm})"
    assert report.sync.rounds > 4
    # Without rounds they are ten times as far apart: 0.3 and 0.03.
    assert divergence < apart(cluster, {"algorithm": "none"})[1] / 3


@pytest.mark.matrix
def test_a_tree_of_two_sites(cluster: Callable[..., InProcessCluster]) -> None:
    sync = {"algorithm": "tree", "mode": "fixed", "every": 1}
    report, divergence = apart(cluster, sync | {"options": {"site_every": 2}})
    assert report.ledger.adds_up
    assert report.model_saved == "the mean of the replicas (tree)"
    assert report.sync.rounds > 4
    # Without rounds of all, the control, sites stay apart: 0.18 and 0.02.
    control = apart(cluster, sync | {"options": {"site_every": 1_000_000}})[1]
    assert divergence < control / 3


def test_what_is_not_significant_does_not_travel(cluster: Callable[..., InProcessCluster]) -> None:
    """As bytes of a round, by the counts of the links; the controls filter nothing, or send the zeros."""

    def bytes_of_a_round(threshold: float, codec: str) -> float:
        options = {"threshold": threshold, "combine": "mean"}
        own = cluster(
            {
                "trainer": {"batch": 256},
                "sync": {"algorithm": "gaia", "mode": "fixed", "every": 1, "options": options},
                "codecs": {"peers_up": codec, "peers_down": codec},
            }
        ).start()
        assert own.wait() == 0, own.coordinator.text()
        report = own.run.report
        assert report.ledger.adds_up
        assert report.eval is not None
        assert report.eval.model == "the global model (gaia)"
        assert report.sync.rounds > 4
        return report.sync.bytes / report.sync.rounds

    found = {case: bytes_of_a_round(*case) for case in [(30.0, "sparse"), (0.0, "sparse"), (30.0, "float32")]}
    # 3.5 kB; 70 kB where each change travels, and 99 kB where zeros do too.
    assert found[30.0, "sparse"] < 0.2 * min(found[0.0, "sparse"], found[30.0, "float32"])


@pytest.mark.matrix
def test_one_trainer_is_a_group_too(cluster: Callable[..., InProcessCluster]) -> None:
    own = cluster({"trainer": {"count": 1}, "sync": {"algorithm": "ma"} | OFTEN}).start()
    assert own.wait() == 0, own.coordinator.text()
    report = own.run.report
    assert report.sync.rounds > 0
    assert report.ledger.adds_up
    assert report.model_saved == "the mean of the replicas (ma)"
