"""Why a job stops before its input is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...pipeline.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Stop:
    """A reason to stop.

    Attributes:
        kind: an interrupt by the user, the death of a node that the job needs, or an error of a node.
        text: one line for the user.
        exit_code: what the command ends with.
        lost_shard: rows are gone, so that no whole checkpoint can be written.
        diverged: what the model learned last may be worth nothing, so it takes no earlier checkpoint's place.
    """

    kind: Literal["interrupted", "death", "failed"]
    text: str
    exit_code: ExitCode
    lost_shard: bool = False
    diverged: bool = False
