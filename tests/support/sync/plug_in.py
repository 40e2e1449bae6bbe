"""The module of an algorithm of somebody else's."""

from __future__ import annotations

import pytest
from shadowsync.sync_algos.catalog.registry import AlgorithmError, find_algorithm

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Literal
from shadowsync.sync_algos.base import Algorithm, NoOptions

@dataclass(frozen=True)
class Settings:
    size: int = 2
    kind: Literal["a", "b"] = "a"
    part: float | None = None
    many: tuple[int, ...] = ()
    by_name: dict[str, list[float]] | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size: {self.size} given; at least 1 will do")

class Mine(Algorithm):
    name = "mine"
    summary = "for a test"
    Options = Settings

    async def round(self, replica, peers):
        return False
"""


def refusal(name: str) -> str:
    """Why an algorithm of this name is refused, in one line."""
    with pytest.raises(AlgorithmError) as caught:
        find_algorithm(name)
    assert caught.value.key == "sync.algorithm"
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("sync.algorithm: ")
