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
from ..ledger.ledger import LedgerState
from .checkpointing import CheckpointingState
from .lone_start import LoneStart
from .outcome import Stop
from .phases import JobLifecycle, JobPhase
from .placement import TablePlacement
from .training import TrainingState
from .vacancies import Vacancies
from .verdicts import have_central_model, lost_shard, lost_trainers, stop_by_death


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

    Others reach the small state that they need; what concerns several of them is here.

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
        self.checkpoints = checkpoints or FolderCheckpoints(self.absolute_folder, job.run.keep_checkpoints)
        self.ledger = ledger
        self.placement = placement
        self.training = TrainingState(job, ledger, input_facts or InputFacts(InputSize.unknown()))
        self.checkpointing = CheckpointingState()
        self.origin = origin or Origin()
        self.members: Membership = Membership(job.expected, job.digest)
        self.lifecycle = JobLifecycle()
        self.vacancies = Vacancies(self.members, job.embedding.nodes)
        self.lone_start = LoneStart(job, self.members, ledger)
        self.folder_was_removed = False

    def add_spans(self, spans: Sequence[Span], id_classes: Mapping[str, IdClass]) -> None:
        """Append the spans of new files to the input.

        `id_classes` are those of all files so far.
        """
        self.ledger.queue.add(spans)
        self.training.learn_id_classes(id_classes)

    def start_members(self) -> None:
        """Enter STARTING; later nodes join late."""
        self.lifecycle.enter(JobPhase.STARTING)
        self.members.start()
        self.vacancies.start(self.members.alive("sync"))
        self.lone_start.begin()

    def join(
        self, role: str, token: str, digest: str, endpoint: str, host: str, pid: int, former: str = ""
    ) -> Member:
        """Admit a node; raises ClusterError if it cannot be in this job."""
        new, late = self.members.find(token) is None, self.can_join(role, comes_back=bool(former))
        free = list[int]()
        if new and self.members.started:
            free = self.vacancies.free(role, comes_back=bool(former))
        if new and former:
            free = self.members.place_of(role, former, free, self.vacancies.slices.get(former))
        place = free[0] if free else None
        index = place if role == "embedding" else None
        member = self.members.join(role, token, digest, endpoint, late=late, place=index, former=former)
        if role == "sync" and place is not None:
            self.vacancies.take_slice(token, place)
        self.places[token] = host, pid
        return member

    def can_join(self, role: str, *, comes_back: bool = False) -> bool:
        """Return whether a node of this role may join while the job trains.

        A reader always may, an embedding node only as the replacement of a dead one. A sync node may as a
        replacement if the algorithm can rebuild its slice. A trainer may if another one lives and the center
        is complete or can be rebuilt, or if none lives and the center has the model, or if one that waits
        for the end of the start is about to go on. The schedule of a job of
        one trainer counts that one alone, so such a job never gets a second one. A node that
        `comes_back` has what it had, so nothing need be rebuilt.
        """
        if not self.lifecycle.is_training:
            return False
        if role == "trainer":
            return self._can_join_as_trainer()
        return role == "reader" or bool(self.vacancies.free(role, comes_back=comes_back))

    def _can_join_as_trainer(self) -> bool:
        trainers, many = self.members.alive("trainer"), self.job.trainer.count > 1
        if not trainers:
            if self.lone_start.waiting():
                return True
            return (many or not self.members.joining("trainer")) and self.center_has_model()
        return many and (
            any(trainer.facts.recenters for trainer in trainers) or not self.vacancies.empty_slices()
        )

    def heartbeat(self, member: Member, metrics: Counts) -> None:
        """Record the counts of a living node; `metrics` is kept, not copied."""
        member.record_heartbeat(metrics)
        now, name = self.seconds(), member.info.name
        self.rates.record_heartbeat(name, now, metrics)
        if member.info.role == "trainer":
            self.training.metrics.heartbeat(name, now, metrics)

    def folder_removed(self) -> None:
        """Record that somebody removed the run's folder."""
        self.folder_was_removed = True

    def mark_dead(self, token: str, why: str) -> Death | None:
        """Record a node as dead, and what only it knew as lost.

        Returns None if it was dead already, or the job is over.
        """
        member = None if self.lifecycle.over else self.members.lose(token, why)
        if member is None:
            return None
        if member.info.role == "reader":
            self.training.lose_reader(member.info.name)
        if member.info.role == "embedding" and member.begun:
            self.ledger.owed.lose_shard(member.info.index)
        if member.info.role != "trainer" or not member.begun:
            return Death(member, self._stop_for(member), None)
        self.training.lose_trainer(member)
        return Death(member, self._stop_for(member), self.group.lose(member.info.index))

    def center_has_model(self) -> bool:
        """Return whether living sync nodes have the model without any trainer."""
        return have_central_model(self.members.everyone("trainer")) and not self.vacancies.empty_slices()

    def _stop_for(self, dead: Member) -> Stop | None:
        """Return why the job cannot continue without this node, if it cannot."""
        name, role, phase = dead.info.name, dead.info.role, self.lifecycle.phase
        if not dead.begun:
            return None
        if role in ("embedding", "reader") and phase in (JobPhase.STARTING, JobPhase.TRAINING):
            # Another node may replace it.
            return None
        if role == "embedding":
            return lost_shard(dead, phase)
        if role == "reader" and not self.ledger.complete and not self.lifecycle.training_ended:
            return stop_by_death(f"{name} died; the batches that it had not delivered are untrained")
        if role == "sync" and phase is JobPhase.TRAINING and not self.members.alive("trainer"):
            return stop_by_death(f"{name} died while the job had no trainer, so the center is lost")
        if role == "trainer" and not self.members.alive("trainer") and not self._can_replace_last_trainer():
            return lost_trainers()
        return None

    def _can_replace_last_trainer(self) -> bool:
        """Return whether a trainer that waits, or a new one, could take over and train on."""
        phase = self.lifecycle.phase
        if self.ledger.complete or phase not in (JobPhase.STARTING, JobPhase.TRAINING):
            return False
        if self.lone_start.waiting():
            return True
        return phase is JobPhase.TRAINING and self.center_has_model()

    def can_leave(self, member: Member) -> bool:
        """Return whether the job can continue without a node, once another one of its role has begun."""
        role, others = member.info.role, len(self.members.alive(member.info.role)) - 1
        others += len(self.lone_start.waiting()) if role == "trainer" else 0
        # The lacking batches of a shard are known only once all trainers have reported their pushes.
        return (
            role in ("reader", "trainer")
            and others > 0
            and member.begun
            and self.lifecycle.is_training
            and self.ledger.owed.has_all_shards
        )

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
        return dead.info.index in self.vacancies.empty_shards()
