"""report.json: what a run states about itself. Every number in it was measured in that run."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

FORMAT_VERSION: Final = 1
NE_PICTURE: Final = "ne.png"
THROUGHPUT_PICTURE: Final = "throughput.png"
SYNC_GAP_PICTURE: Final = "sync_gap.png"
OUTCOMES: Final = ("finished", "finished although a node died", "interrupted")

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
Point = tuple[Amount, Amount]


class Part(BaseModel):
    """Base of all parts: frozen, no unknown keys, no NaN. A number that could not be measured is None."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Examples(Part):
    """Where the examples went, in the words of the ledger; `reasons` counts the bad and dropped by why."""

    read: Count
    distinct: Count
    trained: Count
    replayed: Count
    returned: Count
    in_flight: Count
    dropped: Count
    bad_rows: Count
    reasons: dict[str, Count] = {}


class Throughput(Part):
    """From the first to the last trained batch; `per_trainer` is examples/s by the trainer's name.

    `cpu_seconds_per_million` is of all nodes together, for a million trained examples.
    """

    examples_per_second: Amount | None
    per_trainer: dict[str, Amount]
    cpu_seconds_per_million: Amount | None


class Train(Part):
    """`ne_progressive`: normalized entropy of all trained examples, each scored before it was trained on."""

    ne_progressive: Amount | None


class Evaluation(Part):
    """Quality on the held-out files of the model that `model` names, in words ("the center (easgd)").

    `ne`, `auc` and `calibration` are None where all labels are the same. `auc_error` bounds what the
    histogram can have cost `auc`. `teacher_ne` and `gain_ratio` exist for generated logs only.
    """

    model: str
    ne: Amount | None
    auc: Amount | None
    auc_error: Amount | None = None
    logloss: Amount
    calibration: Amount | None
    examples: Annotated[int, Field(ge=1)]
    teacher_ne: Amount | None = None
    gain_ratio: float | None = None


class LinkTraffic(Part):
    """One way of the links of synchronization: `bytes` went through the trainers' sockets, headers included;
    `float32_bytes` is what the values among them take as float32."""

    codec: str
    bytes: Count
    float32_bytes: Count

    @property
    def compression(self) -> float | None:
        """How many times fewer bytes than float32; headers make it a little less than 1 for float32."""
        return self.float32_bytes / self.bytes if self.bytes else None


class Sync(Part):
    """Gaps in iterations of a trainer between completed rounds; `bytes` counts both ways.

    `seconds_mean` is a round's time from its start until it was applied. `incomplete_rounds` ended without
    all of their slices; `undecided_rounds` are those of them that a trainer that was gone may have
    completed; `unanswered_slices` moved a center and are not known to have reached their trainer. `links` is
    by the way's name in the job's `codecs`, of those that carried anything; `reference_bytes` is the memory
    that lossy codecs needed at the end, by the role that held it.
    """

    algorithm: str
    mode: str
    rounds: Count
    incomplete_rounds: Count = 0
    undecided_rounds: Count = 0
    unanswered_slices: Count = 0
    gap_mean: Amount | None
    gap_max: Amount | None
    bytes: Count
    seconds_mean: Amount | None
    links: dict[str, LinkTraffic] = {}
    reference_bytes: dict[str, Count] = {}


class Staleness(Part):
    """Pushes that a shard applied between a lookup and the same batch's own push."""

    embedding_mean: Amount | None
    embedding_max: Amount | None


class Replicas(Part):
    """`divergence`: norm(w_i - mean) / norm(mean), averaged over the trainers, at the end."""

    divergence: Amount | None


class Identity(Part):
    """One equation of the ledger: `name` states it, `left` and `right` are its sides as counted."""

    name: str
    left: int
    right: int
    holds: bool

    @classmethod
    def of(cls, name: str, left: int, right: int) -> Self:
        """The identity, with `holds` as the numbers have it."""
        return cls(name=name, left=left, right=right, holds=left == right)

    @model_validator(mode="after")
    def _true(self) -> Self:
        if self.holds != (self.left == self.right):
            raise ValueError(f"{self.name}: {self.left} and {self.right} do not make holds={self.holds}")
        return self


