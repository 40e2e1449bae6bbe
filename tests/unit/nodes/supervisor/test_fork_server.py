"""Processes that a fork server forks end, and are told of, as those that are spawned."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest
from shadowsync.nodes.runtime.process import ENTRY_POINTS, FORK_SERVER, python
from shadowsync.nodes.supervisor.child import Child
from shadowsync.nodes.supervisor.fork_server import ForkOrder, ForkServer, fork
from shadowsync.nodes.supervisor.starter import (
    METHOD_VARIABLE,
    ForkStarter,
    SpawnStarter,
    Starter,
    make_starter,
    start_method,
)
from shadowsync.pipeline.errors import ClusterError, JobFileError
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import is_alive, until, wait_until
from torch.backends import mkl

Work = Callable[[Starter], Coroutine[Any, Any, Any]]
With = Callable[[Work], Any]
Script = Callable[[str], list[str]]
Supervisor = Callable[[str], subprocess.Popen[str]]
STARTERS = pytest.mark.parametrize("with_starter", [ForkStarter, SpawnStarter], indirect=True)


class Lasting:
    """A starter of each kind for all tests that leave it as it was: a fork server imports for seconds.

    Its socket is watched by one loop, which lasts as long.
    """

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._starters: dict[type[Starter], Starter] = {}

    def run(self, kind: type[Starter], work: Work) -> Any:
        """Do work with the starter of this kind, which is made where there is none."""
        if kind not in self._starters:
            self._starters[kind] = kind()
        return self._runner.run(work(self._starters[kind]))

    def end(self, kind: type[Starter]) -> None:
        """End the one of this kind: a test that has spoilt it; who needs one later has another."""
        self._starters.pop(kind).close()

    def close(self) -> None:
        for kind in list(self._starters):
            self.end(kind)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Lasting]:
    """The starters of this file."""
    with asyncio.Runner() as runner, closing(Lasting(runner)) as made:
        yield made


@pytest.fixture
def with_starter(lasting: Lasting, request: pytest.FixtureRequest) -> With:
    """Does work with the lasting starter of the kind that is the parameter."""
    return lambda work: lasting.run(request.param, work)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Arguments of an interpreter that runs a text."""

    def write(text: str) -> list[str]:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return [str(path), "first"]

    return write


async def ended(starter: Starter, arguments: list[str], number: int = 0) -> Child:
    """A child after its end; `number`: the signal that it gets once it has written a line."""
    child = Child("role", 0, "token", await starter.start(arguments, torch=False))
    if number:
        await asyncio.to_thread(wait_until, lambda: child.lines, "it writes")
        child.signal(number)
    await child.ended.wait()
    await child.close()
    return child


@STARTERS
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(5)", 5),
        ("raise SystemExit('a reason')", 1),
        ("1 / 0", 1),
        ("import os; os._exit(9)", 9),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_an_end_has_its_code(with_starter: With, script: Script, text: str, code: int) -> None:
    child = with_starter(lambda starter: ended(starter, script(text)))
    assert child.code == code
    assert ("ZeroDivisionError: division by zero" in child.lines) == (text == "1 / 0")
    assert ("a reason" in child.lines) == ("a reason" in text)


@STARTERS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_death_has_its_signal(with_starter: With, script: Script, number: int) -> None:
    text = "import signal; print('here', flush=True); signal.pause()"
    child = with_starter(lambda starter: ended(starter, script(text), number))
    assert child.code == -number


@STARTERS
def test_a_process_is_as_a_new_one(with_starter: With, script: Script) -> None:
    """Session, threads of arithmetic, signals, arguments, command line, descriptors, random numbers."""
    arguments = script(
        """
        import os, random, signal, sys
        import numpy, torch
        print(os.getsid(0) == os.getpid(), torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler,
              signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        shown = open("/proc/self/cmdline").read().split(chr(0))
        print(sys.argv[1:], [word for word in shown if word != "-P"][2])
        opened = {int(name): f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
        # libffi keeps its own library open on some systems; the listing's own descriptor is closed.
        libffi = {n for n, path in opened.items() if os.path.exists(path) and "libffi" in os.readlink(path)}
        print(sorted(n for n, path in opened.items() if os.path.exists(path) and n not in libffi))
        print("drawn", random.random(), numpy.random.random())
        """
    )

    async def twice(starter: Starter) -> list[list[str]]:
        first, second = [
            Child("role", 0, "token", await starter.start(arguments, torch=True)) for _ in range(2)
        ]
        for child in (first, second):
            await child.ended.wait()
            await child.close()
        return [list(first.lines), list(second.lines)]

    first, second = with_starter(twice)
    assert first[:-1] == ["True 1 1", "True True", "['first'] first", "[0, 1, 2]"]
    assert first[:-1] == second[:-1]
    drawn = {number for lines in (first, second) for number in lines[-1].split()[1:]}
    assert len(drawn) == 4


