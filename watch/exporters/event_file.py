"""Writer of TensorBoard event files, with scalars only."""

from __future__ import annotations

import errno
import io
import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from ...pipeline.atomic_file import unwritable
from ...pipeline.text.wall_clock import unix_seconds

FOLDER = "tensorboard"
_LARGEST_FLOAT = 3.4028234663852886e38


class EventFile:
    """One event file in a folder, created with this object.

    Used by one thread. Raises ResourceError if it cannot be created, OSError if a write fails.

    TensorBoard's own EventFileWriter writes on another thread, which ends with a traceback if the disk is
    full; here the caller gets the error. The file is named as TensorBoard's writers name it.
    """

    def __init__(self, folder: Path) -> None:
        now = unix_seconds()
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that `close` does not retry what could not be written.
            self._file = self.path.open("ab", buffering=0)
            self._write(Event(wall_time=now, file_version="brain.Event:2"))
        except OSError as error:
            raise unwritable(folder, error) from error

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step, unbuffered."""
        if values:
            summaries = [
                Summary.Value(tag=tag, simple_value=_float32(value)) for tag, value in values.items()
            ]
            self._write(Event(wall_time=unix_seconds(), step=step, summary=Summary(value=summaries)))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        whole = io.BytesIO()
        RecordWriter(whole).write(event.SerializeToString())
        try:
            complete = self._file.write(whole.getbuffer()) == whole.tell()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        if not complete:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


def _float32(value: float) -> float:
    # A diverging model has finite values too large for float32; they must not become infinite.
    if math.isfinite(value) and abs(value) > _LARGEST_FLOAT:
        return math.copysign(_LARGEST_FLOAT, value)
    return value
