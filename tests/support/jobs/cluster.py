"""A whole cluster as separate processes, each started by itself and joined to its coordinator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shadowsync.nodes.sync_rules import with_sync_nodes
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_job

from . import slowed_trainer
from .node_faults import Slowed
from .processes import ENOUGH_SECONDS, Process, Starter, wait_until
from .runs import HasEnd, RunFolder


@dataclass
class Cluster(HasEnd):
    """The processes of one job.

    Attributes:
        nodes: the processes by role, in the order in which they were started.
        slowed: what slows the trainers, if anything does; the share of each in its `at` is the same.
    """

    starter: Starter
    job_file: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: dict[str, list[Process]] = field(default_factory=dict)
    endpoint: str = ""
    slowed: Slowed | None = None

    @property
    def job(self) -> Job:
        """The job as every node has it."""
        return with_sync_nodes(load_job(self.job_file), may_import=True)

    @property
    def run(self) -> RunFolder:
        """The newest run of the job's folder of runs."""
        return RunFolder(Path(self.job.run.directory) / "latest")

    @property
    def coordinator(self) -> Process:
        return self.nodes["coordinator"][0]

    def start_coordinator(self, *options: str) -> Process:
        """Starts the coordinator and waits for its address."""
        process = self.starter.fork("coordinator", str(self.job_file), *options, environment=self.environment)
        self.nodes["coordinator"] = [process]

        def announced() -> bool:
            return "join with: --join" in process.text() or process.poll() is not None

        wait_until(announced, "the coordinator announces its address")
        if process.poll() is None:
            note = json.loads((self.run.folder / "coordinator.json").read_text(encoding="utf-8"))
            self.endpoint = str(note["endpoint"])
        return process

    def take_over(self) -> Process:
        """Starts a coordinator in the place of the one that died."""
        self.coordinator.wait()
        return self.start_coordinator("--recover", str(self.run.folder))

    def join(self, role: str, *options: str, job_file: Path | None = None) -> Process:
        arguments = [str(job_file or self.job_file), "--join", self.endpoint, *options]
        script = None
        if role == "trainer" and self.slowed is not None:
            script, first = Path(slowed_trainer.__file__), self._slowed_arguments(self.slowed)
            arguments = [*first, *arguments]
        process = self.starter.fork(role, *arguments, script=script, environment=self.environment)
        self.nodes.setdefault(role, []).append(process)
        return process

    def _slowed_arguments(self, slowed: Slowed) -> list[str]:
        if slowed.file is None:
            slowed.file = self.job_file.with_name("slowed")
            slowed.file.touch()
        return [str(slowed.file), str(slowed.at // self.job.trainer.count), str(slowed.seconds)]

    def start(self) -> Cluster:
        """Starts every node of the job."""
        self.start_coordinator()
        for role, count in self.job.expected.items():
            for _ in range(count):
                self.join(role)
        return self

    def wait_for_batches(self, count: int) -> None:
        """Waits until the ledger's file has so many, and the job trains."""

        def trained() -> bool:
            return self.run.trains(count) or self.coordinator.poll() is not None

        wait_until(trained, f"{count} batches are trained; the coordinator wrote: {self.coordinator.text()}")
        assert self.coordinator.poll() is None, self.coordinator.text()

    def wait(self, seconds: float = ENOUGH_SECONDS) -> int:
        """Waits for the end of every process; gives the coordinator's exit code."""
        code = self.coordinator.wait(seconds)
        for process in self.everyone():
            # One that comes too late waits for the coordinator as long as for its start.
            process.wait()
        return code

    def everyone(self) -> list[Process]:
        return [process for processes in self.nodes.values() for process in processes]
