"""Counting the bytes of a link, each way."""

from __future__ import annotations

from shadowsync.nodes.runtime.members import Traffic, summed


def test_each_way_has_its_bytes_and_what_float32_would_take() -> None:
    traffic = Traffic()
    traffic.went_up(1100, 1000)
    traffic.went_up(600, 500)
    traffic.went_down(70, 10)
    assert traffic.metrics("center") == {
        "center_up_bytes": 1700,
        "center_up_float32_bytes": 6000,
        "center_down_bytes": 70,
        "center_down_float32_bytes": 40,
    }


def test_links_are_summed_by_name() -> None:
    assert summed([{"a": 1, "b": 0}, {}, {"a": 2, "c": 4}]) == {"a": 3, "b": 0, "c": 4}
    assert summed([]) == {}
