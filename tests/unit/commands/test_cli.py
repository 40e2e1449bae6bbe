"""The command line: help without torch; exit codes; what the commands print."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import shadowsync
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.commands.options import job_of
from shadowsync.pipeline import errors
from shadowsync.pipeline.data.generator import generator
from shadowsync.pipeline.errors import ExitCode, ShadowSyncError

ROOT = Path(shadowsync.__file__).resolve().parent
COMMANDS = sorted(main.commands)


def test_help_needs_no_torch() -> None:
    """That of all commands, in turn in one new process."""
    script = (
        "import sys\nfrom shadowsync.cli import main\n"
        "for command in ([], *([name] for name in sys.argv[1:])):\n"
        "    try:\n        main([*command, '--help'])\n"
        "    except SystemExit as end:\n        assert end.code == 0, command\n"
        "    heavy = {'torch', 'polars', 'pyarrow', 'matplotlib', 'zmq', 'numpy'} & set(sys.modules)\n"
        "    assert not heavy, (command, heavy)"
    )
    command = [sys.executable, "-c", script, *COMMANDS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == 1 + len(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    command = main.commands[name]
    assert command.help
    for parameter in command.params:
        hidden = isinstance(parameter, click.Option) and parameter.hidden
        if isinstance(parameter, click.Option):
            assert (parameter.opts[0] in result.output) is not hidden
    assert CliRunner().invoke(main, [name, "-h"]).output == result.output


def _stated_by_help() -> list[tuple[str, str]]:
    text = CliRunner().invoke(main, ["--help"]).output.partition("Exit codes:")[2]
    return re.findall(r"^ *(\d+) +(.+)$", text, re.MULTILINE)


def test_exit_codes_are_told() -> None:
    """The help has a line for each code that there is, and no other."""
    assert [int(code) for code, _ in _stated_by_help()] == sorted(ExitCode)


def test_the_documents_list_the_exit_codes() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE) == _stated_by_help()


def test_what_a_user_can_mend_is_no_internal_error() -> None:
    own = {value for value in vars(errors).values() if isinstance(value, type)}
    found = {cls for cls in own if issubclass(cls, ShadowSyncError) and cls is not ShadowSyncError}
    assert len(found) >= 6
    assert {cls.exit_code for cls in found} <= set(ExitCode) - {ExitCode.OK, ExitCode.INTERNAL}
    assert ShadowSyncError.exit_code is ExitCode.INTERNAL, "the control: what a class has that names none"


def test_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.output == f"shadowsync, version {shadowsync.__version__}\n"


def test_algos_lists_names_options_and_models() -> None:
    result = CliRunner().invoke(main, ["algos"])
    assert result.exit_code == 0
    for name, needs, model in [
        ("easgd", "sync nodes", "center"),
        ("none", "no sync node", "replicas, each by itself"),
        ("ma", "no sync node, only the other trainers", "mean of the replicas"),
        ("bmuf", "no sync node, only the other trainers", "global model, the same on every trainer"),
    ]:
        lines = rf"^{name}  .*\n +needs {needs}; resulting model: {model}\n"
        assert re.search(lines, result.output, re.M), name
    assert result.output.count("sync.options.elastic_rate = 0.5") == 4
    assert result.output.count('sync.options.form = "interpolate"   ("interpolate" or "keep")') == 3
    assert result.output.count('sync.options.form = "keep"   ("interpolate" or "keep")') == 1
    assert "sync.options.nesterov = false" in result.output


def test_algos_lists_installed_ones_and_names_the_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "outside-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n", "utf-8")
    points = "[shadowsync.sync_algos]\nbroken = no_such_module_z:X\nma_too = shadowsync.sync_algos.ma:MA\n"
    (folder / "entry_points.txt").write_text(points, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    result = CliRunner().invoke(main, ["algos"])
    assert result.exit_code == 0
    said = (
        "'broken' of the installed package outside: 'no_such_module_z:X' cannot be loaded: there is no module"
    )
    assert re.search(rf"^broken +cannot be used: {said}", result.output, re.M)
    assert re.search(r"^ma_too +cannot be used: .*has name = 'ma'; make them equal$", result.output, re.M)
    assert re.search(r"^easgd  ", result.output, re.M)


@pytest.mark.parametrize("may_import", [True, False])
def test_every_node_reads_the_same_job(tmp_path: Path, may_import: bool) -> None:
    """With torch and without; of an algorithm without a center it has no sync node."""
    file = tmp_path / "job.toml"
    file.write_text('[data]\nformat = "parquet"\npath = "x"\n[sync]\nnodes = 3\n', encoding="utf-8")
    jobs = {
        name: job_of(str(file), (f"sync.algorithm={name}",), may_import=may_import)
        for name in ("ma", "none", "easgd")
    }
    assert {name: job.expected["sync"] for name, job in jobs.items()} == {"ma": 0, "none": 0, "easgd": 3}
    resolved = tmp_path / "job.json"
    resolved.write_text(jobs["ma"].model_dump_json(), encoding="utf-8")
    assert job_of(str(resolved), (), may_import=may_import).digest == jobs["ma"].digest


def test_generate_tells_what_it_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    arguments = ["generate", str(folder), "--examples", "2000", "--eval-examples", "500", "--reuse"]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 0, first.stderr
    assert re.search(
        r"^train: 2,000 examples, [\d,]+ distinct ids, [\d.]+ kB, teacher's NE 0\.\d{4}$", first.output, re.M
    )
    assert "eval: 500 examples" in first.output
    assert first.output.endswith(f"written: {folder}\n")
    again = CliRunner().invoke(main, arguments)
    assert again.output == first.output.replace("written: ", "exists already: ")


def test_an_interrupted_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a command that is no node."""
    # A background shell starts its jobs with SIGINT ignored, and Python then leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(*arguments: Any, **options: Any) -> None:
        del arguments, options
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(generator, "generate_log", interrupted)
    try:
        result = CliRunner().invoke(main, ["generate", "log"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert result.stderr == "shadowsync generate: interrupted\n"


def test_resume_takes_an_address_for_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[tuple[str, ...]] = []

    def resumed_job(folder: Path, overrides: tuple[str, ...], which: str, *, trust: bool) -> None:
        given.append(overrides)
        raise ShadowSyncError(f"{folder} {which} {trust}")

    monkeypatch.setattr("shadowsync.nodes.supervisor.run.resumed_job", resumed_job)
    for web, expected in (((), ()), (("--web", "8080"), ('watch.web="8080"',))):
        CliRunner().invoke(main, ["resume", str(tmp_path), "--set", "run.seed=2", *web])
        assert given.pop() == ("run.seed=2", *expected)


def test_check_refuses_an_algorithm_before_it_reads_anything(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[data]\nformat = "parquet"\npath = "absent.parquet"\n', encoding="utf-8")

    def check(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["check", str(job), *options])
        return result.exit_code, result.output

    code, said = check("--set", "sync.algorithm=gossip")
    assert code == ExitCode.USAGE
    assert "sync.algorithm: 'gossip' is 'ds_sync' with groups of 2" in said
    assert "absent.parquet" in check()[1], "the control"
    assert "absent.parquet" in check("--set", "sync.algorithm=./mine.py:Mine")[1], "one's own is not loaded"
