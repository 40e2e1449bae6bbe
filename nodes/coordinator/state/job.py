"""The coordinator's state of a job: data and transitions, without I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....pipeline.checkpoint.run_checkpoints import FolderCheckpoints, RunCheckpoints
from ....pipeline.config.job import Job
from ....pipeline.data.formats.parquet import IdClass
from ....pipeline.data.span import Span
from ....pipeline.wire.control.orders import GroupView
from ....pipeline.wire.field_checks import Counts
from ...control.cluster_state import ClusterState
from ...control.membership import Member, Membership
from ...control.progress import InputFacts, InputSize, Origin
from ...control.sync_controller import control_of
from ..ledger.ledger import LedgerState
from .checkpointing import CheckpointingState
from .outcome import Conclusion, Stop
from .phases import NEXT_PHASES, JobPhase, PhaseError
from .placement import TablePlacement
from .training import TrainingState
from .verdicts import center_has_model, stop_for


@dataclass(frozen=True)
class Death:
    """Consequences of the death of a node.

    Attributes:
        stop: why the job stops, if it does.
        group: the trainers' group without it, if it was in one.
    """

    member: Member
    stop: Stop | None
    group: GroupView | None


class JobState(ClusterState):
    """Everything that the coordinator knows of its job. Owned by the coordinator's loop.

    Others reach the small states that it has. What the journal decides changes it by its methods alone.

    Args:
        absolute_folder: the run's folder for nodes, which may have another working directory; by default
            `folder`, which is then absolute.
        checkpoints: where the run has its checkpoints; by default in its folder.
        input_facts: facts of the input; by default none is known.
        origin: the origin of a resumed run; by default the run is new.
        clock: returns seconds that never decrease.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        ledger: LedgerState,
        placement: TablePlacement,
        *,
        absolute_folder: Path | None = None,
        checkpoints: RunCheckpoints | None = None,
        input_facts: InputFacts | None = None,
        origin: Origin | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(job, folder, clock)
        self.absolute_folder = absolute_folder or folder
        self.checkpoints = checkpoints or FolderCheckpoints(self.absolute_folder)
        self.ledger = ledger
        self.placement = placement
        self.training = TrainingState(job, ledger, input_facts or InputFacts(InputSize.unknown()))
        self.checkpointing = CheckpointingState()
        self.origin = origin or Origin()
        self.members: Membership = Membership(job.expected, job.digest)
        self.folder_was_removed = False
        # The slice of the center that each sync node holds or held, by token.
        self.slices: dict[str, int] = {}
        self.outcome = "ended"
        self.phase = JobPhase.GATHERING
        self.stop: Stop | None = None
        # How the job ends; None until all that its nodes have to do is done.
        self.conclusion: Conclusion | None = None
        # CPU seconds of each node when training began, by name; None before.
        self.training_began: dict[str, float] | None = None
        # Why training ended before the end of its input, or empty; None while it goes on.
        self.training_ended: str | None = None
        # Number of coordinators that took over from a dead one.
        self.takeovers = 0

    @property
    def is_training(self) -> bool:
        """Whether the job trains, with no stop requested."""
        return self.phase is JobPhase.TRAINING and self.stop is None

    @property
    def over(self) -> bool:
        """Whether nodes were told to end; a node that ends then is not dead."""
        return self.phase is JobPhase.DONE

    def enter(self, phase: JobPhase) -> None:
        """Enter the next phase; raises PhaseError if it cannot follow."""
        if phase not in NEXT_PHASES[self.phase]:
            raise PhaseError(f"{phase.name} cannot follow {self.phase.name}")
        self.phase = phase

    def add_spans(self, spans: Sequence[Span], id_classes: Mapping[str, IdClass]) -> None:
        """Append the spans of new files to the input.

        `id_classes` are those of all files so far.
        """
        self.ledger.queue.add(spans)
        self.training.learn_id_classes(id_classes)

    def finish(self, outcome: str) -> None:
        """End the job; `outcome` is reported to watchers."""
        self.enter(JobPhase.DONE)
        self.outcome = outcome

    def conclude(self, conclusion: Conclusion) -> None:
        """Record how the job ends; only its nodes are still to be told."""
        self.conclusion = conclusion

    def request_stop(self, stop: Stop) -> bool:
        """Record a reason to stop; return whether it is the first, which counts."""
        if self.stop is not None:
            return False
        self.stop = stop
        return True

    def start_members(self) -> None:
        """Enter STARTING; later nodes join late."""
        self.enter(JobPhase.STARTING)
        self.members.start()
        trainers = self.members.alive("trainer")
        self.slices = {sync.info.token: number for number, sync in enumerate(self.members.alive("sync"))}
        # All trainers agree: a plug-in of another version would differ in its first weights or fail.
        elastic = trainers[0].facts.elastic if trainers else None
        self.control = control_of(self.job.sync, len(trainers), elastic)

    def join(
        self, role: str, token: str, digest: str, endpoint: str, host: str, pid: int, former: str = ""
    ) -> Member:
        """Admit a node; raises ClusterError if it cannot be in this job."""
        new, late = self.members.find(token) is None, self.can_join(role, comes_back=bool(former))
        free = self._free_places(role, comes_back=bool(former)) if new and self.members.started else []
        if new and former:
            free = self.members.place_of(role, former, free, self.slices.get(former))
        place = free[0] if free else None
        index = place if role == "embedding" else None
        member = self.members.join(role, token, digest, endpoint, late=late, place=index, former=former)
        if role == "sync" and place is not None:
            self.slices[token] = place
        self.places[token] = host, pid
        return member

    def can_join(self, role: str, *, comes_back: bool = False) -> bool:
        """Return whether a node of this role may join while the job trains.

        A reader always may, an embedding node only as the replacement of a dead one. A sync node may as a
        replacement if the algorithm can rebuild its slice. A trainer may if another one lives and the center
        is complete or can be rebuilt, or if none lives and the center has the model. The schedule of a job of
        one trainer counts that one alone, so such a job never gets a second one. A node that
        `comes_back` has what it had, so nothing need be rebuilt.
        """
        if not self.is_training:
            return False
        if role == "trainer":
            return self.training.balancer is None and self._can_join_as_trainer()
        return role == "reader" or bool(self._free_places(role, comes_back=comes_back))

    def _can_join_as_trainer(self) -> bool:
        trainers, many = self.members.alive("trainer"), self.job.trainer.count > 1
        if not trainers:
            return (many or not self.members.joining("trainer")) and center_has_model(self)
        return many and (any(one.facts.recenters for one in trainers) or not self.empty_slices())

    def _free_places(self, role: str, *, comes_back: bool) -> list[int]:
        """Return the free shards, or slices of the center, of a role."""
        if role == "sync":
            return self._free_slices(anew=not comes_back)
        return self._free_shards() if role == "embedding" else []

    def _free_slices(self, *, anew: bool) -> list[int]:
        """Return the free slices; if they are to be made `anew`, those that can be."""
        can = not anew or any(trainer.facts.recenters for trainer in self.members.alive("trainer"))
        reserved = {self.slices.get(member.info.token) for member in self.members.joining("sync")}
        return [number for number in self.empty_slices() if can and number not in reserved]

    def _free_shards(self) -> list[int]:
        """Return the shards that no embedding node holds or is about to hold."""
        reserved = {member.info.index for member in self.members.joining("embedding")}
        return [number for number in self.empty_shards() if number not in reserved]

    def empty_shards(self) -> list[int]:
        """Return shards without an active embedding node."""
        held = {member.info.index for member in self.members.alive("embedding")}
        return [number for number in range(self.job.embedding.nodes) if number not in held]

    def empty_slices(self) -> list[int]:
        """Return slices without an active sync node."""
        held = {self.slices.get(member.info.token) for member in self.members.alive("sync")}
        return sorted(set(self.slices.values()) - held)

    def heartbeat(self, member: Member, metrics: Counts) -> float | None:
        """Record the counts of a living node; `metrics` is kept, not copied.

        Returns the number of micro-batches per batch from now on; None if it stays.
        """
        member.record_heartbeat(metrics)
        now, name = self.seconds(), member.info.name
        self.rates.record_heartbeat(name, now, metrics)
        if member.info.role == "trainer":
            self.training.metrics.heartbeat(name, now, metrics)
        # A trainer of owed batches is not slow: these count no iterations.
        balanced = self.phase is JobPhase.TRAINING and self.ledger.owed.is_settled
        return self.training.balance(name, now, metrics) if balanced else None

    def begin_training(self, cpu_seconds: Mapping[str, float]) -> None:
        """Begin TRAINING; `cpu_seconds` are those that nodes have used before."""
        self.enter(JobPhase.TRAINING)
        self.training_began = dict(cpu_seconds)

    def end_training(self, ended_early: str) -> None:
        """Record the end of training, and why it came early, if so."""
        self.training_ended = ended_early

    def replace_coordinator(self) -> None:
        """Record that another coordinator has taken over."""
        self.takeovers += 1

    def folder_removed(self) -> None:
        """Record that somebody removed the run's folder."""
        self.folder_was_removed = True

    def mark_dead(self, token: str, why: str) -> Death | None:
        """Record a node as dead, and what only it knew as lost.

        Returns None if it was dead already, or the job is over.
        """
        member = None if self.over else self.members.lose(token, why)
        if member is None:
            return None
        if member.info.role == "reader":
            self.training.lose_reader(member.info.name)
        if member.info.role == "embedding" and member.begun:
            self.ledger.owed.lose_shard(member.info.index)
        if member.info.role != "trainer" or not member.begun:
            return Death(member, stop_for(self, member), None)
        self.training.lose_trainer(member)
        return Death(member, stop_for(self, member), self.group.lose(member.info.index))

    def can_leave(self, member: Member) -> bool:
        """Return whether the job can continue without a node."""
        role, others = member.info.role, len(self.members.alive(member.info.role)) - 1
        # The lacking batches of a shard are known only once all trainers have reported their pushes.
        fits = role == "reader" or (role == "trainer" and self.training.balancer is None)
        return fits and others > 0 and member.begun and self.is_training and self.ledger.owed.has_all_shards

    def leave(self, member: Member, counts: Counts) -> Death:
        """Record a node's departure and its last counts."""
        member.leave()
        if member.info.role == "reader":
            self.training.lose_reader(member.info.name)
            return Death(member, None, None)
        self.training.trainer_left(member.info.name, counts)
        return Death(member, None, self.group.lose(member.info.index))

    def has_to_recover(self, dead: Member) -> bool:
        """Return whether recovery from a node's death is unfinished."""
        if not dead.begun or dead.info.role not in ("reader", "embedding", "trainer"):
            return False
        if dead.info.role == "trainer":
            return not dead.left and not self.members.alive("trainer")
        if dead.info.role == "reader":
            return self.ledger.has_unread_of(dead.info.name) or not self.members.alive("reader")
        return dead.info.index in self.empty_shards()
