"""Messages that no node of a job sends: of every kind, with any values, whole and damaged."""

from __future__ import annotations

import dataclasses
import enum
import functools
import random
import struct
import types
import typing
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import numpy as np
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.base import encode_body
from shadowsync.pipeline.wire.control.messages import Scale
from shadowsync.pipeline.wire.control.verbs import CONTROL_VERBS
from shadowsync.pipeline.wire.field_checks import Bounds, Items
from shadowsync.pipeline.wire.frames import encode
from shadowsync.pipeline.wire.messages import MESSAGES, RequestMessage
from shadowsync.pipeline.wire.schema import Message

Frames = list[bytes]

INTEGERS: Final = (0, 1, 2, 3, 7, 255, 4096, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -1, -(2**63))
NUMBERS: Final = (0.0, 1.0, -1.0, 1e-30, 1e300, float("nan"), float("inf"), float("-inf"))
MOST_ITEMS: Final = 4
# Some of the last messages are sent again as they were.
MOST_KEPT: Final = 4096
REPLAYED_SHARE: Final = 0.25
# Of the coordinator's requests: a watcher may make them, so they would change a job that takes them.
_ALLOWED: Final = (Scale,)


class HostileMessages:
    """A source of messages, the same for the same seed.

    Args:
        words: texts that mean something to the job: roles, addresses, names of nodes.
    """

    def __init__(self, seed: int, words: Sequence[str] = ()) -> None:
        self._random = random.Random(seed)
        self._sent: deque[Frames] = deque(maxlen=MOST_KEPT)
        self._words = ["", "x", "\x00", "é" * 40, "a" * 4096, *words]
        self._kinds = sorted(MESSAGES)
        self._requests = [
            verb.request for verb in CONTROL_VERBS.verbs.values() if verb.request not in _ALLOWED
        ]
        self._ways: tuple[Callable[[], Frames], ...] = (
            self._noise,
            self._request,
            self._message,
            self._message,
            lambda: self._damaged(self._request()),
            lambda: self._damaged(self._message()),
        )

    def next(self) -> Frames:
        """Return the frames of another message."""
        if len(self._sent) == MOST_KEPT and self._random.random() < REPLAYED_SHARE:
            return self._random.choice(self._sent)
        while True:
            try:
                made = self._random.choice(self._ways)()
            except ValueError:
                # Of some records a wrong value cannot even be made here.
                continue
            self._sent.append(made)
            return made

    def _noise(self) -> Frames:
        return [
            self._random.randbytes(self._random.randrange(64)) for _ in range(self._random.randrange(5))
        ] or [b""]

    def _request(self) -> Frames:
        request = self._random.choice(self._requests)
        verb = next(name for name, verb in CONTROL_VERBS.verbs.items() if verb.request is request)
        body = encode_body(self._record(request))
        return _frames(
            RequestMessage(self._random.choice((1, 2, 2**40, self._random.getrandbits(62))), verb, body)
        )

    def _message(self) -> Frames:
        return _frames(self._record(MESSAGES[self._random.choice(self._kinds)].cls))

    def _damaged(self, frames: Frames) -> Frames:
        """Change some bytes, with or without a right checksum, or some frames."""
        chosen = self._random
        at = chosen.randrange(len(frames))
        how = chosen.randrange(6)
        if how == 0:
            return [*frames[:at], *frames[at + 1 :]] or [b""]
        if how == 1:
            return [*frames[: at + 1], *frames[at:]]
        if how == 2:
            frames[at] = frames[at][: chosen.randrange(len(frames[at]) + 1)]
            return frames
        changed = bytearray(frames[at])
        for _ in range(chosen.randrange(1, 4)):
            if changed:
                changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        frames[at] = bytes(changed)
        if at == 0 and how > 3 and len(frames[0]) > 4:
            frames[0] = struct.pack("<I", zlib.crc32(frames[0][4:])) + frames[0][4:]
        return frames

    def _record(self, cls: Any) -> Any:
        """Make a message, a request or a part of one; its fields' types are right, its values may be any."""
        hints = _hints(cls)
        values = {}
        for field in dataclasses.fields(cls):
            declared = field.metadata.get("tensor")
            values[field.name] = (
                self._array(*declared[:2]) if declared is not None else self._value(hints[field.name])
            )
        return cls(**values)

    def _array(self, dtype: np.dtype[Any], rank: int) -> Any:
        shape = [self._random.choice((0, 1, 2, 8, 64)) for _ in range(rank)]
        return np.frombuffer(self._random.randbytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(
            shape
        )

    def _value(self, hint: Any) -> Any:
        chosen, origin, inner = self._random, typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            return self._bounded(inner[0], inner[1:])
        if origin in (typing.Union, types.UnionType):
            return self._value(chosen.choice(inner))
        if origin in (tuple, list) and (origin is list or (len(inner) == 2 and inner[1] is ...)):
            return origin(self._value(inner[0]) for _ in range(chosen.randrange(MOST_ITEMS)))
        if origin is tuple:
            return tuple(self._value(one) for one in inner)
        if origin is dict:
            return {self._value(inner[0]): self._value(inner[1]) for _ in range(chosen.randrange(MOST_ITEMS))}
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return chosen.choice(list(hint))
        if hint is BatchId:
            return BatchId(*(chosen.choice((0, 1, 2, 3)) for _ in range(4)))
        if dataclasses.is_dataclass(hint):
            return self._record(typing.cast("type[Any]", hint))
        return self._plain(hint)

    def _plain(self, hint: Any) -> Any:
        chosen = self._random
        makers: dict[Any, Callable[[], Any]] = {
            bool: lambda: chosen.random() < 0.5,
            int: lambda: chosen.choice(INTEGERS),
            float: lambda: chosen.choice(NUMBERS),
            str: lambda: chosen.choice(self._words),
            bytes: lambda: chosen.randbytes(chosen.randrange(40)),
            type(None): lambda: None,
        }
        return makers.get(hint, lambda: chosen.choice((None, 1, "x", [1, [2]], {"a": {"b": 1}})))()

    def _bounded(self, hint: Any, notes: tuple[Any, ...]) -> Any:
        """Half of the time within the bounds of a field: what is not is refused at once."""
        value = self._value(hint)
        bounds = next((note for note in notes if isinstance(note, Bounds)), None)
        if bounds is None or self._random.random() < 0.5 or isinstance(value, bool):
            return value
        if any(isinstance(note, Items) for note in notes) or not isinstance(value, int | float):
            return value
        return type(value)(min(max(value, bounds.least), bounds.most)) if value == value else value


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _frames(message: Message) -> Frames:
    return [bytes(memoryview(frame)) for frame in encode(message)]
