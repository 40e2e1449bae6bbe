"""Requests of attached loops and of modules with tables, and the hub's replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from ..field_checks import MOST_EXAMPLES, Bounds, Count, Examples, Items, Size
from .base import Done, Reply, Request

MAX_PARAMETERS = 1 << 16
MAX_DIMENSIONS = 32
MAX_LOOPS = 1 << 14

LoopState: TypeAlias = Literal["joining", "training", "away", "left", "died"]


@dataclass(frozen=True, slots=True)
class ParameterShape:
    """Name and shape of a trainable parameter."""

    name: str
    shape: Annotated[tuple[Count, ...], Items(MAX_DIMENSIONS)]


@dataclass(frozen=True, slots=True)
class JoinLoops(Request["JoinLoopsReply"]):
    """A loop asks to synchronize its trainable parameters.

    `settings` has the settings that the loop was given, by key, such as "sync.algorithm"; the hub's must be
    the same.
    """

    parameters: Annotated[tuple[ParameterShape, ...], Items(MAX_PARAMETERS)]
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JoinLoopsReply(Reply):
    """The resolved job of the hub, whose [run], [sync] and [codecs] hold."""

    job: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PauseLoop(Request[Done]):
    """A loop pauses its rounds, or takes them up again."""

    paused: bool


@dataclass(frozen=True, slots=True)
class GetLoops(Request["LoopsReply"]):
    """The book of steps so far."""


@dataclass(frozen=True, slots=True)
class LoopRecord:
    """A loop in the book of steps, by its last counts.

    Attributes:
        steps: steps of its optimizer.
        synchronized: those that a complete round has carried to the others.
        why: why it died.
    """

    name: str
    state: LoopState
    steps: Count
    synchronized: Count
    rounds: Count
    why: str = ""


@dataclass(frozen=True, slots=True)
class SamplesRecord:
    """The examples of one stream of samples, over all epochs so far.

    `granted` counts what was given out, `finished` what was trained, `returned` what dead and leaving loops
    had not trained, and `held` the rest, which living loops have.
    """

    stream: str
    granted: Count
    finished: Count
    returned: Count
    held: Count


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """A module with tables in the book, by its last counts.

    Attributes:
        passes: its backward passes whose gradients it has sent.
        lost: those of them that died with a hub: they were not in the checkpoint of the tables with which
            another hub took its place.
        why: why it died.
    """

    name: str
    state: LoopState
    passes: Count
    lost: Count
    why: str = ""


@dataclass(frozen=True, slots=True)
class LoopsReply(Reply):
    """All loops and modules that were ever there, and the streams of samples."""

    loops: Annotated[tuple[LoopRecord, ...], Items(MAX_LOOPS)]
    divergence: Size | None = None
    samples: tuple[SamplesRecord, ...] = ()
    modules: Annotated[tuple[ModuleRecord, ...], Items(MAX_LOOPS)] = ()


@dataclass(frozen=True, slots=True)
class TakeSamples(Request["SamplesReply"]):
    """A loop asks for samples of a data set.

    Attributes:
        size: number of examples of the data set, the same for all loops.
        seed: seed of the order of each epoch; None for the order of the data set.
        epochs: epochs that are given out; 0 for no limit.
        epoch: the epoch that this pass of the loop is in; None to begin a pass.
        finished: examples of this stream that the loop has trained so far.
        received: examples that it was given so far, counted as `finished` is; None for all that were granted.
            What is granted beyond is given out again: the reply was lost with a hub.
    """

    stream: str
    size: Annotated[int, Bounds(1, MOST_EXAMPLES)]
    span: Annotated[int, Bounds(1, MOST_EXAMPLES)]
    seed: Count | None
    epochs: Count
    epoch: Count | None
    finished: Examples
    received: Examples | None = None


@dataclass(frozen=True, slots=True)
class SamplesReply(Reply):
    """Places in the order of an epoch; none if the pass is over.

    `epoch` is that of the pass. `of_epoch` is that of the places: an earlier one if another loop had not
    trained them.
    """

    epoch: Count
    of_epoch: Count
    start: Count
    stop: Count


@dataclass(frozen=True, slots=True)
class EndSamples(Request[Done]):
    """A loop ends its pass; what it has not trained is given out again."""

    stream: str
    finished: Examples


@dataclass(frozen=True, slots=True)
class JoinTables(Request["JoinTablesReply"]):
    """A module asks to look up and train rows of tables.

    `settings` has the settings that the module was given, by table and key, such as {"user": {"rows": 100}}.
    The first module decides; the tables of the others must be the same. None asks for what is there.

    `passes` is how many backward passes a module has made that comes back, None of a new one.
    """

    settings: dict[str, Any] | None
    passes: Count | None = None


@dataclass(frozen=True, slots=True)
class JoinTablesReply(Reply):
    """The resolved job of the tables, and the split of their rows over nodes.

    `lost` is how many passes of a module that comes back are not in the rows.
    """

    job: dict[str, Any]
    plan: dict[str, Any]
    lost: Count = 0
