"""A shared link, against closed forms."""

from __future__ import annotations

import random

import pytest
import simpy
from shadowsync.lab.simulation.link import SharedLink


def ends(transfers: list[tuple[float, float, float]], rate: float = 10.0) -> list[float]:
    """When transfers of (begin, size, weight) end."""
    env = simpy.Environment()
    link = SharedLink(env, rate)
    found = [0.0] * len(transfers)

    def one(number: int, begin: float, size: float, weight: float) -> simpy.events.ProcessGenerator:
        yield env.timeout(begin)
        yield link.transfer(size, weight)
        found[number] = env.now

    for number, transfer in enumerate(transfers):
        env.process(one(number, *transfer))
    env.run()
    return found


@pytest.mark.parametrize(
    ("transfers", "wanted"),
    [
        pytest.param([(1.0, 20.0, 1.0)], [3.0], id="one transfer has the whole link"),
        pytest.param([(0.0, 10.0, 1.0)] * 4, [4.0] * 4, id="equal ones end together"),
        # The first has 10 of 20 bytes at 1 s; both then move 5 bytes/s until the first ends at 3 s.
        pytest.param([(0.0, 20.0, 1.0), (1.0, 20.0, 1.0)], [3.0, 4.0], id="one comes later"),
        # 7.5 and 2.5 bytes/s: the first ends after 2 s, the second has 10 of 15 bytes left.
        pytest.param([(0.0, 15.0, 3.0), (0.0, 15.0, 1.0)], [2.0, 3.0], id="weights"),
    ],
)
def test_transfers_share_the_link(transfers: list[tuple[float, float, float]], wanted: list[float]) -> None:
    assert ends(transfers) == pytest.approx(wanted)


def test_the_link_neither_rests_nor_exceeds_its_bandwidth() -> None:
    draw = random.Random(3)
    transfers = [(draw.random() * 5, 1 + draw.random() * 9, 0.1 + draw.random()) for _ in range(200)]
    whole = sum(size for _, size, _ in transfers)
    found = ends(transfers)
    assert max(found) <= 5.0 + whole / 10.0 + 1e-6
    assert max(found) >= whole / 10.0
    assert all(
        end >= begin + size / 10.0 - 1e-9 for end, (begin, size, _) in zip(found, transfers, strict=True)
    )


def test_what_was_moved_is_counted() -> None:
    env = simpy.Environment()
    link = SharedLink(env, 10.0)
    for _ in range(3):
        link.transfer(5.0)
    env.run(until=1.0)
    link.advance()
    assert [link.moved_bytes, link.busy_seconds] == pytest.approx([10.0, 1.0])
    env.run(until=9.0)
    link.advance()
    assert [link.moved_bytes, link.busy_seconds] == pytest.approx([15.0, 1.5])
