"""The section of a job file on synchronization."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from .section import Fraction, Positive, Rate, Seconds, Section


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
