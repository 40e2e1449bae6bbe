"""The state of a hub, without I/O: members, group, book of steps.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...nodes.control.cluster_state import ClusterState
from ...nodes.control.membership import Member
from ...nodes.control.progress import TrainingMetrics
from ...pipeline.config.job import Job
from ...pipeline.errors import ClusterError
from ...pipeline.text.format import counted
from ...pipeline.types import FLAT_ALIGNMENT, Float32Array
from ...pipeline.wire.control.loops import (
    EndSamples,
    LoopRecord,
    LoopsReply,
    LoopState,
    ModuleRecord,
    ParameterShape,
    SamplesReply,
    TakeSamples,
)
from ...pipeline.wire.control.messages import NodeFacts
from ...pipeline.wire.control.orders import GroupView, MemberInfo
from ...pipeline.wire.field_checks import Counts
from .ledger import LAYOUT, LOOP_PREFIX, MODULE_PREFIX, STREAM_PREFIX
from .members import CLIENT, LOOP, SYNC, HubMembers
from .samples import SampleStream

MAX_STREAMS = 64
# A count of a heartbeat: examples of this stream that the loop has trained.
FINISHED_PREFIX = "finished/"
# A count of a module: backward passes whose gradients it has sent.
PASSES = "passes"
# What the book needs of the counts of a loop, and of a module.
_KEPT = {LOOP: ("iterations", "synced_iterations", "rounds"), CLIENT: (PASSES,)}
_PREFIXES = {LOOP: LOOP_PREFIX, CLIENT: MODULE_PREFIX}


class HubState(ClusterState):
    """What a hub knows; it belongs to the hub's loop.

    Args:
        folder: the hub's folder; its name is that of the run.

    Attributes:
        seeded: whether the center has its first value, or there is no center.
        begun: whether a loop, or a module with tables, has ever begun.
        first_model: the values that the first loop takes, of a checkpoint; None once it has them.
        awaits_return: whether the hub waits for the loops of a dead one.
        lost_passes: by module, how many of its passes died with the hubs before.
        gaps: the curves of the loops' sync gaps.
    """

    def __init__(self, job: Job, folder: Path | None = None) -> None:
        super().__init__(job, folder or Path(job.run.name))
        self.members: HubMembers = HubMembers(job.sync_nodes)
        self.gaps = TrainingMetrics()
        self.begun = False
        self.seeded = False
        self.awaits_return = False
        self.lost_passes: dict[str, int] = {}
        self.first_model: Float32Array | None = None
        self._layout: tuple[ParameterShape, ...] | None = None
        self._layout_of = ""
        self._streams: dict[str, SampleStream] = {}
        self._paused: set[str] = set()

    @property
    def phase(self) -> str:
        """What the loops do, for watchers."""
        return "training" if self.loops else "waiting for loops"

    @property
    def outcome(self) -> str:
        """How the hub ended, for watchers."""
        gone = self.members.everyone(LOOP)
        return f"{counted(len(gone), 'loop')}, of which {sum(not loop.left for loop in gone)} died"

    @property
    def layout(self) -> tuple[ParameterShape, ...] | None:
        """Names and shapes of the loops' parameters; None before the first loop."""
        return self._layout

    @property
    def has_sync_nodes(self) -> bool:
        """Whether all sync nodes are there."""
        return len(self.members.alive(SYNC)) == self.job.sync_nodes

    @property
    def loops(self) -> list[Member]:
        """The loops that take part now."""
        return self.members.alive(LOOP)

    @property
    def awaits_anyone(self) -> bool:
        """Whether loops or modules of a dead hub may still come back."""
        return self.awaits_return or bool(self.members.away(CLIENT))

    @property
    def arrived(self) -> dict[str, int]:
        """How many loops and modules have come, dead ones included, by role."""
        return {role: len(self.members.everyone(role)) for role in (LOOP, CLIENT)}

    @property
    def present(self) -> dict[str, int]:
        """How many loops and modules are there or join, by role."""
        living = self.members.living()
        return {role: sum(member.info.role == role for member in living) for role in (LOOP, CLIENT)}

    def take_loops(self, job: Job) -> None:
        """Take the settings of the loops, before the first one."""
        self.job, self.members.sync_nodes = job, job.sync_nodes

    def offer(self, member: Member, parameters: tuple[ParameterShape, ...]) -> None:
        """Compare a loop's parameters with those of the first loop.

        Raises ClusterError, which names the first parameter that differs.
        """
        others = any(m.info.token != member.info.token for m in self.members.living() if m.info.role == LOOP)
        if self._layout is None or not (
            others or self.seeded or self.awaits_return or self.first_model is not None
        ):
            self._layout, self._layout_of = parameters, member.info.name
        if fault := first_difference(parameters, self._layout):
            raise ClusterError(
                f"the trainable parameters differ from those of {self._layout_of}: {fault}",
                remedy="build the same model in each loop, and freeze the same parameters",
            )

    def get_ready(self, member: Member, facts: NodeFacts) -> None:
        """Record that a member can meet the others.

        Raises ClusterError for another number of elements than its parameters have.
        """
        if member.info.role == LOOP and self._layout is not None:
            expected = elements_of(self._layout)
            if facts.dense_elements != expected:
                raise ClusterError(f"{facts.dense_elements} elements; the parameters have {expected}")
        member.get_ready(facts)

    def is_first(self, member: Member) -> bool:
        """Whether a loop starts from its own weights."""
        if member.facts.needs_center:
            return not self.seeded
        return not member.facts.needs_peers or not self.loops

    def begin(self, member: Member) -> None:
        """Record that a member takes part from now on."""
        member.begin()
        if member.info.role in (LOOP, CLIENT):
            self.begun = True

    def heartbeat(self, member: Member, counts: Counts) -> None:
        """Record a member's counts."""
        member.record_heartbeat(counts)
        self.rates.record_heartbeat(member.info.name, self.seconds(), counts)
        if member.info.role == LOOP:
            self.gaps.heartbeat(member.info.name, self.seconds(), counts)
        for name, stream in self._streams.items():
            if (finished := member.count(FINISHED_PREFIX + name)) is not None:
                stream.finish(member.info.name, finished)

    def lose(self, member: Member, why: str) -> GroupView | None:
        """Record a death, or with `why` "" that a loop left.

        Returns the new group if it changed.
        """
        if why:
            member.die(why)
        else:
            member.leave()
        for stream in self._streams.values():
            stream.give_back(member.info.name)
        return self.group.lose(member.info.index) if member.info.role == LOOP else None

    def pause(self, member: Member, *, paused: bool) -> GroupView | None:
        """Record that a loop pauses its rounds or takes them up.

        Returns the new group if it changed.
        """
        token, index = member.info.token, member.info.index
        if paused:
            self._paused.add(token)
            return self.group.lose(index)
        self._paused.discard(token)
        return self.group.admit(index) if member.begun and member.facts.needs_peers else None

    def is_paused(self, member: Member) -> bool:
        """Whether a loop has paused its rounds."""
        return member.info.token in self._paused

    def return_to_group(self, member: Member) -> GroupView:
        """Form a new group, with a loop that cannot take part in this one."""
        return self.group.admit(member.info.index) or self.group.form(self.group.view.members)

    def take_samples(self, member: Member, request: TakeSamples) -> SamplesReply:
        """Give a loop samples; raises ClusterError for another data set than the others have."""
        if request.stream not in self._streams and len(self._streams) >= MAX_STREAMS:
            raise ClusterError(f"there are {MAX_STREAMS} streams of samples already")
        stream = self._streams.setdefault(request.stream, SampleStream(request.stream, request))
        return stream.take(member.info.name, request)

    def end_samples(self, member: Member, request: EndSamples) -> None:
        """Take back what a loop has not trained of a pass that it ended."""
        if (stream := self._streams.get(request.stream)) is not None:
            stream.finish(member.info.name, request.finished)
            stream.give_back(member.info.name)

    def saved(self) -> dict[str, Any]:
        """Return what another hub needs, by key of the ledger."""
        saved: dict[str, Any] = {}
        if self._layout is not None:
            saved[LAYOUT] = [[member.name, list(member.shape)] for member in self._layout]
        for role, prefix in _PREFIXES.items():
            for member in self.members.everyone(role):
                saved[prefix + member.info.name] = {
                    "token": member.info.token,
                    "index": member.info.index,
                    "counts": {name: member.count(name) or 0 for name in _KEPT[role]},
                    "begun": member.begun,
                    "alive": member.alive,
                    "left": member.left,
                    "why": member.lost_because,
                    "lost": self.lost_passes.get(member.info.name, 0),
                }
        return saved | {STREAM_PREFIX + name: stream.saved() for name, stream in self._streams.items()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take the place of a dead hub. Raises KeyError or TypeError for another form."""
        if LAYOUT in saved:
            self._layout = tuple(ParameterShape(name, tuple(shape)) for name, shape in saved[LAYOUT])
            self._layout_of = "the loops before"
        for key, value in saved.items():
            for role, prefix in _PREFIXES.items():
                if key.startswith(prefix):
                    self._restore_member(role, key.removeprefix(prefix), value)
            if key.startswith(STREAM_PREFIX):
                name = key.removeprefix(STREAM_PREFIX)
                self._streams[name] = SampleStream.of_saved(name, value)
        self.awaits_return = bool(self.members.away())

    def _restore_member(self, role: str, name: str, value: Mapping[str, Any]) -> None:
        info = MemberInfo(name, role, value["index"], value["token"], "")
        member = Member(info, begun=False, alive=value["alive"], left=value["left"])
        member.lost_because, member.metrics = value["why"], value["counts"]
        self.members.restore(member)
        self.begun = self.begun or value["begun"]
        # Older hubs recorded none.
        if lost := value.get("lost", 0):
            self.lost_passes[name] = lost

    def resume(
        self, layout: tuple[ParameterShape, ...], values: Float32Array, saved: Mapping[str, Any]
    ) -> None:
        """Begin with the model of a checkpoint, and the accounts of its samples.

        What loops held is granted again. Raises KeyError or TypeError for another form.
        """
        self._layout, self._layout_of, self.first_model = layout, "the checkpoint", values
        for key, value in saved.items():
            if key.startswith(STREAM_PREFIX):
                name = key.removeprefix(STREAM_PREFIX)
                self._streams[name] = SampleStream.of_saved(name, value)
                self._streams[name].forget_loops()

    def end_return(self) -> None:
        """Record that the loops of the dead hub are back, or dead."""
        self.awaits_return = False

    def book(self) -> LoopsReply:
        """Return what each loop and module has done, and what was granted of each data set."""
        points = self.divergence.points
        return LoopsReply(
            tuple(
                _record(member, away=self.members.is_away(member.info.token))
                for member in self.members.everyone(LOOP)
            ),
            points[-1][1] if points else None,
            tuple(stream.record() for stream in self._streams.values()),
            tuple(self._module_record(other) for other in self.members.everyone(CLIENT)),
        )

    def _module_record(self, member: Member) -> ModuleRecord:
        return ModuleRecord(
            member.info.name,
            _state_of(member, away=self.members.is_away(member.info.token)),
            member.count(PASSES) or 0,
            self.lost_passes.get(member.info.name, 0),
            "" if member.left else member.lost_because,
        )


def places_of(layout: Sequence[ParameterShape]) -> list[tuple[ParameterShape, slice]]:
    """Return where each parameter is in the flat buffer of a loop."""
    places, end = [], 0
    for parameter in layout:
        places.append((parameter, slice(end, end + math.prod(parameter.shape))))
        end = _aligned(places[-1][1].stop)
    return places


def elements_of(layout: Sequence[ParameterShape]) -> int:
    """Return the elements of the flat buffer of a loop."""
    return _aligned(places_of(layout)[-1][1].stop) if layout else 0


def _aligned(elements: int) -> int:
    return -(-elements // FLAT_ALIGNMENT) * FLAT_ALIGNMENT


def first_difference(ours: tuple[ParameterShape, ...], others: tuple[ParameterShape, ...]) -> str:
    """Describe the first parameter that differs; "" if all are the same."""
    for mine, theirs in zip(ours, others, strict=False):
        if mine != theirs:
            return f"{mine.name} {list(mine.shape)} here, {theirs.name} {list(theirs.shape)} there"
    if len(ours) == len(others):
        return ""
    longer, where = (ours, "here") if len(ours) > len(others) else (others, "there")
    extra = longer[min(len(ours), len(others))]
    return f"{extra.name} {list(extra.shape)} is only {where}"


def _record(member: Member, *, away: bool) -> LoopRecord:
    steps = member.count("iterations") or 0
    return LoopRecord(
        member.info.name,
        _state_of(member, away=away),
        steps,
        min(steps, member.count("synced_iterations") or 0),
        member.count("rounds") or 0,
        "" if member.left else member.lost_because,
    )


def _state_of(member: Member, *, away: bool) -> LoopState:
    if not member.alive:
        return "left" if member.left else "died"
    return "away" if away else "training" if member.begun else "joining"
