"""The conformance suite for authors of algorithms."""

from __future__ import annotations

from .check import check_algorithm
from .error import ConformanceError

__all__ = ["ConformanceError", "check_algorithm"]
