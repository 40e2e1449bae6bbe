"""For those who write algorithms: what every one of them must withstand."""

from __future__ import annotations

from .check import check_algorithm
from .error import ConformanceError

__all__ = ["ConformanceError", "check_algorithm"]
