"""The streamed estimate of how often each item comes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from shadowsync.pipeline.models.layers.item_frequency import ItemFrequency
from shadowsync.pipeline.types import Float64Array, Int64Array

ITEMS, EXAMPLES = 2000, 400_000


def items_and_shares(seed: int = 0) -> tuple[Int64Array, Float64Array]:
    """Ids that are hashes, and shares by Zipf's law."""
    ids = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, ITEMS, dtype=np.int64)
    shares = 1.0 / np.arange(1, ITEMS + 1)
    return ids, shares / shares.sum()


def stream(
    estimate: ItemFrequency, ids: Int64Array, shares: Float64Array, batch: int, examples: int = EXAMPLES
) -> None:
    generator = np.random.default_rng(1)
    for _ in range(examples // batch):
        # Batches differ in size, as the last of a file does.
        size = int(generator.integers(batch // 2, batch + batch // 2))
        estimate.add(ids[generator.choice(ITEMS, size, p=shares)])


def errors(estimate: ItemFrequency, ids: Int64Array, shares: Float64Array) -> Float64Array:
    found: Float64Array = np.abs(estimate.log_share(ids) - np.log(shares))
    return found


@pytest.mark.parametrize("batch", [16, 1024])
def test_the_estimate_is_near_the_true_share(batch: int) -> None:
    """Of items that come several times in each batch, and of those that come in few of them."""
    ids, shares = items_and_shares()
    estimate = ItemFrequency(ITEMS)
    stream(estimate, ids, shares, batch)
    wrong = errors(estimate, ids, shares)
    assert wrong[:1000].mean() < 0.1
    assert wrong.mean() < 0.2
    even = np.abs(np.log(1 / ITEMS) - np.log(shares))
    assert even.mean() > 0.6, "the control: the same share for all"


def test_several_hashes_tell_items_apart_that_share_a_slot() -> None:
    ids, shares = items_and_shares()
    small, single = ItemFrequency(1), ItemFrequency(1)
    single._seeds, single._first = single._seeds[:1], single._first[:1]  # The control.
    for estimate in (small, single):
        stream(estimate, ids, shares, 256)
    assert errors(small, ids, shares).mean() < 0.2 < 0.3 < errors(single, ids, shares).mean()


def test_an_early_estimate_is_near_the_true_share() -> None:
    """The first batch gives its own shares; the paper's fixed rate would take most items for certain."""
    estimate, ids = ItemFrequency(10), np.array([5, 5, 5, 7], np.int64)
    estimate.add(ids)
    np.testing.assert_allclose(np.exp(estimate.log_share(ids)), [0.75, 0.75, 0.75, 0.25], rtol=1e-6)
    estimate.add(np.array([7, 7, 8, 8], np.int64))
    np.testing.assert_allclose(np.exp(estimate.log_share(np.array([7, 8, 9]))), [3 / 8, 2 / 8, 1 / 8])


def test_a_share_that_changes_is_followed_the_sooner_the_larger_the_rate() -> None:
    ids, shares = items_and_shares()
    wrong = []
    for rate in (0.001, 0.05):
        estimate = ItemFrequency(ITEMS, rate)
        stream(estimate, ids, shares, 256)
        stream(estimate, ids, shares[::-1], 256, EXAMPLES // 20)
        wrong.append(errors(estimate, ids, shares[::-1])[-10:].mean())
    assert wrong[1] < 0.3 < 1.0 < wrong[0]


def test_the_order_within_a_batch_does_not_matter() -> None:
    ids, shares = items_and_shares()
    batch = ids[np.random.default_rng(2).choice(ITEMS, 512, p=shares)]
    one, other = ItemFrequency(ITEMS), ItemFrequency(ITEMS)
    for _ in range(3):
        one.add(batch)
        other.add(batch[::-1].copy())
    assert np.array_equal(one.log_share(ids), other.log_share(ids))
    other.add(batch)
    assert not np.array_equal(one.log_share(ids), other.log_share(ids)), "the control"


def test_a_restored_estimate_goes_on_as_the_saved_one() -> None:
    ids, shares = items_and_shares()
    saved, restored, fresh = ItemFrequency(ITEMS), ItemFrequency(ITEMS), ItemFrequency(ITEMS)
    stream(saved, ids, shares, 256, 50_000)
    state = saved.state()
    assert restored.restore(state)
    for estimate in (saved, restored, fresh):
        estimate.add(ids[:100])
    assert np.array_equal(saved.log_share(ids), restored.log_share(ids))
    assert not np.array_equal(saved.log_share(ids), fresh.log_share(ids)), "the control"
    assert state["examples"][0] + 100 == saved.examples, "a copy"
    assert sum(array.nbytes for array in state.values()) - 8 == saved.nbytes


def test_a_state_of_another_size_is_refused() -> None:
    other = ItemFrequency(100_000).state()
    estimate = ItemFrequency(10)
    assert not estimate.restore(other)
    assert not estimate.restore({})
    assert estimate.examples == 0


def test_workers_count_together() -> None:
    """Of equal batches any order is the same, so the result is that of one worker."""
    ids, shares = items_and_shares()
    batch = ids[np.random.default_rng(2).choice(ITEMS, 256, p=shares)]
    shared, single = ItemFrequency(ITEMS), ItemFrequency(ITEMS)

    def work() -> None:
        for _ in range(100):
            shared.add(batch)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for _ in range(400):
        single.add(batch)
    assert shared.examples == single.examples
    assert np.array_equal(shared.log_share(ids), single.log_share(ids))
