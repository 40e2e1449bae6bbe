"""`[network]` and `[codecs]`: addresses, transport and codecs.

`[network]` also has the slow network to emulate; `[codecs]` names the codecs of values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from ..codecs.blocks import LARGEST_BLOCK, SMALLEST_BLOCK
from ..codecs.formats import STATELESS, CodecOptions, Float32, LinkCodecs, make_codec
from ..codecs.topk import LARGEST_FRACTION
from .sections import STRICT, Section

REMOVED_CODECS: Final = {
    "auto": 'was removed: a fixed codec made more rounds on a slow link; give "int8" or "int4" there',
    "float16": 'was removed: it took four times as long as "bfloat16", which has as many bytes; give that',
}
"""Codecs that are gone but that saved jobs still have, and what to do about each; see `load.REMOVED_KEYS`."""


class CodecsSection(BaseModel):
    """Encoding of values: "float32", "sparse", "bfloat16", "int8", "int4", "int2" or "topk".

    The integers have a scale for each block; "topk" sends only the largest elements, in few bits.

    "sparse" leaves zeros out, and loses nothing; it is for an algorithm that sends few elements.

    On the links of synchronization the error of a codec is added to what is sent next (error feedback). On
    the links between workers and embedding nodes it is not, so only "float32" and "bfloat16" are possible
    there.
    """

    model_config = STRICT

    center_up: str = Field(default=Float32.name, description="Parameters from trainers to sync nodes.")
    center_down: str = Field(default=Float32.name, description="Parameters from sync nodes to trainers.")
    peers_up: str = Field(
        default=Float32.name, description="Parameters from trainers to the trainer that reduces a slice."
    )
    peers_down: str = Field(
        default=Float32.name, description="Parameters from the trainer that reduced a slice to all others."
    )
    vectors: str = Field(
        default=Float32.name, description="Vectors from embedding nodes to workers; no error feedback."
    )
    gradients: str = Field(
        default=Float32.name, description="Gradients from workers to embedding nodes; no error feedback."
    )
    int8_block: Annotated[int, Field(ge=SMALLEST_BLOCK, le=LARGEST_BLOCK)] = Field(
        default=CodecOptions.int8_block, description="int8: number of elements that share a scale."
    )
    topk_fraction: Annotated[float, Field(gt=0, le=LARGEST_FRACTION)] = Field(
        default=CodecOptions.topk_fraction, description="topk: share of the elements that is sent."
    )
    topk_bits: Literal[2, 4, 8] = Field(
        default=2, description="topk: bits of each element that is sent, besides its place."
    )

    @field_validator("center_up", "center_down", "peers_up", "peers_down", "vectors", "gradients")
    @classmethod
    def _present(cls, name: str, info: ValidationInfo) -> str:
        if name in REMOVED_CODECS:
            raise ValueError(f'codecs.{info.field_name}: "{name}" {REMOVED_CODECS[name]}')
        return name

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
                f"codecs.{info.field_name}: {name!r} given; this link has no error feedback, use one of "
                f"{', '.join(STATELESS)}"
            )
        return name

    def center(self) -> LinkCodecs:
        """Codecs between trainers and sync nodes."""
        return self._pair(self.center_up, self.center_down)

    def peers(self) -> LinkCodecs:
        """Codecs among trainers."""
        return self._pair(self.peers_up, self.peers_down)

    def embedding(self) -> LinkCodecs:
        """Codecs between workers and embedding nodes: gradients up, vectors down."""
        return self._pair(self.gradients, self.vectors)

    @property
    def _options(self) -> CodecOptions:
        return CodecOptions(self.int8_block, self.topk_fraction, self.topk_bits)

    def _pair(self, up: str, down: str) -> LinkCodecs:
        return LinkCodecs(make_codec(up, self._options), make_codec(down, self._options))


DELAY_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BANDWIDTH_UNITS: Final = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
MAX_DELAY_SECONDS: Final = 10.0
MIN_BYTES_PER_SECOND: Final = 1e3
_NUMBER_AND_UNIT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z/]*)")


@dataclass(frozen=True)
class SlowNetwork:
    """A slow network to emulate.

    Attributes:
        delay_seconds: delay of one way; a request and its reply take twice as long. With 0 the emulation
            still runs, so that runs with and without a delay differ in nothing else.
        bytes_per_second: limit of each listening node, in each direction over all its connections, as if it
            had a network card of its own; None for no limit.
        every_link: whether all links of the job are slow; otherwise only those of synchronization.
    """

    delay_seconds: float
    bytes_per_second: float | None
    every_link: bool


def parse_delay(text: str) -> float:
    """Parse a delay, such as "50ms", into seconds.

    Raises ValueError for a text without a known unit and for a delay that is too long.
    """
    seconds = _amount(text, DELAY_UNITS, "50ms, 0.2s or 800us")
    if seconds > MAX_DELAY_SECONDS:
        raise ValueError(f"{text!r} given; at most {MAX_DELAY_SECONDS:g}s can be emulated")
    return seconds


def parse_bandwidth(text: str) -> float:
    """Parse a bandwidth, such as "100mbit", into bytes per second.

    Raises ValueError for a text without a known unit and for a bandwidth that is too small.
    """
    rate = _amount(text, BANDWIDTH_UNITS, "100mbit, 2.5gbit or 800kbit (bits per second)")
    if rate < MIN_BYTES_PER_SECOND:
        raise ValueError(f"{text!r} given; at least 8kbit can be emulated")
    return rate


def _amount(text: str, units: dict[str, float], examples: str) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} given; write a number and its unit: {examples}")
    return float(match[1]) * units[match[2].lower()]


class NetworkSection(Section):
    """Addresses, the transport, and an emulated slow network.

    Addresses differ from host to host. The emulation needs a supervisor: `run`, `profile` or `compare`.
    """

    transport: Literal["auto", "tcp", "ipc"] = Field(
        default="auto",
        description='"ipc" uses a third less CPU than loopback TCP and works within one Linux machine;'
        ' "auto" uses it for the nodes of `shadowsync run` if `bind` is the loopback address, otherwise TCP.',
    )
    shared_memory: bool = Field(
        default=True,
        description="Pass vectors and gradients between a worker and an embedding node on the same Linux"
        " machine in shared memory, instead of in messages. Not used with"
        ' `transport = "tcp"`, or if all links are emulated as slow.',
    )
    bind: str = Field(default="127.0.0.1", description="Host to listen on, unless `--bind` is given.")
    advertise: str = Field(
        default="",
        description="Host that other nodes connect to, unless `--advertise` is given; empty: the same as"
        " `bind`.",
    )
    delay: str = Field(
        default="", description='Emulated delay, one way, for example "50ms"; empty: no emulated delay.'
    )
    bandwidth: str = Field(
        default="",
        description='Emulated bandwidth of each listening node, in each direction, for example "100mbit";'
        " empty: no limit.",
    )
    delay_links: Literal["sync", "all"] = Field(
        default="sync", description="Which links are emulated as slow: those of synchronization, or all."
    )

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
        return self

    @property
    def slow(self) -> SlowNetwork | None:
        """The network to emulate; None if neither `delay` nor `bandwidth` is given."""
        if not self.delay and not self.bandwidth:
            return None
        return SlowNetwork(
            delay_seconds=parse_delay(self.delay) if self.delay else 0.0,
            bytes_per_second=parse_bandwidth(self.bandwidth) if self.bandwidth else None,
            every_link=self.delay_links == "all",
        )

    @property
    def shares_memory(self) -> bool:
        """Whether nodes of one machine may share memory.

        Memory is not shared if every link is emulated, because the emulation cannot slow shared memory down.
        """
        every_link = self.slow is not None and self.slow.every_link
        return self.shared_memory and self.transport != "tcp" and not every_link
