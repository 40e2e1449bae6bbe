"""The codecs that may be chosen for a link during training."""

from __future__ import annotations

from typing import Final

import numpy as np

from .formats import BFloat16, Codec, CodecError, CodecOptions, Float32, Int8, make_codec

AUTO: Final = "auto"
"""Name of this choice in a job file."""

# topk is excluded because the values that it omits arrive many exchanges later, sparse because it saves
# bytes only where values are zero.
CHOOSABLE: Final = (Float32.name, BFloat16.name, Int8.name)


class CodecChoices:
    """Codecs for automatic choice, least lossy first."""

    def __init__(self, options: CodecOptions | None = None) -> None:
        self._codecs = {name: make_codec(name, options) for name in CHOOSABLE}

    def codec(self, name: str) -> Codec:
        """Return the codec of this name; raises CodecError if it cannot be chosen."""
        if name not in self._codecs:
            raise CodecError(f"codec {name!r:.40} is not allowed here; use {', '.join(CHOOSABLE)}")
        return self._codecs[name]

    def payload_bytes(self, elements: int, chunk: int) -> dict[str, int]:
        """Return the payload bytes of an exchange, both ways together, by codec.

        Args:
            elements: number of float32 elements in the exchange.
            chunk: number of elements in a chunk.
        """
        whole, rest = divmod(elements, chunk)

        def one_way(codec: Codec) -> int:
            sizes = [codec.encode(np.zeros(size, np.float32)).nbytes for size in (min(chunk, elements), rest)]
            return whole * sizes[0] + sizes[1]

        return {name: 2 * one_way(codec) for name, codec in self._codecs.items()}
