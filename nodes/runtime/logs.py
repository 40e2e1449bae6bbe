"""A JSONL log per node: one object a line with time, level, logger, thread and text."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path


class JsonLines(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "text": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def log_to_stderr() -> None:
    """What is logged before the run folder is known, from warnings up, goes to standard error."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


def log_to_folder(folder: str | Path, name: str) -> None:
    """From now on this process logs to FOLDER/logs/NAME.jsonl; where that can't be written, to stderr."""
    root = logging.getLogger()
    try:
        path = Path(folder) / "logs" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        root.warning("%s: cannot be written (%s); logging to standard error", folder, error.strerror)
        return
    handler.setFormatter(JsonLines())
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
