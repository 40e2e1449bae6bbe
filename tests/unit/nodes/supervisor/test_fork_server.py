"""Processes that a fork server forks end, and are told of, as those that are spawned."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from shadowsync.nodes.runtime.process import ENTRY_POINTS, FORK_SERVER, python
from shadowsync.nodes.supervisor.child import Child
from shadowsync.nodes.supervisor.fork_server import ForkServer
from shadowsync.nodes.supervisor.starter import (
    METHOD_VARIABLE,
    ForkStarter,
    SpawnStarter,
    Starter,
    make_starter,
    receive_reply,
    send_request,
    start_method,
)
from shadowsync.pipeline.errors import ClusterError, JobFileError
from shadowsync.tests.support.jobs.processes import is_alive, wait_until
from torch.backends import mkl

Work = Callable[[Starter], Coroutine[Any, Any, Any]]
With = Callable[[Work], Any]
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
        """End all."""
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
def script(tmp_path: Path) -> Callable[[str], list[str]]:
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
def test_an_end_has_its_code(
    with_starter: With, script: Callable[[str], list[str]], text: str, code: int
) -> None:
    child = with_starter(lambda starter: ended(starter, script(text)))
    assert child.code == code
    assert ("ZeroDivisionError: division by zero" in child.lines) == (text == "1 / 0")
    assert ("a reason" in child.lines) == ("a reason" in text)


@STARTERS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_death_has_its_signal(with_starter: With, script: Callable[[str], list[str]], number: int) -> None:
    text = "import signal; print('here', flush=True); signal.pause()"
    child = with_starter(lambda starter: ended(starter, script(text), number))
    assert child.code == -number


@STARTERS
def test_a_process_is_as_a_new_one(with_starter: With, script: Callable[[str], list[str]]) -> None:
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


def test_a_child_keeps_the_files_of_libraries_only() -> None:
    """libffi maps code from a descriptor that it keeps: another file in its place ends the process."""
    text = """
        import os, socket, tempfile
        from shadowsync.nodes.supervisor.fork_server import close_descriptors
        library, stream = (os.open(__file__, os.O_RDONLY) for _ in range(2))
        closed = [stream, *os.pipe(), *(end.detach() for end in socket.socketpair())]
        close_descriptors([stream])
        print([os.path.exists(f"/proc/self/fd/{number}") for number in (library, *closed)].index(False))
        print(any(os.path.exists(f"/proc/self/fd/{number}") for number in closed))
        """
    script = textwrap.dedent(text).replace("__file__", repr(__file__))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\nFalse\n", "")


def test_its_input_ends_with_the_supervisor_and_the_server_too(tmp_path: Path) -> None:
    """A killed supervisor: the server ends at once, and what it forked sees the end of its input."""
    (tmp_path / "child.py").write_text(
        "import sys; sys.stdin.read(); open('orphaned', 'w')", encoding="utf-8"
    )
    (tmp_path / "supervisor.py").write_text(
        textwrap.dedent(
            """
            import asyncio
            from shadowsync.nodes.supervisor.starter import ForkStarter, receive_reply, send_request

            async def main():
                starter = ForkStarter()
                for torch in (False, True):
                    await starter.start(["child.py"], torch=torch)
                print("started", flush=True)
                await asyncio.sleep(3600)

            asyncio.run(main())
            """
        ),
        encoding="utf-8",
    )
    command = [sys.executable, "supervisor.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "started\n"
        offspring = psutil.Process(supervisor.pid).children(recursive=True)
        assert len(offspring) == 4, "two servers, and a child of each"
        assert not (tmp_path / "orphaned").exists()
        supervisor.kill()
        wait_until(lambda: not any(map(is_alive, offspring)), "all have ended")
    assert (tmp_path / "orphaned").exists()


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
def test_the_light_server_has_no_torch_and_the_other_one_has(
    with_starter: With, script: Callable[[str], list[str]]
) -> None:
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

    with closing(ForkStarter()):
        shown = [[sys.executable, "-m", FORK_SERVER]] * 2
        wait_until(lambda: lines() == shown, "both show it")


def test_a_dead_server_ends_its_processes(lasting: Lasting, script: Callable[[str], list[str]]) -> None:
    """It is the last in this file that needs the one that lasts."""

    async def work(starter: Starter) -> tuple[int | None, str]:
        assert isinstance(starter, ForkStarter)
        text = "import signal; print('here', flush=True); signal.pause()"
        child = Child("role", 0, "token", await starter.start(script(text), torch=True))
        server = psutil.Process(child.pid).parent()
        assert server is not None
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


def test_a_client_that_was_killed_before_it_read_a_reply_is_an_end() -> None:
    client, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server:
        server.send(b"a reply")
        # Linux resets the connection of one that closes with unread messages.
        client.close()
        assert ForkServer(server).serve() is None


FORKS = """
import os, socket, sys, threading
from shadowsync.nodes.supervisor.fork_server import why_not_fork

own = socket.socket()
held = threading.Event()
if sys.argv[1] == "thread":
    threading.Thread(target=held.wait).start()
if sys.argv[1] == "socket":
    other = socket.socket()
print(why_not_fork({own.fileno()}))
held.set()
"""


@pytest.mark.parametrize(
    ("what", "why"), [("nothing", ""), ("thread", "it has 2 threads"), ("socket", "it has a socket")]
)
def test_a_process_with_threads_or_sockets_is_not_forked(what: str, why: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, what], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(why + ("\n" if not why else ""))


SERVES = """
import socket, sys, threading
from shadowsync.nodes.supervisor.fork_server import ForkServer, become

if sys.argv[1] == "thread":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
order = ForkServer(socket.socket(fileno=int(sys.argv[2]))).serve()
if order is not None:
    become(order)
"""


@pytest.mark.parametrize("what", ["thread", "nothing"])
def test_a_server_with_a_thread_refuses(script: Callable[[str], list[str]], what: str) -> None:
    """It says why; without the thread it forks, which is the control."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", SERVES, what, str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()]):
        theirs.close()
        with open(os.devnull, "r+b") as nothing:
            send_request(ours, 7, script("raise SystemExit(3)"), [nothing.fileno()] * 3)
        reply = receive_reply(ours)
        assert reply is not None
        body, process = reply
        if what == "thread":
            assert body == {"request": 7, "refused": "it has 2 threads"}
        else:
            assert process is not None
            os.close(process)
            assert receive_reply(ours) == ({"request": 7, "code": 3}, None)
        ours.shutdown(socket.SHUT_RDWR)


def test_the_method_is_chosen_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METHOD_VARIABLE, "spawn")
    assert isinstance(make_starter(), SpawnStarter)
    monkeypatch.setenv(METHOD_VARIABLE, "thread")
    with pytest.raises(JobFileError, match="forkserver or spawn"):
        make_starter()
    monkeypatch.delenv(METHOD_VARIABLE)
    assert start_method() == "forkserver"
    monkeypatch.delattr(os, "pidfd_open")
    assert start_method() == "spawn"


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_what_is_started_as_a_program_exists(module: str) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    assert 'if __name__ == "__main__":' in Path(found.origin).read_text(encoding="utf-8")
    assert python(module, "one")[1:] == ["-P", "-m", module, "one"]


def test_the_package_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shadowsync", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: python -m shadowsync [OPTIONS] COMMAND")
