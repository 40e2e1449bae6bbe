"""A process that has imported everything and forks itself for each node that a test starts.

Importing torch costs two seconds of CPU a process; with this a cluster of six is there in a tenth of one.
Every node still is a process of its own, with its own sockets and signals. Only tests do this: the product
spawns, and the tests of `shadowsync run` start it the real way.

Standard input is also how all of them know that pytest lives: see `end_with_the_writer_of`.

Protocol: a JSON object a line on standard input, one back on standard output.
`{"start": {"arguments", "script", "environment", "folder", "log"}}` -> `{"pid": N}`
`{"poll": N}` -> `{"code": exit code, or minus the signal, or null}`
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import runpy
import select
import signal
import sys
import threading
import traceback
from typing import Any, NoReturn

IMPORTED = (
    "shadowsync.cli",
    "shadowsync.nodes.coordinator_main",
    "shadowsync.nodes.embedding",
    "shadowsync.nodes.launch",
    "shadowsync.nodes.node",
    "shadowsync.nodes.offline_eval",
    "shadowsync.nodes.reader",
    "shadowsync.nodes.sync",
    "shadowsync.nodes.trainer",
    "shadowsync.pipeline.config.load",
    "shadowsync.pipeline.report.curves",
    "shadowsync.pipeline.report.terminal",
)


def end_with_the_writer_of(pipe: int) -> None:
    """Kills this process once nobody has the other end of the pipe open: pytest is gone, even if it was
    killed, and no test is left to end what it started. What is written is left for the server to read."""

    def watch() -> None:
        gone = select.poll()
        # Asked for nothing, it tells of the hang-up alone.
        gone.register(pipe, 0)
        gone.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="watches pytest", daemon=True).start()


def become(start: dict[str, Any]) -> None:
    """In the child: leaves the server behind and runs the command line, or a script with its arguments."""
    os.setsid()
    end_with_the_writer_of(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(start["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for given, place in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(given, place)
    for given in (nothing, log):
        os.close(given)
    os.environ.update(start["environment"])
    # The interpreter read the variable when the server started.
    sys.path[:0] = start["environment"].get("PYTHONPATH", "").split(os.pathsep)
    os.chdir(start["folder"])
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.argv = [start["script"] or "shadowsync", *start["arguments"]]
    if start["script"]:
        runpy.run_path(start["script"], run_name="__main__")
        return
    from shadowsync.cli import main

    main(prog_name="shadowsync")


def end(start: dict[str, Any]) -> NoReturn:
    """In the child: ends with the code of what it became. It skips the clearing of all that was imported,
    which costs half a second of CPU a process; threads have been joined and sockets closed by then."""
    code: int | str | None = 0
    try:
        become(start)
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:  # noqa: BLE001 - whatever it is, the test is to see it
        traceback.print_exc()
        code = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def poll(pid: int) -> int | None:
    """How a child ended; None while it runs. Its number stays taken until this has been told."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def serve() -> dict[str, Any] | None:
    """Answers until standard input ends; in a forked child gives what it is to become."""
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                start: dict[str, Any] = request["start"]
                return start
            answer: dict[str, Any] = {"pid": pid}
        else:
            answer = {"code": poll(request["poll"])}
        print(json.dumps(answer), flush=True)
    return None


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    gc.collect()
    gc.freeze()
    task = serve()
    if task is not None:
        end(task)