SUPERVISOR = """
import asyncio, sys
from shadowsync.nodes.supervisor import starter
from shadowsync.nodes.supervisor.fork_server import fork

def asking(*order):
    status = fork(*order)
    print("asked", flush=True)
    return status

async def main():
    own = starter.ForkStarter()
    if sys.argv[1] == "early":
        print("importing", flush=True)
        sys.stdin.readline()
        starter.fork = asking
    for torch in (False, True):
        await own.start(["child.py"], torch=torch)
    print("started", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A process that has children forked; its temporary folder has a name that is too long for a socket."""
    text = "import sys; sys.stdin.read(); open('orphaned', 'a').write('.')"
    (tmp_path / "child.py").write_text(text, encoding="utf-8")
    (tmp_path / "supervisor.py").write_text(SUPERVISOR, encoding="utf-8")
    temporary = tmp_path / ("long" * 40)
    temporary.mkdir()
    with contextlib.ExitStack() as stack:

        def start(when: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "supervisor.py", when],
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"TMPDIR": str(temporary)},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start
    assert not list(temporary.iterdir())


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_its_input_ends_with_the_supervisor_and_the_server_too(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """A killed supervisor: the server ends at once, and what it forked sees the end of its input."""
    process = supervisor("late")
    assert says(process) == "started"
    offspring = psutil.Process(process.pid).children(recursive=True)
    assert len(offspring) == 4, "two servers, and a child of each"
    assert not (tmp_path / "orphaned").exists()
    process.kill()
    wait_until(lambda: not any(map(is_alive, offspring)), "all have ended")
    assert (tmp_path / "orphaned").read_text() == ".."


@pytest.mark.parametrize("moment", ["asked", "importing"])
def test_nothing_is_left_of_a_supervisor_that_was_killed_as_it_started(
    supervisor: Supervisor, tmp_path: Path, moment: str
) -> None:
    """Its servers still import, and have been asked for a process or not; they learn of it afterwards."""
    process = supervisor("early")
    assert says(process) == "importing"
    servers = psutil.Process(process.pid).children()
    assert len(servers) == 2
    for server in servers:
        server.suspend()
    if moment == "asked":
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert says(process) == "asked"
    process.kill()
    process.wait()
    for server in servers:
        server.resume()
    wait_until(lambda: not any(map(is_alive, servers)), "both have ended")
    assert not (tmp_path / "orphaned").exists()


def test_a_starter_that_is_closed_before_it_has_imported_leaves_nothing() -> None:
    """As of a command that refuses its job at once: nobody waits for the imports."""
    before = set(psutil.Process().children(recursive=True))

    def servers() -> set[psutil.Process]:
        return set(psutil.Process().children(recursive=True)) - before

    with closing(ForkStarter()):
        wait_until(lambda: len(servers()) == 2, "both parts of the server are there")
        importing = servers()
        for one in importing:
            one.suspend()
    # At once: whoever looks after a command's end finds nothing of it.
    assert not any(map(is_alive, importing))


@pytest.mark.parametrize("with_starter", [ForkStarter], indirect=True)
def test_the_light_server_has_no_torch_and_the_other_one_has(with_starter: With, script: Script) -> None:
    text = "print('libtorch' in open('/proc/self/maps').read(), 'torch' in __import__('sys').modules)"

    async def work(starter: Starter) -> list[str]:
        said: list[str] = []
        for torch in (False, True):
            child = Child("role", 0, "token", await starter.start(script(text), torch=torch))
            await child.ended.wait()
            await child.close()
            said += child.lines
        return said

    assert with_starter(work) == ["False False", "True True"]


REMOVED = """
import asyncio, os, sys
from contextlib import closing
from multiprocessing import forkserver
from shadowsync.nodes.supervisor.child import Child
from shadowsync.nodes.supervisor.starter import ForkStarter

os.rmdir(os.getcwd())

async def main(starter):
    child = Child("role", 0, "", await starter.start([sys.argv[1]], torch=True))
    await child.ended.wait()
    await child.close()
    print(child.code, list(child.lines))

with closing(ForkStarter()) as starter:
    asyncio.run(main(starter))
"""


def test_a_removed_working_directory_does_not_end_the_server(tmp_path: Path) -> None:
    """Ray removes a job's folder when nobody seems to use it. The control: torch by itself ends there."""
    control_text = "import os; os.rmdir(os.getcwd()); import torch"
    child_text = "import torch; print((torch.ones(2) @ torch.ones(2)).item())"
    texts = {"parent.py": REMOVED, "control.py": control_text, "child.py": child_text}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    def run(name: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "removed"
        folder.mkdir()
        command = [sys.executable, str(tmp_path / name), str(tmp_path / "child.py")]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    done = run("parent.py")
    assert done.stdout == "0 ['2.0']\n", done.stderr
    if mkl.is_available():  # type: ignore[no-untyped-call]
        control = run("control.py")
        assert control.returncode != 0
        assert "Cannot load" in control.stderr + control.stdout


def test_both_servers_show_a_short_command_line() -> None:
    """What leaves room for those of their children is not shown."""
    before = set(psutil.Process().children(recursive=True))

    def lines() -> list[list[str]]:
        servers = set(psutil.Process().children(recursive=True)) - before
        return [[word for word in one.cmdline() if word] for one in servers]

    with closing(ForkStarter()) as starter:
        shown = [[sys.executable, "-m", FORK_SERVER]] * 2
        wait_until(lambda: lines() == shown, "both show it")
        pids = [server.process.pid for server in starter.servers]
        assert [os.getsid(pid) for pid in pids] == pids, "a terminal's Ctrl-C is not for them"


def test_a_dead_server_ends_its_processes(lasting: Lasting, script: Script) -> None:
    """It is the last in this file that needs the one that lasts."""

    async def work(starter: Starter) -> tuple[int | None, str]:
        assert isinstance(starter, ForkStarter)
        text = "import signal; print('here', flush=True); signal.pause()"
        child = Child("role", 0, "token", await starter.start(script(text), torch=True))
        server = present(psutil.Process(child.pid).parent())
        server.kill()
        await child.ended.wait()
        await child.close()
        with pytest.raises(ClusterError) as caught:
            await starter.start(script("pass"), torch=True)
        return child.code, str(caught.value)

    try:
        code, text = lasting.run(ForkStarter, work)
    finally:
        lasting.end(ForkStarter)
    assert code == -signal.SIGKILL
    assert "the fork server has ended" in text
    assert "start the job again" in text


def test_many_starts_leave_no_descriptor_and_no_zombie(lasting: Lasting, script: Script) -> None:
    arguments = script("import sys; sys.stdin.read()")

    def counts() -> list[tuple[int, int]]:
        servers = psutil.Process().children()
        return [(psutil.Process().num_fds(), 0), *((one.num_fds(), len(one.children())) for one in servers)]

    def no_more_than_before() -> bool:
        return all(
            now <= then for one in zip(counts(), before, strict=True) for now, then in zip(*one, strict=True)
        )

    async def start(starter: Starter, torch: bool) -> Child:
        return Child("role", 0, "token", await starter.start(arguments, torch=torch))

    async def many(starter: Starter) -> list[int | None]:
        # Of both servers: one that still imports has other files than later.
        children = await asyncio.gather(*(start(starter, number % 2 == 0) for number in range(25)))
        for child in children:
            child.signal(signal.SIGTERM)
            await child.ended.wait()
            await child.close()
        return [child.code for child in children]

    lasting.run(ForkStarter, many)
    # A server that has told of an end may be about to close the pipe by which it did.
    before = counts()
    assert lasting.run(ForkStarter, many) == [-signal.SIGTERM] * 25
    wait_until(no_more_than_before, "nothing is left")


def test_a_start_that_is_given_up_leaves_nothing(lasting: Lasting, script: Script, tmp_path: Path) -> None:
    """Its process is forked all the same, and ends as its input does."""
    done = tmp_path / "done"
    arguments = script(f"import sys; sys.stdin.read(); open({str(done)!r}, 'w')")

    async def work(starter: Starter) -> None:
        descriptors = psutil.Process().num_fds()
        assert isinstance(starter, ForkStarter)
        server = psutil.Process(starter.servers[0].process.pid)
        server.suspend()
        try:
            start = asyncio.create_task(starter.start(arguments, torch=False))
            await until(lambda: psutil.Process().num_fds() > descriptors + 2, "it is asked for")
            start.cancel()
            await asyncio.wait([start])
        finally:
            server.resume()
        assert start.cancelled()
        assert psutil.Process().num_fds() == descriptors
        await until(done.exists, "it has ended")

    lasting.run(ForkStarter, work)


THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.mark.parametrize(("text", "refused"), [(THREAD, True), ("", False)], ids=["a thread", "none"])
def test_a_server_with_a_thread_refuses(
    script: Script, tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, refused: bool
) -> None:
    """It says why; without the thread it forks, which is the control."""
    (tmp_path / "imported.py").write_text(text, encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    with closing(ForkServer(["imported"], os.environ | {"PYTHONPATH": path})) as server:
        with open(os.devnull, "r+b") as nothing:
            order = ForkOrder(script("raise SystemExit(3)"))
            status = fork(server.address, order, [nothing.fileno()] * 3)
        with open(status, "rb", buffering=0) as file:
            if refused:
                assert file.read() == b""
                assert server.process.wait() == 1
            else:
                # By now the process may have ended.
                assert forkserver.read_signed(file.fileno()) not in (0, server.process.pid)
                assert forkserver.read_signed(file.fileno()) == 3
    assert ("the fork server cannot fork: it has 2 threads" in capfd.readouterr().err) == refused


USERS = """
print("imported")
import asyncio, sys, threading
from contextlib import closing
from multiprocessing import forkserver
from multiprocessing import forkserver, get_context, resource_tracker
from shadowsync.nodes.supervisor.child import Child
from shadowsync.nodes.supervisor.starter import ForkStarter

async def work(starter):
    started = await starter.start(["child.py"], torch=False)
    child = Child("role", 0, "", started)
    await child.ended.wait()
    await child.close()
    said.append((child.code, *child.lines))

def run():
    with closing(ForkStarter()) as starter:
        asyncio.run(work(starter))

said = []
threads = [threading.Thread(target=run) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(said)
print(forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)
"""
CHILD = """
import multiprocessing, os, warnings
warnings.simplefilter("error")

def work(queue):
    queue.put("shadowsync" in __import__("sys").modules)

if __name__ == "__main__":
    print(multiprocessing.current_process().name, multiprocessing.parent_process())
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        print(method, queue.get())
        process.join()
"""


@pytest.mark.parametrize("given", ["as a file", "as an argument", "as input"])
def test_the_program_of_a_user_is_left_alone(tmp_path: Path, given: str) -> None:
    """It runs once, also where it can be imported again, and has servers for each of its threads.

    The fork server of its own `multiprocessing` is another one, and so is that of a child.
    """
    (tmp_path / "child.py").write_text(CHILD, encoding="utf-8")
    (tmp_path / "program.py").write_text(USERS, encoding="utf-8")
    words = {"as a file": ["program.py"], "as an argument": ["-c", USERS], "as input": ["-"]}[given]
    done = subprocess.run(
        [sys.executable, "-W", "error", *words],
        cwd=tmp_path,
        input=USERS if given == "as input" else "",
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (0, "MainProcess None", "fork True", "spawn False", "forkserver False")
    assert (done.stdout, done.stderr) == (f"imported\n{[lines, lines]}\nNone None\n", "")


def test_the_method_is_chosen_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METHOD_VARIABLE, "spawn")
    assert isinstance(make_starter(), SpawnStarter)
    monkeypatch.setenv(METHOD_VARIABLE, "thread")
    with pytest.raises(JobFileError, match="forkserver or spawn"):
        make_starter()
    monkeypatch.delenv(METHOD_VARIABLE)
    assert start_method() == "forkserver"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert start_method() == "spawn"


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_what_is_started_as_a_program_exists(module: str) -> None:
    found = present(importlib.util.find_spec(module))
    assert found.origin is not None
    assert 'if __name__ == "__main__":' in Path(found.origin).read_text(encoding="utf-8")
    assert python(module, "one")[1:] == ["-P", "-m", module, "one"]


def test_the_package_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shadowsync", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: python -m shadowsync [OPTIONS] COMMAND")
