"""The error of a failed conformance check."""

from __future__ import annotations


class ConformanceError(AssertionError):
    """An algorithm breaks its contract: check, step, expectation and finding."""

    def __init__(self, check: str, step: str, expected: str, found: str) -> None:
        self.check, self.step, self.expected, self.found = check, step, expected, found
        super().__init__(f"{check}: {step}: expected {expected}; found {found}")
