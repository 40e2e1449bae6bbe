"""The section of a job file on how values travel."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from ..codecs.float32 import Float32
from ..codecs.int8 import LARGEST_BLOCK, SMALLEST_BLOCK
from ..codecs.registry import STATELESS, CodecOptions, LinkCodecs, make_codec
from ..codecs.topk import LARGEST_FRACTION
from .sections import STRICT


class CodecsSection(BaseModel):
    """How values travel: "float32", "bfloat16", "float16", "int8" (by block) or "topk".

    On the links of synchronization what a codec loses is fed back into what it sends next; on those between
    workers and embedding nodes it is not, so "topk" will not do there.
    """

    model_config = STRICT

    center_up: str = Field(default=Float32.name, description="From trainers to sync nodes.")
    center_down: str = Field(default=Float32.name, description="From sync nodes to trainers.")
    peers_up: str = Field(default=Float32.name, description="From trainers to the one that reduces a slice.")
    peers_down: str = Field(default=Float32.name, description="From that one back to all.")
    vectors: str = Field(
        default=Float32.name, description="From embedding nodes to workers; without error feedback."
    )
    gradients: str = Field(
        default=Float32.name, description="From workers to embedding nodes; without error feedback."
    )
    int8_block: Annotated[int, Field(ge=SMALLEST_BLOCK, le=LARGEST_BLOCK)] = Field(
        default=CodecOptions.int8_block, description="int8: elements that share a scale."
    )
    topk_fraction: Annotated[float, Field(gt=0, le=LARGEST_FRACTION)] = Field(
        default=CodecOptions.topk_fraction, description="topk: the part of the elements that travels."
    )

    @field_validator("center_up", "center_down", "peers_up", "peers_down")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        try:
            make_codec(name)
        except ValueError as error:
            raise ValueError(f"codecs.{info.field_name}: {error}") from error
        return name

    @field_validator("vectors", "gradients")
    @classmethod
    def _stateless(cls, name: str, info: ValidationInfo) -> str:
        if name not in STATELESS:
            raise ValueError(
                f"codecs.{info.field_name}: {name!r} given; without error feedback only "
                f"{', '.join(STATELESS)} will do"
            )
        return name

    def center(self) -> LinkCodecs:
        """Those of the link between trainers and sync nodes."""
        return self._pair(self.center_up, self.center_down)

    def peers(self) -> LinkCodecs:
        """Those of the links among trainers."""
        return self._pair(self.peers_up, self.peers_down)

    def embedding(self) -> LinkCodecs:
        """Those of the links between workers and embedding nodes: gradients up, vectors down."""
        return self._pair(self.gradients, self.vectors)

    def _pair(self, up: str, down: str) -> LinkCodecs:
        options = CodecOptions(self.int8_block, self.topk_fraction)
        return LinkCodecs(make_codec(up, options), make_codec(down, options))
