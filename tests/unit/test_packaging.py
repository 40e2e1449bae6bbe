"""A wheel made of the tree has all of the package, and nothing else."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import shadowsync
from shadowsync.tests.support.imports import package_files

ROOT = Path(shadowsync.__file__).resolve().parent
NEEDED_SETUPTOOLS = 77


def _can_build() -> bool:
    if importlib.util.find_spec("setuptools") is None or importlib.util.find_spec("pip") is None:
        return False
    return int(version("setuptools").partition(".")[0]) >= NEEDED_SETUPTOOLS


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tree, so that nothing is written into ours; with a test and a stray file."""
    if not _can_build():
        pytest.skip(f"needs pip and setuptools {NEEDED_SETUPTOOLS} or newer in this environment")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("an installed package has no pyproject.toml beside it")
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    others = [ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE", "py.typed")]
    strays = [ROOT / "tests" / "conftest.py", *(ROOT / "benchmarks").glob("*.py")]
    for file in [*package_files(ROOT).values(), *others, *strays]:
        copy = tree / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--wheel-dir", str(folder), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_wheel_has_every_module_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {f"shadowsync/{file.relative_to(ROOT)}" for file in package_files(ROOT).values()}
    found = {name for name in names if ".dist-info/" not in name}
    assert found == modules | {"shadowsync/py.typed"}
    assert len(modules) > 80


def test_wheel_has_the_license_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        by_end = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
        assert "licenses/LICENSE" in by_end
        assert "shadowsync = shadowsync.cli:main" in archive.read(by_end["entry_points.txt"]).decode()
        metadata = archive.read(by_end["METADATA"]).decode()
    assert f"\nVersion: {shadowsync.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    """The unpacked wheel, not the tree: from another folder, before anything that is installed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}

    def python(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
        )
        return done.stdout

    where = python("-c", "import shadowsync; print(shadowsync.__file__)").strip()
    assert Path(where) == tmp_path / "site" / "shadowsync" / "__init__.py"
    assert "needs sync nodes" in python("-m", "shadowsync.cli", "algos")
