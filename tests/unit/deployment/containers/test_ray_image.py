"""docker/Dockerfile.ray beside the image that it begins with, the packaging and the documents."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import shadowsync
from packaging.requirements import Requirement

ROOT = Path(shadowsync.__file__).resolve().parent
DOCKERFILE = (ROOT / "docker" / "Dockerfile.ray").read_text(encoding="utf-8")
BASE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
OTHER_PATH = "/usr/local/bin:/usr/bin:/bin"


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, without comments."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found = []
    for line in lines.replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name:
            found.append((name, rest.strip()))
    return found


def of(name: str, text: str = DOCKERFILE) -> list[str]:
    return [rest for one, rest in instructions(text) if one == name]


def test_it_begins_with_the_image_of_every_role_and_keeps_how_that_is_run() -> None:
    assert instructions(DOCKERFILE)[:2] == [("ARG", "IMAGE=shadowsync"), ("FROM", "${IMAGE}")]
    assert of("USER") == ["root", of("USER", BASE)[-1]], "root for apt and the virtual environment only"
    assert instructions(DOCKERFILE)[-1][0] == "USER"
    assert of("ENTRYPOINT", BASE) == ['["shadowsync"]']
    assert not {"ENTRYPOINT", "CMD", "WORKDIR", "ENV"} & {name for name, _ in instructions(DOCKERFILE)}


def test_the_build_is_sent_what_it_copies() -> None:
    let_in = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    (copied,) = of("COPY")
    source, target = copied.split()
    assert (ROOT / source).is_file()
    assert f"!/{source}" in let_in
    # And leaves nothing of it behind.
    assert f"rm {target}{source}" in of("RUN")[0]


def test_ray_is_that_of_the_extra_in_the_version_that_is_tested() -> None:
    (installed,) = re.findall(r"pip install -q -c (\S+) (.*?) &&", of("RUN")[0])
    constraints, packages = installed
    assert Path(constraints).name == "constraints.txt"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert shlex.split(packages) == project["optional-dependencies"]["ray"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    (ray,) = [one for one in pinned if one.name == "ray"]
    (wanted,) = [Requirement(line) for line in shlex.split(packages)]
    (exact,) = ray.specifier
    assert exact.operator == "=="
    assert wanted.specifier.contains(exact.version)
    if importlib.util.find_spec("ray") is not None:
        assert version("ray") == exact.version, "what `make ray` tests with"


def test_a_login_shell_finds_the_programs(tmp_path: Path) -> None:
    """KubeRay before 1.4 starts one, and /etc/profile of Debian sets PATH before it reads the file."""
    (script, target) = re.findall(r"^echo '(.*)' > (\S+)$", of("RUN")[1])[0]
    assert re.fullmatch(r"/etc/profile\.d/[a-z]+\.sh", target), "what /etc/profile reads"
    file = tmp_path / "own.sh"
    file.write_text(f"{script}\n", encoding="utf-8")

    def path_after(command: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-c", f"{command}; echo $PATH"],
            env={"PATH": OTHER_PATH},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip().split(":")

    (path,) = re.findall(r"PATH=(\S+)", of("ENV", BASE)[0])
    programs = path.split(":")[0]
    assert path_after(f". {file}") == [programs, *OTHER_PATH.split(":")]
    # The control.
    assert programs not in path_after("true")


def test_the_documents_build_it_as_it_says() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"docker build -f (\S+) -t \S+ --build-arg (\w+)=\S+ \.", text)
    assert command == ("docker/Dockerfile.ray", "IMAGE")
