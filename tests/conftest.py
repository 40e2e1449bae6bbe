"""What the tests of whole clusters share: a click log, processes that cannot outlive a test, run folders."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.in_process_cluster import (
    InProcessCluster,
    in_process_clusters,
    start_lasting_threads,
)
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import MARKER, THREADS, Starter, Starting, end_marked
from shadowsync.tests.support.jobs.runs import (
    EVAL_EXAMPLES,
    EXAMPLES,
    JobMaker,
    Settings,
    small_job,
    write_job,
)
from shadowsync.tests.support.jobs.warm_server import WarmServer
from shadowsync.tests.support.leaks import no_leaks

# Several tests run at once, and threads of torch that wait for each other do so on a core.
torch.set_num_threads(1)
# What a machine is busy with besides decides no test, nor does chance: each run draws the same examples.
settings.register_profile(
    "repeatable",
    settings(),
    deadline=None,
    max_examples=50,
    # A list that a test gives would replace this one, and a slow machine could fail that test.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)
# By hand: pytest --hypothesis-profile=searching.
settings.register_profile(
    "searching", settings.get_profile("repeatable"), derandomize=False, max_examples=1000
)
settings.load_profile("repeatable")


class _Record(logging.LogRecord):
    """A record with texts for exceptions: pytest keeps records, and an exception keeps its frames alive."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if isinstance(self.args, tuple):
            self.args = tuple(str(one) if isinstance(one, BaseException) else one for one in self.args)


logging.setLogRecordFactory(_Record)


# The folders of which `make faults` and `make variants` run what is marked matrix.
OF_MATRIX = {"integration", "faults", "fuzz", "virtual", "saved_model"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start processes, and those whose variants are no kills."""
    for item in items:
        if not {"faults", "fuzz"} & set(item.path.parts):
            item.add_marker("no_kill")
        if item.get_closest_marker("matrix") and not OF_MATRIX & set(item.path.parts):
            raise pytest.UsageError(
                f"{item.nodeid} is marked matrix where neither make faults nor make variants looks"
            )
        if "starting" in getattr(item, "fixturenames", ()):
            item.add_marker("processes")
            # `make test` looks for them in these two folders only.
            if not {"integration", "faults"} & set(item.path.parts):
                raise pytest.UsageError(f"{item.nodeid} starts processes: move it to tests/integration")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage while all tests are imported and made: next to nothing is."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


# How many modules of Python were imported when the collector last passed over them.
_imported = 0


@pytest.fixture(scope="module", autouse=True)
def imports_passed_over() -> None:
    """Have the collector pass over what was imported meanwhile: many tests collect all garbage.

    Before the first test of a file nothing lives but what lives as long as the session.
    """
    global _imported
    if len(sys.modules) > _imported:
        _imported = len(sys.modules)
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest) -> None:
    """Have each test draw the same numbers in every run, whatever ran before it: one module drawn in some
    hundred has no unit that is alive, and then no gradient."""
    seed = zlib.crc32(request.node.nodeid.encode())
    # `torch.manual_seed` notes the stack for each kind of GPU: a third of the time of an empty test.
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of all tests and their processes, in place of this user's."""
    state = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(state)
    return state


@pytest.fixture(scope="session")
def click_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated log in Parquet: EXAMPLES in two files to train on, EVAL_EXAMPLES held out."""
    folder = tmp_path_factory.mktemp("click-log")
    generate_log(
        folder, examples=EXAMPLES, eval_examples=EVAL_EXAMPLES, seed=1, data_format="parquet", files=2
    )
    return folder


@pytest.fixture(scope="session")
def validation_file(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The examples of `click_log` that are held out, in a file of its own: no file is in two parts."""
    (held_out,) = click_log.glob("eval-*.parquet")
    return str(shutil.copy(held_out, tmp_path_factory.mktemp("validation")))


@pytest.fixture(scope="session")
def text_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated log in compressed text: 6,000 examples in three files to train on, 1,000 held out."""
    folder = tmp_path_factory.mktemp("text-log")
    generate_log(
        folder, examples=6000, eval_examples=1000, seed=3, data_format="criteo_tsv", files=3, compression="gz"
    )
    return folder


@pytest.fixture(scope="session")
def starting(tmp_path_factory: pytest.TempPathFactory, click_log: Path, text_log: Path) -> Iterator[Starting]:
    """A context for a folder: gives its Starter, checks for leaks at the end, and kills what is left.

    The logs are generated before, since the libraries that write them keep descriptors of their own, and so
    does pyzmq.
    """
    del click_log, text_log
    start_lasting_threads()
    temporary = tmp_path_factory.mktemp("tmp")
    marker = uuid4().hex
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment = inherited | THREADS | {MARKER: marker, "TMPDIR": str(temporary), "PYTHONFAULTHANDLER": "1"}
    # Of torch's compiler, which its optimizers import; it stays when the process has ended.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiler"))
    server = WarmServer(environment)

    @contextmanager
    def start(folder: Path) -> Iterator[Starter]:
        starter = Starter(server, environment, folder)
        try:
            with no_leaks(marker, temporary, server.pids):
                yield starter
                starter.reap()
        finally:
            starter.end_all()
            end_marked(marker, server.pids)
            for leftover in temporary.iterdir():
                shutil.rmtree(leftover)

    try:
        yield start
    finally:
        server.close()


@pytest.fixture
def starter(starting: Starting, tmp_path: Path) -> Iterator[Starter]:
    """Starts processes in the test's own folder."""
    with starting(tmp_path) as own:
        yield own


@pytest.fixture
def job_file(click_log: Path, tmp_path: Path) -> JobMaker:
    """Writes a small job with changes, for example job_file({"trainer": {"count": 1}})."""

    def make(changes: Settings | None = None, name: str = "job.toml") -> Path:
        return write_job(tmp_path / name, small_job(click_log, tmp_path / "runs"), changes or {})

    return make


@pytest.fixture
def in_process(
    job_file: JobMaker, request: pytest.FixtureRequest
) -> Iterator[Callable[..., InProcessCluster]]:
    """A cluster in this process for a small job with changes; `start` it."""
    if "starter" in request.fixturenames:
        # It looks for descriptors that are left, so it has to end after the cluster.
        request.getfixturevalue("starter")
    with in_process_clusters() as make:
        yield lambda changes=None, **more: make(job_file(changes), **more)


@pytest.fixture
def cluster(in_process: Callable[..., InProcessCluster]) -> Callable[..., InProcessCluster]:
    """The usual one: that of this process."""
    return in_process


@pytest.fixture
def processes(starter: Starter, job_file: JobMaker) -> Callable[..., Cluster]:
    """A cluster of separate processes for a small job with changes; `start` it."""

    def make(changes: Settings | None = None, faults: tuple[Slowed, ...] = (), **more: Any) -> Cluster:
        """Of the faults of `node_faults` these have `Slowed` alone."""
        (slowed,) = faults or (None,)
        return Cluster(starter, job_file(changes), slowed=slowed, **more)

    return make
