"""Latency and counts of the requests."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np

from ..pipeline.text.format import counted

LAST_REQUESTS: Final = 10_000


class RequestCounts:
    """Counts since the start, and the latency of the last LAST_REQUESTS scored requests.

    Used by one thread.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.rows = 0
        self.rows_without_score = 0
        self.refused = 0
        self._seconds: deque[float] = deque(maxlen=LAST_REQUESTS)

    def scored(self, rows: int, without_score: int, seconds: float) -> None:
        self.requests += 1
        self.rows += rows
        self.rows_without_score += without_score
        self._seconds.append(seconds)

    def refuse(self) -> None:
        """Count a request that could not be scored."""
        self.refused += 1

    def __str__(self) -> str:
        values = self.values()
        latency = f"; p50 {values['p50_milliseconds']} ms, p99 {values['p99_milliseconds']} ms"
        scored = f"scored {counted(self.rows, 'row')} in {counted(self.requests, 'request')}"
        return f"{scored}, refused {self.refused:,}{latency if self.requests else ''}"

    def values(self) -> dict[str, Any]:
        """Return the counts, and the percentiles in milliseconds; None before the first request."""
        p50 = p99 = None
        if self._seconds:
            p50, p99 = (round(float(value) * 1e3, 3) for value in np.percentile(self._seconds, (50, 99)))
        return {
            "requests": self.requests,
            "rows": self.rows,
            "rows_without_score": self.rows_without_score,
            "refused": self.refused,
            "p50_milliseconds": p50,
            "p99_milliseconds": p99,
        }
