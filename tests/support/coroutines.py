"""Tests that are coroutine functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")
Work = Coroutine[Any, Any, None]


def run_by(runner: Callable[[Work], object]) -> Callable[[Callable[P, Work]], Callable[P, None]]:
    """Makes a test of a coroutine function: `runner` runs it on a loop of its own."""

    def decorate(test: Callable[P, Work]) -> Callable[P, None]:
        @functools.wraps(test)
        def run_test(*args: P.args, **kwargs: P.kwargs) -> None:
            runner(test(*args, **kwargs))

        return run_test

    return decorate
