"""A node's process: parent, allocator, logs, command line, exit status, hooks."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...pipeline.open_files import require_files
from ...pipeline.text import wall_clock
from .health import health_path

if TYPE_CHECKING:
    import zmq

    from ...pipeline.config.job import Job

GRACE_SECONDS = 12.0
# Equal warnings are written once in so many seconds, and so many texts are remembered for that.
REPEAT_SECONDS = 10.0
REMEMBERED_TEXTS = 256
# One thread for each of the numerical libraries: a machine has several nodes.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
)


def exit_when_parent_dies(loop: asyncio.AbstractEventLoop, orphaned: Callable[[], None]) -> None:
    """Call `orphaned` on the loop when standard input ends, with the supervisor.

    Ends the process by force if it still runs GRACE_SECONDS later, since nobody else would.
    """
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if os.read(descriptor, 4096):
            return
        loop.remove_reader(descriptor)
        timer = threading.Timer(GRACE_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()
        orphaned()

    loop.add_reader(descriptor, readable)


# From malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3

KEPT_BYTES = 256 << 20
LARGEST_BYTES = 16 << 20


@functools.cache
def tune_malloc() -> bool:
    """Keep up to KEPT_BYTES of freed memory in the process.

    Blocks of up to LARGEST_BYTES are kept. Each message is received into memory of its own. By default a
    freed block of 1 MiB goes back to the kernel, and the next block gets zeroed pages, with a fault per page:
    a fifth of the time of an all-reduce. Returns whether it was done; without glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))


class Repeats(logging.Filter):
    """Let equal warnings pass once in REPEAT_SECONDS.

    The next one that passes has the number of those withheld as `withheld`. Errors with a traceback pass. Any
    thread may log.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        # When the text last passed, and how many were withheld since.
        self._passed: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be written."""
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        key, now = (record.name, record.levelno, record.getMessage()), self._clock()
        with self._lock:
            passed_at, withheld = self._passed.pop(key, (-math.inf, 0))
            is_due = now - passed_at >= REPEAT_SECONDS
            self._passed[key] = (now, 0) if is_due else (passed_at, withheld + 1)
            if len(self._passed) > REMEMBERED_TEXTS:
                del self._passed[next(iter(self._passed))]
        record.withheld = withheld
        return is_due


