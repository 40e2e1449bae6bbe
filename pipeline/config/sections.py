"""How strictly every section of a job file is read.

The section of a job file on checkpoints that are taken while training goes on.

What the sections of a job file share.

The section of a job file on the run itself.

The section of a job file on what a run starts from.

The section of a job file on synchronization.

The section of a job file on validation while training goes on.

The sections of a job file on how a run can be watched, and what its report has.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

# Strict types, frozen, no unknown keys. An option that is inf must reach the other nodes as inf; pydantic
# would write null.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class CheckpointSection(BaseModel):
    """Checkpoints while training goes on; one is always written at the end.

    Training never waits for a disk. Pushes and lookups of an embedding node wait while its rows are copied in
    memory, 35 to 70 ms for each 100 MB of them as measured; where the memory for that copy is not there, no
    checkpoint is taken, and the report says so.

    With both keys set, whichever is due first counts.
    """

    model_config = STRICT

    every_examples: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="A checkpoint after every so many trained examples, over all trainers. 0: none.",
    )
    every_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="A checkpoint after every so many seconds of training. 0: none."
    )


Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of the sections."""

    model_config = STRICT


class RunSection(Section):
    """Who this run is and where its folder lies."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = Field(
        default="job",
        description="Names the run's folder; NAME-2, NAME-3, ... where that is taken. The default of a job"
        " file is its own name.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=1, description="Of the first weights, the first rows, the shuffles and the drawn groups."
    )
    deterministic: bool = Field(
        default=False,
        description="The same bits from the same job, every time. It needs one trainer with one worker, one"
        ' reader, and sync.mode = "fixed" or sync.algorithm = "none".',
    )
    directory: str = Field(
        default="runs", description="Where runs have their folders, relative to the working directory."
    )
    node_timeout_seconds: Seconds = Field(
        default=15.0, description="A node that is silent for so long is declared dead."
    )
    start_timeout_seconds: Seconds = Field(
        default=60.0, description="How long nodes are waited for until all are there."
    )


class StartSection(BaseModel):
    """What a run starts from: first values of its own, or the checkpoint of another run."""

    model_config = STRICT

    checkpoint: str = Field(
        default="",
        description="The folder of a run, or of a checkpoint, to start from, relative to that of the job"
        " file. Empty: from first values.",
    )
    which: Literal["last", "best"] = Field(
        default="last",
        description="Which checkpoint of that run: its last one, or the one that validation kept.",
    )
    dense: Literal["matching", "all", "none"] = Field(
        default="matching",
        description="Which dense parameters are taken: those of the same name and shape, all of them (a run"
        " whose model differs is refused), or none.",
    )
    resume: bool = Field(
        default=False,
        description="Go on with that run itself, as `shadowsync resume` does: its ledger, its optimizer"
        " states and its replicas are taken over, and what it trained is not trained again.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> StartSection:
        if self.resume and not self.checkpoint:
            raise ValueError(
                "start.resume: true given; it needs start.checkpoint, use `shadowsync resume RUN`"
            )
        if self.resume and self.dense != "matching":
            raise ValueError(
                f'start.dense: "{self.dense}" given; a resumed run takes its whole model, leave it out'
            )
        return self


class SyncSection(Section):
    """How the replicas are synchronized. `shadowsync algos` lists the algorithms and their options."""

    algorithm: str = Field(
        default="easgd",
        description="`easgd`, `easgd_symmetric`, `ma`, `bmuf`, `gossip`, `ds_sync`, `none`, or your own,"
        ' "package.module:Class" or "./file.py:Class".',
    )
    mode: Literal["shadow", "fixed"] = Field(
        default="shadow",
        description='"shadow": in the background; "fixed": in the loop, after every `every` iterations.',
    )
    every: Positive = Field(default=30, description="fixed: iterations of a worker between two rounds.")
    duty: Fraction = Field(
        default=0.01,
        description="shadow: which part of a core, and of `link_bytes_per_second`, rounds may take.",
    )
    nodes: Annotated[int, Field(ge=0)] = Field(
        default=1,
        description="Sync nodes, for an algorithm with a center; for others every node takes it for 0.",
    )
    chunk_bytes: Annotated[int, Field(ge=1 << 12, le=64 << 20)] = Field(
        default=1 << 20, description="Slices travel in chunks of so many bytes."
    )
    link_bytes_per_second: Rate | None = Field(
        default=None, description="The rate of the link, for `duty`; without it only CPU counts."
    )
    timeout_seconds: Seconds = Field(
        default=10.0,
        description="How long a round waits for a peer or a sync node before it goes on without.",
    )
    options: dict[str, JsonValue] = Field(default={}, description="The algorithm's own.")


class ValidationSection(BaseModel):
    """Validation while training goes on, in a process of its own, of a checkpoint that was just written.

    The checkpoint that is scored is named, and the best one is kept in the run's folder as `best/`. It needs
    validation data: `data.validation_path`, or `data.split.validation`.
    """

    model_config = STRICT

    every_examples: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Validate after every so many trained examples, over all trainers. 0: never."
    )
    every_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="Validate after every so many seconds of training. 0: never."
    )
    metric: Literal["ne", "auc", "logloss"] = Field(
        default="ne",
        description="What decides which checkpoint is the best: the lowest NE or logloss, the highest AUC.",
    )
    patience: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Training ends early, and well, after so many validations in a row that were no"
        " improvement. 0: never.",
    )
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0,
        description="By how much the metric must be better than the best so far to be an improvement.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> ValidationSection:
        if self.patience and not self.wanted:
            raise ValueError(
                f"validation.patience: {self.patience} given; set validation.every_examples or "
                "validation.every_seconds, or nothing is ever validated"
            )
        return self

    @property
    def wanted(self) -> bool:
        """Whether anything is validated while training goes on."""
        return self.every_examples > 0 or self.every_seconds > 0


LOOPBACK = "127.0.0.1"
MAX_PORT = 65_535


def parse_page_address(text: str) -> tuple[str, int]:
    """Host and port of "8080" (loopback) or "HOST:PORT"; port 0 is any free one. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > MAX_PORT or (colon and not host):
        raise ValueError(f'"{text}" given; write a port, as "8080", or HOST:PORT, as "0.0.0.0:8080"')
    return host or LOOPBACK, int(port)


class WatchSection(BaseModel):
    """What shows a run while it goes on; docs/watching.md. Nodes need not agree on it."""

    model_config = STRICT

    web: str = Field(
        default="", description='Where the coordinator serves its page: "8080" (loopback) or "HOST:PORT".'
    )
    tensorboard: bool = Field(
        default=False, description="Whether the coordinator writes event files into the run's folder."
    )
    metrics_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = Field(
        default=0,
        description="Where every node serves Prometheus its metrics, at `network.bind`; 0: nowhere. Under"
        " `shadowsync run` it is the coordinator's, and the nodes have the ports after it.",
    )

    @field_validator("web")
    @classmethod
    def _address(cls, text: str) -> str:
        try:
            if text:
                parse_page_address(text)
        except ValueError as error:
            raise ValueError(f"watch.web: {error}") from error
        return text


class ReportSection(BaseModel):
    """What the report of a run has beside its figures. Nodes need not agree on it."""

    model_config = STRICT

    pictures: bool = Field(
        default=True,
        description="Whether the curves are drawn, as ne.png, throughput.png and sync_gap.png; their points"
        " are in report.json in any case.",
    )
