"""[network]: the words of `--delay` and `--bandwidth`, and when nodes of one machine may share memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shadowsync.pipeline.config.network import NetworkSection, SlowNetwork, parse_bandwidth, parse_delay


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("0.2s", 0.2), ("800us", 800e-6), ("0ms", 0.0), ("1.5 ms", 0.0015), (" 5MS ", 0.005)],
)
def test_delays(text: str, seconds: float) -> None:
    assert parse_delay(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "rate"), [("100mbit", 12.5e6), ("2.5gbit", 312.5e6), ("800kbit", 1e5), ("8 Kbit", 1e3)]
)
def test_bandwidths_are_bits_in_and_bytes_out(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_delay, "50", "'50' given; write a number and its unit: 50ms, 0.2s or 800us"),
        (parse_delay, "ms", "'ms' given; write a number and its unit"),
        (parse_delay, "-5ms", "'-5ms' given; write a number and its unit"),
        (parse_delay, "50ms!", "write a number and its unit"),
        (parse_delay, "1e3ms", "write a number and its unit"),
        (parse_delay, "5mbit", "write a number and its unit: 50ms"),
        (parse_delay, "٥ms", "write a number and its unit"),
        (parse_delay, "10.1s", "'10.1s' given; at most 10s can be emulated"),
        # Bits or bytes? Programs do not agree.
        (parse_bandwidth, "100mbps", "'100mbps' given; write a number and its unit: 100mbit, 2.5gbit"),
        (parse_bandwidth, "100MB/s", "(bits per second)"),
        (parse_bandwidth, "5ms", "write a number and its unit: 100mbit"),
        (parse_bandwidth, "7.9kbit", "'7.9kbit' given; at least 8kbit can be emulated"),
    ],
)
def test_what_cannot_be_read_is_told_with_what_would_do(
    parse: Callable[[str], float], text: str, said: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is what is tested
        parse(text)
    assert said in str(caught.value)


def test_what_a_job_asks_for() -> None:
    assert NetworkSection().slow is None
    assert NetworkSection(delay="0ms").slow == SlowNetwork(0.0, None, every_link=False)
    both = NetworkSection(delay="50ms", bandwidth="8mbit", delay_links="all")
    assert both.slow == SlowNetwork(0.05, 1e6, every_link=True)
    assert NetworkSection(bandwidth="8mbit").slow == SlowNetwork(0.0, 1e6, every_link=False)


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, True),
        ({"transport": "ipc"}, True),
        ({"delay": "5ms"}, True),
        ({"delay": "5ms", "delay_links": "all"}, False),
        ({"delay_links": "all"}, True),
        ({"transport": "tcp"}, False),
        ({"shared_memory": False}, False),
    ],
)
def test_a_network_that_is_to_be_measured_is_used(settings: dict[str, object], shares: bool) -> None:
    assert NetworkSection.model_validate(settings).shares_memory is shares
