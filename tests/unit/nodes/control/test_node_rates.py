"""Growth per second from heartbeats."""

from __future__ import annotations

import pytest
from shadowsync.nodes.control.progress import STALE_SECONDS, WINDOW_SECONDS, NodeRates


def test_a_rate_is_of_the_last_seconds() -> None:
    rates = NodeRates()
    for beat in range(100):
        # 100 a second at first, 300 later.
        count = 50 * beat if beat < 60 else 50 * 60 + 150 * (beat - 60)
        rates.record_heartbeat("trainer-0", beat * 0.5, {"trained_examples": count})
    assert rates.of("trainer-0", "trained_examples", 49.5) == pytest.approx(300.0)
    assert WINDOW_SECONDS < 15


def test_what_is_not_known_has_no_rate() -> None:
    rates = NodeRates()
    assert rates.of("trainer-0", "rounds", 0.0) is None
    rates.record_heartbeat("trainer-0", 1.0, {"rounds": 1})
    assert rates.of("trainer-0", "rounds", 1.0) is None, "one beat"
    rates.record_heartbeat("trainer-0", 2.0, {"rounds": 3, "new": 1})
    assert rates.of("trainer-0", "rounds", 2.0) == 2.0
    assert rates.of("trainer-0", "new", 2.0) is None
    assert rates.of("trainer-0", "rounds", 2.0 + STALE_SECONDS + 0.1) is None, "it is silent"
    assert rates.total(["trainer-0", "trainer-1"], "rounds", 2.0) == 2.0
    assert rates.total([], "rounds", 2.0) is None


def test_memory_is_bounded() -> None:
    rates = NodeRates()
    for beat in range(10_000):
        rates.record_heartbeat("a", beat * 0.5, {"x": beat})
    assert len(rates._beats["a"]) <= 2 * WINDOW_SECONDS + 2
