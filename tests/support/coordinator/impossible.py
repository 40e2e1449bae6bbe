"""Messages with numbers that cannot be: each numeric field of a body in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

WRONG_NUMBERS = (math.nan, math.inf, -math.inf, -1, 2**62, 2**64 - 1)
WRONG_BYTES = (b"", b"x", np.full(64, np.nan).tobytes())


def lies(body: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a place in a body, and the body with something there that cannot be."""
    if isinstance(body, list | tuple | dict):
        pairs = body.items() if isinstance(body, dict) else enumerate(body)
        for key, value in pairs:
            for where, wrong in lies(value, f"{place}[{key}]"):
                changed: Any = dict(body) if isinstance(body, dict) else list(body)
                changed[key] = wrong
                yield where, changed
    elif isinstance(body, bytes):
        yield from ((place, wrong) for wrong in WRONG_BYTES)
    elif isinstance(body, int | float) and not isinstance(body, bool):
        yield from ((f"{place} = {wrong}", wrong) for wrong in WRONG_NUMBERS)
