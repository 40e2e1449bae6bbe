"""The section of a job file on the embedding nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .section import Fraction, Positive, Rate, Section
from .tables import RowOptimizerName, RowStorageName


class EmbeddingSection(Section):
    """The nodes that hold the tables, and the optimizer of the rows; see `[tables.NAME]` for one table."""

    nodes: Positive = Field(default=1, description="How many; the tables are split over them.")
    optimizer: RowOptimizerName = Field(
        default="rowwise_adagrad",
        description="Of the rows: `rowwise_adagrad` keeps one number a row, `adagrad` one for each float, "
        "`adam` two for each float and the count of a row's own steps (lazy: rows without a gradient stay).",
    )
    lr: Rate = Field(default=0.02, description="Learning rate of the rows.")
    init_scale: Rate = Field(
        default=0.05, description="First values are uniform in `[-init_scale, init_scale)`."
    )
    storage: RowStorageName = Field(
        default="float32",
        description="Of the rows in a node's memory: `bfloat16` halves them. Steps are taken in float32 and "
        "rounded at random, so that small ones are not lost; optimizer state, messages and checkpoints are "
        "float32.",
    )
    threads: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1,
        description="Of a node, that read and write its rows, each row by one of them. More than one pays on "
        "a host with cores to spare.",
    )
    placement: Literal["measured", "rows"] = Field(
        default="measured",
        description="How the tables are split over several nodes: `measured` reads a sample of the input, "
        "times lookups and updates, and levels what they cost the nodes, where none keeps more than 1.25 "
        "times the mean of the bytes; `rows` levels the bytes, whatever is looked up. A run that goes on "
        "with as many nodes keeps the split of its checkpoint.",
    )
    memory_fraction: Fraction = Field(
        default=0.8, description="Of the memory that is free, how much a node's rows may take."
    )
