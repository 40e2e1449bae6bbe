"""docker/compose.yaml and docker/Dockerfile against the command line, the job's schema and the Makefile."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import shadowsync
import yaml
from shadowsync.cli import main
from shadowsync.nodes.runtime.health import HEALTHY, probe
from shadowsync.nodes.sync_rules import with_sync_nodes
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.wire.keys.job_key import KEY_VARIABLE, JobKey
from shadowsync.tests.support.imports import package_folders

ROOT = Path(shadowsync.__file__).resolve().parent
DOCKER = ROOT / "docker"
ROLES = ("coordinator", "reader", "trainer", "embedding", "sync")
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
CONTROL_DOCKERFILE = (DOCKER / "Dockerfile.control").read_text(encoding="utf-8")
COUNTS = {"TRAINERS": "trainer", "READERS": "reader", "EMBEDDINGS": "embedding", "SYNCS": "sync"}


def composed(environment: Mapping[str, str] | None = None, name: str = "compose.yaml") -> dict[str, Any]:
    """The file with its variables replaced as compose does it."""
    given = environment or {}

    def value(found: re.Match[str]) -> str:
        variable, operator, default = found.groups()
        if operator == ":-":
            return given.get(variable) or default
        return given.get(variable, default or "")

    text = (DOCKER / name).read_text(encoding="utf-8")
    loaded = yaml.safe_load(re.sub(r"\$\{([A-Z_]+)(:?-)?([^}]*)\}", value, text))
    assert isinstance(loaded, dict)
    return loaded


def arguments(service: Mapping[str, Any]) -> list[str]:
    """The command line of a service, the entrypoint aside."""
    return shlex.split(service["command"])


def parsed(service: Mapping[str, Any]) -> dict[str, Any]:
    """What click makes of the command line; it raises for what is no option of it."""
    name, *rest = arguments(service)
    # With its parent, as a command keeps the form of --help that it was first asked with.
    parent = click.Context(main, **main.context_settings)
    return main.commands[name].make_context(name, rest, parent=parent).params


def job_of(service: Mapping[str, Any]) -> Job:
    """The job that a node of it would have."""
    given = parsed(service)
    assert given["job_file"] == "/job/job.toml"
    return with_sync_nodes(load_job(DOCKER / "job.toml", given["overrides"]), may_import=True)


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """Target to source."""
    return {target: source for source, target, *_ in (text.split(":") for text in service.get("volumes", []))}


def test_every_role_has_a_service_whose_command_line_is_one_of_ours() -> None:
    services = composed()["services"]
    for role in ROLES:
        assert arguments(services[role])[0] == role
        assert parsed(services[role])
        if role != "coordinator":
            assert parsed(services[role])["join"] == "tcp://coordinator:5555"
            assert parsed(services[role])["advertise"] == "auto"
    assert parsed(services["coordinator"])["bind"] == "0.0.0.0:5555"
    assert parsed(services["demo-log"])["reuse"]


def test_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parsed({"command": "trainer job.toml --join tcp://c:1 --no-such-option"})


@pytest.mark.parametrize("environment", [{}, {"TRAINERS": "3"}, dict.fromkeys(COUNTS, "4")])
def test_all_nodes_have_the_same_job_and_as_many_are_started(environment: dict[str, str]) -> None:
    services = composed(environment)["services"]
    jobs = {role: job_of(services[role]) for role in ROLES}
    assert len({job.digest for job in jobs.values()}) == 1
    expected = jobs["coordinator"].expected
    for variable, role in COUNTS.items():
        assert services[role]["scale"] == expected[role]
        if variable in environment:
            assert expected[role] == int(environment[variable])


def test_what_the_job_reads_and_writes_is_mounted() -> None:
    loaded = composed()
    services = loaded["services"]
    job = job_of(services["coordinator"])
    for role in ROLES:
        own = mounts(services[role])
        assert own["/job/job.toml"] == "./job.toml"
        assert own[job.run.directory] == "runs"
        if role in ("coordinator", "reader"):
            for glob in (*job.data.path, *job.data.eval_path):
                assert str(Path(glob).parent) in own
    assert str(parsed(services["demo-log"])["directory"]) in mounts(services["demo-log"])
    named = {source for one in services.values() for source in mounts(one).values() if "/" not in source}
    assert named == set(loaded["volumes"])
    # Otherwise a named volume would belong to root.
    (made,) = re.findall(r"mkdir (.*?) &&", DOCKERFILE)
    assert {"/data", "/demo", "/key", "/token", job.run.directory} == set(made.split())
    for dockerfile in (DOCKERFILE, CONTROL_DOCKERFILE):
        assert f"mkdir {made} && chown shadowsync:shadowsync {made}" in dockerfile


def made_by(service: Mapping[str, Any]) -> dict[str, Any]:
    """What click makes of the command line of a service that makes the key."""
    group, command, *rest = arguments(service)
    keys = main.commands[group]
    assert isinstance(keys, click.Group)
    return keys.commands[command].make_context(command, rest).params


@pytest.mark.parametrize("given", [{}, {"KEY_FILE": "/run/secrets/job"}])
def test_every_node_has_the_key_that_is_made_first(given: dict[str, str]) -> None:
    services = composed(given)["services"]
    made = made_by(services["job-key"])
    assert made["reuse"]
    for role in ROLES:
        assert services[role]["environment"] == {KEY_VARIABLE: given.get("KEY_FILE", str(made["file"]))}
        assert mounts(services[role])[str(Path(made["file"]).parent)] == "key"
    assert services["coordinator"]["depends_on"]["job-key"] == {"condition": "service_completed_successfully"}


def test_a_key_that_is_a_secret_takes_the_place_of_the_one_that_is_made() -> None:
    secret = composed({"KEY": "/home/me/job.key"}, "compose.secrets.yaml")
    assert secret["secrets"] == {"job-key": {"file": "/home/me/job.key"}}
    # Where Compose mounts a secret.
    mounted = "/run/secrets/job-key"
    watched = composed(name="compose.watch.secrets.yaml")["services"]
    assert watched.keys() <= composed(name="compose.watch.yaml")["services"].keys()
    for service in (*(secret["services"][role] for role in ROLES), *watched.values()):
        assert service == {"environment": {KEY_VARIABLE: mounted}, "secrets": ["job-key"]}
    maker = secret["services"]["job-key"]
    assert maker["secrets"] == ["job-key"]
    made = made_by(maker)
    assert (str(made["file"]), made["reuse"]) == (mounted, True)
    # Only what compose.yaml has.
    assert secret["services"].keys() == {*ROLES, "job-key"}


def test_a_coordinator_that_is_started_again_takes_over_its_run() -> None:
    assert parsed(composed()["services"]["coordinator"])["restartable"]


def test_a_job_and_data_of_ones_own_take_the_place_of_the_demonstrations() -> None:
    services = composed({"JOB": "./mine.toml", "DATA": "./log"})["services"]
    for role in ROLES:
        assert mounts(services[role])["/job/job.toml"] == "./mine.toml"
    for role in ("coordinator", "reader"):
        assert mounts(services[role])["/data"] == "./log"


@pytest.mark.parametrize("name", ["compose.yaml", "compose.watch.yaml", "compose.gpu.yaml"])
def test_ports_are_open_to_this_host_only(name: str) -> None:
    for service in composed(name=name)["services"].values():
        assert service.get("network_mode") != "host"
        for port in service.get("ports", []):
            assert str(port).startswith("127.0.0.1:")


def test_what_is_watched_is_served() -> None:
    services = composed()["services"]
    scraped = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (found,) = scraped["scrape_configs"][0]["dns_sd_configs"]
    assert set(found["names"]) == set(ROLES)
    for role in ROLES:
        assert parsed(services[role])["metrics_port"] == found["port"]
    watching = composed(name="compose.watch.yaml")["services"]
    (published,) = watching["coordinator"]["ports"]
    assert parsed(services["coordinator"])["web"] == f"0.0.0.0:{published.rpartition(':')[2]}"
    for service in watching.values():
        for source in mounts(service).values():
            assert "/" not in source or (DOCKER / source).exists()


@pytest.mark.parametrize("given", [{}, {"KEY_FILE": "/run/secrets/job"}])
def test_prometheus_has_the_token_and_not_the_key(given: dict[str, str], tmp_path: Path) -> None:
    services, watching = composed(given)["services"], composed(given, "compose.watch.yaml")["services"]
    prometheus, teller = watching["prometheus"], watching["metrics-token"]
    assert prometheus["depends_on"]["metrics-token"] == {"condition": "service_completed_successfully"}
    assert teller["depends_on"]["job-key"] == {"condition": "service_completed_successfully"}
    assert teller["environment"] == services["coordinator"]["environment"]
    scraped = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    found = Path(scraped["scrape_configs"][0]["authorization"]["credentials_file"])
    assert mounts(prometheus)[str(found.parent)] == mounts(teller)[str(found.parent)] == "token"
    assert "key" not in mounts(prometheus).values()
    assert "token" in composed(name="compose.watch.yaml")["volumes"]
    # What the container runs, with its folder here.
    key = JobKey.generate()
    key.write(tmp_path / "job.key")
    shell, option, script = teller["entrypoint"]
    script = script.replace(str(found), str(tmp_path / found.name))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {KEY_VARIABLE: str(tmp_path / "job.key"), "PATH": path}
    subprocess.run([shell, option, script], env=environment, check=True, timeout=60)
    written = tmp_path / found.name
    assert written.read_text(encoding="ascii").strip() == key.http_token
    # Prometheus runs as another user.
    assert written.stat().st_mode & 0o004


def test_trainers_on_gpus_have_the_same_job() -> None:
    ordinary = composed({"TRAINERS": "3"})["services"]["trainer"]
    trainer = composed({"TRAINERS": "3"}, "compose.gpu.yaml")["services"]["trainer"]
    assert job_of(trainer).digest == job_of(ordinary).digest
    assert job_of(trainer).trainer.device == "auto"
    assert {**parsed(trainer), "overrides": ()} == {**parsed(ordinary), "overrides": ()}


def test_nodes_are_watched_limited_and_not_started_again() -> None:
    services = composed({"NODE_MEMORY": "2g", "NODE_CPUS": "1.5"})["services"]
    for role in ROLES:
        service = services[role]
        assert service["restart"] == "no"
        # Compose would read a plain $ itself.
        assert service["healthcheck"]["test"] == [
            "CMD",
            *(part.replace("$", "$$") for part in probe(HEALTHY)),
        ]
        assert (service["mem_limit"], service["cpus"]) == ("2g", 1.5)
    for dockerfile in (DOCKERFILE, CONTROL_DOCKERFILE):
        (command,) = re.findall(r"^HEALTHCHECK .* CMD (.*)$", dockerfile, re.MULTILINE)
        assert json.loads(command) == probe(HEALTHY)


def test_the_image_is_pinned_as_the_makefile_is() -> None:
    def default(name: str) -> str:
        (found,) = re.findall(rf"^ARG {name}=(.*)$", DOCKERFILE, re.MULTILINE)
        return str(found)

    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^TORCH_INDEX \?= {re.escape(default('TORCH_INDEX'))}$", makefile, re.MULTILINE)
    # Without what is installed for development, for jobs on Ray and for the site.
    assert DOCKERFILE.count("-c constraints.txt") == makefile.count("-c constraints.txt") - 3
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = default("BASE").removeprefix("python:").removesuffix("-slim")
    assert requires["requires-python"] == f">={version}"
    assert f"ARG BASE={default('BASE')}\n" in CONTROL_DOCKERFILE
    for name, service in composed()["services"].items():
        if "build" in service:
            control = name in ("coordinator", "reader", "job-key")
            wanted = {"BASE": default("BASE")} | ({} if control else {"TORCH_INDEX": default("TORCH_INDEX")})
            assert service["build"]["args"] == wanted
            dockerfile = "docker/Dockerfile.control" if control else "docker/Dockerfile"
            assert service["build"]["dockerfile"] == dockerfile


def test_the_control_image_installs_all_but_torch() -> None:
    (line,) = re.findall(r"python packages.py (.*?) > ", CONTROL_DOCKERFILE)
    (whole,) = re.findall(r"python packages.py (.*?) > ", DOCKERFILE)
    assert line == f"{whole} --without torch"

    def printed(options: str) -> list[str]:
        command = [sys.executable, str(DOCKER / "packages.py"), *options.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return done.stdout.splitlines()

    assert [each for each in printed(whole) if each not in printed(line)] == ["torch>=2.4,<3"]
    assert {"aiohttp>=3.14", "pyzmq>=26", "prometheus-client>=0.26"} <= set(printed(line))


@pytest.mark.parametrize("dockerfile", [DOCKERFILE, CONTROL_DOCKERFILE], ids=["whole", "control"])
def test_the_image_runs_as_nobody_special_and_gets_the_signals(dockerfile: str) -> None:
    lines = dockerfile.splitlines()
    assert "USER shadowsync" in lines
    (entrypoint,) = [line for line in lines if line.startswith("ENTRYPOINT")]
    assert json.loads(entrypoint.removeprefix("ENTRYPOINT ")) == ["shadowsync"]
    assert lines.index("USER shadowsync") < lines.index(entrypoint)


def test_the_image_gets_every_module_and_package_and_no_more() -> None:
    packages = {folder.name for folder in package_folders(ROOT)}
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    let_in = {line.removeprefix("!/") for line in lines if line.startswith("!/")}
    files = {name for name in let_in if "." in name or name == "LICENSE"}
    assert "**" in lines
    assert let_in - files == packages
    built = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "docker/packages.py"}
    # The modules of the root by pattern, or the image would lack the next one.
    assert files == built | {"*.py", "py.typed"}
