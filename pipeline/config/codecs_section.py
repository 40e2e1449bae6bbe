"""The section of a job file on how values travel."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from ..wire.codecs.float32 import Float32
from ..wire.codecs.int8 import LARGEST_BLOCK, SMALLEST_BLOCK
from ..wire.codecs.registry import STATELESS, CodecOptions, LinkCodecs, make_codec
from ..wire.codecs.topk import LARGEST_FRACTION
from .strict import STRICT


class CodecsSection(BaseModel):
    """How values travel on the links of synchronization, each way: to the center or to the trainer that
    reduces a slice, and back; and between workers and embedding nodes, where there is no error feedback.
    `int8_block` and `topk_fraction` are the options of the codecs of that name."""

    model_config = STRICT

    center_up: str = Float32.name
    center_down: str = Float32.name
    peers_up: str = Float32.name
    peers_down: str = Float32.name
    vectors: str = Float32.name
    gradients: str = Float32.name
    int8_block: Annotated[int, Field(ge=SMALLEST_BLOCK, le=LARGEST_BLOCK)] = CodecOptions.int8_block
    topk_fraction: Annotated[float, Field(gt=0, le=LARGEST_FRACTION)] = CodecOptions.topk_fraction

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
