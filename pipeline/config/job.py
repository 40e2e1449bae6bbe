"""The schema of a job file. Every default here is the documented one; unknown keys are refused."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import BaseModel, Field, JsonValue, model_validator

from .codecs_section import CodecsSection
from .slow_network import SlowNetwork, parse_bandwidth, parse_delay
from .strict import STRICT

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of the sections."""

    model_config = STRICT


class RunSection(Section):
    """Who this run is and where its folder lies."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = "job"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    deterministic: bool = False
    directory: str = "runs"
    node_timeout_seconds: Seconds = 15.0
    start_timeout_seconds: Seconds = 60.0


class DataSection(Section):
    """The input. `path` and `eval_path` are one or more globs, relative to the folder of the job file."""

    format: Literal["criteo_tsv", "parquet"]
    path: Annotated[list[str], Field(min_length=1)]
    eval_path: list[str] = []
    epochs: Positive = 1
    shuffle_window: Annotated[int, Field(ge=0, le=10_000_000)] = 65_536
    max_bad_rows: Annotated[int, Field(ge=0)] = 1_000
    readers: Positive = 1
    span_bytes: Annotated[int, Field(ge=1 << 16)] = 64 << 20
    dense_features: Annotated[int, Field(ge=0, le=4096)] = 13
    categorical_features: Annotated[int, Field(ge=1, le=4096)] = 26
    retain_bytes: Annotated[int, Field(ge=1 << 20)] = 64 << 20


class ModelSection(Section):
    """The dense model and its tables; `table_rows` is one number for all of them or one for each."""

    name: str = "dlrm"
    embedding_dim: Annotated[int, Field(ge=1, le=4096)] = 16
    table_rows: Annotated[int, Field(ge=1, lt=2**31)] | list[Annotated[int, Field(ge=1, lt=2**31)]] = 100_000
    bottom: Annotated[list[Positive], Field(max_length=64)] = [512, 256, 64]
    top: Annotated[list[Positive], Field(max_length=64)] = [512, 256]
    options: dict[str, JsonValue] = {}


class TrainerSection(Section):
    """The trainers and their Hogwild workers."""

    count: Positive = 1
    workers: Positive = 1
    batch: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    optimizer: Literal["sgd", "adagrad", "adam"] = "adagrad"
    lr: Rate = 0.01
    credit: Annotated[int, Field(ge=1, le=1024)] = 4


class EmbeddingSection(Section):
    """The nodes that hold the tables, and the optimizer of the rows.

    First values are uniform in `[-init_scale, init_scale)`.
    """

    nodes: Positive = 1
    optimizer: Literal["sgd", "rowwise_adagrad"] = "rowwise_adagrad"
    lr: Rate = 0.02
    init_scale: Rate = 0.05
    memory_fraction: Fraction = 0.8


class SyncSection(Section):
    """How the replicas are synchronized.

    `nodes` is how many sync nodes an algorithm with a center has; for others every node takes it for 0.
    """

    algorithm: str = "easgd"
    mode: Literal["shadow", "fixed"] = "shadow"
    every: Positive = 30
    duty: Fraction = 0.01
    nodes: Annotated[int, Field(ge=0)] = 1
    chunk_bytes: Annotated[int, Field(ge=1 << 12, le=64 << 20)] = 1 << 20
    link_bytes_per_second: Rate | None = None
    timeout_seconds: Seconds = 10.0
    options: dict[str, JsonValue] = {}


class NetworkSection(Section):
    """The defaults of `--bind` and `--advertise`, which differ from host to host, and the transport.

    `transport`: "ipc" costs a third less CPU than loopback TCP and stays on one Linux machine. "auto" takes
    it for the nodes of `shadowsync run` while `bind` is the loopback address, and TCP otherwise.

    `delay` ("50ms", one way) and `bandwidth` ("100mbit") put a slow network on the links of synchronization,
    or with `delay_links` on all, under `shadowsync run` only. `emulation` says by which means; "auto" takes
    the kernel's where it can, and a relay otherwise.
    """

    transport: Literal["auto", "tcp", "ipc"] = "auto"
    bind: str = "127.0.0.1"
    advertise: str = ""
    delay: str = ""
    bandwidth: str = ""
    delay_links: Literal["sync", "all"] = "sync"
    emulation: Literal["auto", "relay", "tc"] = "auto"

    @model_validator(mode="after")
    def _units(self) -> NetworkSection:
        for key, text, parse in (
            ("delay", self.delay, parse_delay),
            ("bandwidth", self.bandwidth, parse_bandwidth),
        ):
            try:
                if text:
                    parse(text)
            except ValueError as error:
                raise ValueError(f"network.{key}: {error}") from error
        if self.slow is not None and self.emulation == "tc" and self.transport == "ipc":
            raise ValueError('network.transport: "ipc" given; network.emulation = "tc" needs "tcp" or "auto"')
        return self

    @property
    def slow(self) -> SlowNetwork | None:
        """The network to emulate, if one is asked for."""
        if not self.delay and not self.bandwidth:
            return None
        return SlowNetwork(
            delay_seconds=parse_delay(self.delay) if self.delay else 0.0,
            bytes_per_second=parse_bandwidth(self.bandwidth) if self.bandwidth else None,
            every_link=self.delay_links == "all",
        )


class Job(Section):
    """A whole job file, resolved: what every node of the job must agree on, but for `network`."""

    run: RunSection = RunSection()
    data: DataSection
    model: ModelSection = ModelSection()
    trainer: TrainerSection = TrainerSection()
    embedding: EmbeddingSection = EmbeddingSection()
    sync: SyncSection = SyncSection()
    codecs: CodecsSection = CodecsSection()
    network: NetworkSection = NetworkSection()

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        rows = self.model.table_rows
        if isinstance(rows, list) and len(rows) != self.data.categorical_features:
            raise ValueError(
                f"model.table_rows: {len(rows)} numbers given; give one number, or one for each of the "
                f"{self.data.categorical_features} tables (data.categorical_features)"
            )
        if self.run.deterministic:
            for key, given in (
                ("trainer.count", self.trainer.count),
                ("trainer.workers", self.trainer.workers),
                ("data.readers", self.data.readers),
            ):
                if given != 1:
                    raise ValueError(f"{key}: {given} given; run.deterministic = true needs 1")
            if self.sync.mode != "fixed" and self.sync.algorithm != "none":
                raise ValueError(
                    'sync.mode: "shadow" given; run.deterministic = true needs "fixed", '
                    'or sync.algorithm = "none"'
                )
        return self

    @property
    def table_rows(self) -> tuple[int, ...]:
        """Rows of each table, one entry per table."""
        rows = self.model.table_rows
        return tuple(rows) if isinstance(rows, list) else (rows,) * self.data.categorical_features

    @property
    def sync_nodes(self) -> int:
        """How many sync nodes the job has; see `nodes.sync_count` for algorithms without a center."""
        return 0 if self.sync.algorithm == "none" else self.sync.nodes

    @property
    def expected(self) -> dict[str, int]:
        """How many nodes of each role the job has, the coordinator aside."""
        return {
            "reader": self.data.readers,
            "trainer": self.trainer.count,
            "embedding": self.embedding.nodes,
            "sync": self.sync_nodes,
        }

    @property
    def digest(self) -> str:
        """Hex SHA-256 of all that the nodes must agree on: not `network`, nor where the run folder lies."""
        text = self.model_dump_json(exclude={"network": True, "run": {"directory"}})
        return hashlib.sha256(text.encode()).hexdigest()
