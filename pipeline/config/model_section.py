"""The section of a job file on the model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from .section import Positive, Section
from .tables import TableDim, TableRows


class ModelSection(Section):
    """The dense model and its tables."""

    name: str = Field(
        default="dlrm",
        description='"dlrm", "wide_deep", "dcn_v2", or yours: "package.module:Class" or "./file.py:Class".',
    )
    embedding_dim: TableDim = Field(default=16, description="Floats in a row of every table.")
    table_rows: TableRows | list[TableRows] = Field(
        default=100_000, description="Rows of every table; or of each, one number a table."
    )
    bottom: Annotated[list[Positive], Field(max_length=64)] = Field(
        default=[512, 256, 64],
        description="Hidden widths of dlrm's first MLP, over the dense features.",
    )
    top: Annotated[list[Positive], Field(max_length=64)] = Field(
        default=[512, 256], description="Hidden widths of the MLP that ends in the logit."
    )
    options: dict[str, JsonValue] = Field(
        default={},
        description="The model's own: of dlrm `project` (false), for tables of several dimensions; of dcn_v2"
        ' `cross_layers` (3), `rank` (0: full) and `structure` ("stacked" or "parallel").',
    )