class Ledger(Part):
    """The books. `adds_up` is whether every identity holds; a report that says otherwise is refused.

    `lost_dense_updates` counts batches whose dense update died with a trainer; `shard_applied` the
    batches that each embedding shard applied, by its name.
    """

    identities: Annotated[list[Identity], Field(min_length=1)]
    adds_up: bool
    lost_dense_updates: Count
    shard_applied: dict[str, Count]

    @classmethod
    def of(cls, identities: list[Identity], lost_dense_updates: int, shard_applied: dict[str, int]) -> Self:
        """The ledger, with `adds_up` as the identities have it."""
        return cls(
            identities=identities,
            adds_up=all(identity.holds for identity in identities),
            lost_dense_updates=lost_dense_updates,
            shard_applied=shard_applied,
        )

    @model_validator(mode="after")
    def _true(self) -> Self:
        if self.adds_up != all(identity.holds for identity in self.identities):
            raise ValueError(f"adds_up={self.adds_up} is not what the identities say")
        return self


class Event(Part):
    """Something that happened to a node (a death, a join), in seconds since the start."""

    seconds: Amount
    node: str
    what: str


class Node(Part):
    """A process of the run; `exit` is in words ("0", "killed by signal 9"), None if it never ended."""

    name: str
    role: str
    cpu_seconds: Amount | None
    peak_memory_bytes: Count | None
    exit: str | None


class Curves(Part):
    """What the pictures show. A point of `ne` is (examples trained so far, NE of those since the last).

    The others have points (seconds since the start, value), by the trainer's name where they are of one;
    `divergence` is of a sample of the replicas' elements.
    """

    ne: list[Point] = []
    throughput: dict[str, list[Point]] = {}
    sync_gap: dict[str, list[Point]] = {}
    divergence: list[Point] = []


class EmulatedNetwork(Part):
    """A slow network that was emulated, by a relay or by the kernel's traffic control ("tc").

    The delay is one way; the rate is of each listening node, in each direction. `links` are "sync" or "all".
    What the relay cost is None for "tc".
    """

    means: Literal["relay", "tc"]
    delay_seconds: Amount
    bytes_per_second: Amount | None
    links: Literal["sync", "all"]
    relay_cpu_seconds: Amount | None
    relay_bytes: Count | None


class Hardware(Part):
    """The machine of the coordinator; `cores` are those that the process may use."""

    cpu_model: str | None
    cores: Annotated[int, Field(ge=1)] | None
    memory_bytes: Annotated[int, Field(ge=1)] | None


class Report(Part):
    """All of report.json. `elp` is batch x workers x trainers; `model_saved` says which model was saved.

    `outcome` is one of `OUTCOMES`, or "stopped: " and why; `started_at` is ISO 8601.
    """

    format_version: Literal[1] = 1
    run: str
    outcome: str
    exit_code: Annotated[int, Field(ge=0, le=255)]
    started_at: str
    wall_seconds: Amount
    seed: Count
    job_digest: str
    model_saved: str | None
    examples: Examples
    throughput: Throughput
    train: Train
    eval: Evaluation | None
    sync: Sync
    elp: Annotated[int, Field(ge=1)]
    staleness: Staleness
    replicas: Replicas
    ledger: Ledger
    events: list[Event] = []
    nodes: list[Node] = []
    network: EmulatedNetwork | None = None
    hardware: Hardware
    versions: dict[str, str]
    curves: Curves = Curves()

    @model_validator(mode="after")
    def _known_outcome(self) -> Self:
        if self.outcome not in OUTCOMES and not self.outcome.startswith("stopped: "):
            raise ValueError(
                f'outcome: one of {", ".join(OUTCOMES)}, or "stopped: ...", not {self.outcome!r}'
            )
        return self
