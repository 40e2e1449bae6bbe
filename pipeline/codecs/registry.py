"""The names of the codecs, making one, and the pair of them that a link has."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field

from .bfloat16 import BFloat16
from .float16 import Float16
from .float32 import Float32
from .formats import Codec
from .int8 import Int8
from .topk import TopK


@dataclass(frozen=True)
class CodecOptions:
    """The options of all codecs: elements of a block of int8, and the share of elements that topk keeps."""

    int8_block: int = 1024
    topk_fraction: float = 0.05


CODECS: dict[str, Callable[[CodecOptions], Codec]] = {
    Float32.name: lambda _: Float32(),
    BFloat16.name: lambda _: BFloat16(),
    Float16.name: lambda _: Float16(),
    Int8.name: lambda options: Int8(options.int8_block),
    TopK.name: lambda options: TopK(options.topk_fraction),
}
# What each element becomes depends on it alone, with a small error: these do without a reference.
STATELESS: tuple[str, ...] = (Float32.name, BFloat16.name, Float16.name)


def make_codec(name: str, options: CodecOptions | None = None) -> Codec:
    """The codec called `name`; raises ValueError naming what there is, or the option that cannot be used."""
    if name not in CODECS:
        close = difflib.get_close_matches(name, CODECS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(CODECS)}"
        raise ValueError(f"{name!r} given; {hint}")
    return CODECS[name](options or CodecOptions())


@dataclass(frozen=True)
class LinkCodecs:
    """The codecs of a link, each way: to the center or the reducer, and back."""

    up: Codec = field(default_factory=Float32)
    down: Codec = field(default_factory=Float32)