class JsonLines(logging.Formatter):
    """A JSON object per record: time, level, logger, thread and text."""

    def format(self, record: logging.LogRecord) -> str:
        written_at = datetime.fromtimestamp(record.created + wall_clock.offset_seconds(), UTC)
        entry = {
            "time": written_at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "text": record.getMessage() + _also(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _also(record: logging.LogRecord) -> str:
    withheld = getattr(record, "withheld", 0)
    return f" (and {withheld} times since it was last written)" if withheld else ""


def log_to_stderr() -> None:
    """Log warnings and errors to standard error, until the run folder is known."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Repeats())
    form = "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, handlers=[handler])


def log_to_folder(folder: str | Path, name: str) -> None:
    """Log to FOLDER/logs/NAME.jsonl from now on.

    If that cannot be written, logs go to standard error.
    """
    root = logging.getLogger()
    try:
        path = Path(folder) / "logs" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        root.warning("%s: cannot be written (%s); logging to standard error", folder, error.strerror)
        return
    handler.setFormatter(JsonLines())
    handler.addFilter(Repeats())
    for old in tuple(root.handlers):
        root.removeHandler(old)
        if isinstance(old, logging.FileHandler):
            # A node that comes back has another name, and another file.
            old.close()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


CLI = "shadowsync.cli"
FORK_SERVER = "shadowsync.nodes.supervisor.fork_server"
JOB_CHECK = "shadowsync.nodes.supervisor.job_check"
RELAY = "shadowsync.lab.network.relay"
SCORING = "shadowsync.nodes.coordinator.validation.process"
VIRTUAL_RUN = "shadowsync.lab.virtual.one_run"

ENTRY_POINTS = (CLI, FORK_SERVER, JOB_CHECK, RELAY, SCORING, VIRTUAL_RUN)


def interpreter() -> list[str]:
    """Return the command of a new interpreter.

    It takes no module from the working directory, where a user's queue.py or numpy/ would hide the module of
    that name. If this package itself lies there, it may be found in no other way.
    """
    package = Path(__file__).parents[2]
    try:
        lies_here = package.name == "shadowsync" and package.parent.samefile(".")
    except OSError:
        # The working directory was removed.
        lies_here = False
    return [sys.executable] if lies_here else [sys.executable, "-P"]


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of the ENTRY_POINTS in a new interpreter."""
    return [*interpreter(), "-m", module, *arguments]


@contextlib.contextmanager
def importing_torch() -> Iterator[None]:
    """Be in a folder that lasts while a process imports torch.

    Its arithmetic library ends a process whose working directory was removed ("Intel oneMKL FATAL ERROR:
    Cannot load libtorch_cpu.so"), as Ray does with a job's folder. Once it is imported, that does not matter.
    """
    if "torch" in sys.modules:
        yield
        return
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


def runs(command_line: Sequence[str], module: str, *arguments: str) -> bool:
    """Return whether a process's command line is that of `python`, with these first arguments."""
    words = [word for word in command_line[1:] if word != "-P"]
    return words[: 2 + len(arguments)] == ["-m", module, *arguments]


COMMAND_LINE_BYTES = 1024


def command_line_room() -> str:
    """Return an argument that leaves room for the command lines of forked children.

    The kernel shows at most as many bytes as a process was started with. They are blanks, which `ps` shows
    until the process has written its own line.
    """
    return " " * COMMAND_LINE_BYTES


def show_command_line(arguments: Sequence[str]) -> None:
    """Show in `ps` an interpreter's command line with these arguments.

    Linux only. A forked process would show its parent's command line. The line is cut where the room ends.
    The value of `--token` is left out, since a node proves its identity with it.
    """
    words = [sys.executable]
    for word in arguments:
        words.append("..." if words[-1] == "--token" else word)
    # Only people read it; a node works without it.
    with contextlib.suppress(OSError):
        with open("/proc/self/stat", "rb") as file:
            # The second field is the program's name, which may have blanks and brackets.
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        shown = os.fsencode("\0".join(words))[: end - start - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(shown.ljust(end - start, b"\0"))
        with open("/proc/self/comm", "w", encoding="ascii") as file_of_name:
            file_of_name.write("shadowsync")


def exit_status_text(code: int | None) -> str:
    """Describe how a process ended, by exit code or signal."""
    if code is None:
        return "still running"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def files_of(job: Job) -> int:
    """Return how many files a process of the job opens at most.

    Those that it starts with come on top. The largest of supervisor, coordinator, embedding node and trainer;
    others open fewer. With connections of ZeroMQ come a few descriptors for its threads, the log, and the
    files that are open for a moment.
    """
    nodes, trainer = job.expected, job.trainer
    trainers, workers = nodes["trainer"], trainer.workers
    of_worker = 3 + 3 * nodes["embedding"] + 2 * nodes["reader"]
    return max(
        10 + 3 * (1 + sum(nodes.values())),
        20 + sum(nodes.values()),
        22 + 2 * trainers * workers + 2 * job.embedding.threads,
        18 + of_worker * workers + 3 * nodes["sync"] + 3 * (trainers - 1),
    )


HEARTBEAT_SECONDS = 0.5


class ProcessHooks:
    """The parts of its process that a node uses.

    With this class the node has a process of its own; a subclass shares one between nodes. All methods but
    `zmq_context` are called on the node's loop.

    Attributes:
        heartbeat_seconds: time from one heartbeat to the next.
    """

    heartbeat_seconds = HEARTBEAT_SECONDS

    def zmq_context(self, job: Job) -> zmq.Context[zmq.Socket[bytes]]:
        """Return the context of all of the node's sockets.

        The node terminates it at its end. Raises ResourceError if the process may open too few files.
        """
        # The relay and processes that check or start others do not need it.
        import zmq

        require_files(files_of(job))
        return zmq.Context(io_threads=1)

    def on_interrupt(
        self,
        loop: asyncio.AbstractEventLoop,
        interrupted: Callable[[], None],
        terminated: Callable[[], None] | None = None,
    ) -> None:
        """Call `interrupted` on the loop whenever the node is interrupted.

        `terminated`, if given, is called for SIGTERM, which is meant for this node alone.
        """
        loop.add_signal_handler(signal.SIGINT, interrupted)
        loop.add_signal_handler(signal.SIGTERM, terminated or interrupted)

    def on_orphaned(self, loop: asyncio.AbstractEventLoop, orphaned: Callable[[], None]) -> None:
        """Call `orphaned` on the loop when the supervisor dies.

        Called only for a supervised node.
        """
        exit_when_parent_dies(loop, orphaned)

    def health_path(self, *, supervised: bool) -> Path | None:
        """Return where the node says how it is; None if it does not."""
        return health_path(supervised=supervised)

    def log_to(self, folder: str | Path, name: str) -> None:
        """Log what the node does to FOLDER/logs/NAME.jsonl from now on."""
        log_to_folder(folder, name)
