"""Types of options and arguments that are refused before any work is done."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click


class OutPath(click.Path):
    """A path on this machine that a command writes, as a Path.

    A URL is refused: it would name a folder here, such as "s3:".

    Args:
        kind: what may be there already; "any" leaves the check to the command.
    """

    def __init__(self, kind: str = "any") -> None:
        super().__init__(path_type=Path, dir_okay=kind != "file", file_okay=kind != "folder")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fails for a URL."""
        if "://" in os.fspath(value):
            self.fail(f"{value} is a URL; give a path on this machine", param, ctx)
        return super().convert(value, param, ctx)


class NumberRange(click.FloatRange):
    """A number in a range, which NaN is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; fails for one outside the range."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is not a number", param, ctx)
        return number
