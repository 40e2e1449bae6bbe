"""A wheel made of the tree has all of the package and nothing else, and works where only it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import shadowsync
from shadowsync.pipeline.jobfile.extras import EXTRAS
from shadowsync.tests.support.imports import package_files, package_folders
from shadowsync.tests.support.jobs.runs import small_job, write_job

ROOT = Path(shadowsync.__file__).resolve().parent
NEEDED_SETUPTOOLS = 77
# Neither of these is part of a checkout.
NOT_IN_THE_TREE = (".*", "__pycache__", "runs", "demo-data", "build", "dist", "*.egg-info")
# Opens the files that the page has beside its modules, through what is installed.
OPEN_FILES = """
import json, shadowsync
from shadowsync.watch.page.files import page_files
print(json.dumps([shadowsync.__file__, {path: len(file.content) for path, file in page_files().items()}]))
"""


def _can_build() -> bool:
    # Not by `find_spec`: setuptools warns where another test has imported distutils.
    try:
        version("pip")
        return int(version("setuptools").partition(".")[0]) >= NEEDED_SETUPTOOLS
    except PackageNotFoundError:
        return False


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def files_of_the_package() -> set[str]:
    """By their names in a wheel: every file below the package's folders, modules or not."""
    files = {*package_files(ROOT).values(), ROOT / "py.typed"}
    files |= {file for folder in package_folders(ROOT) for file in folder.rglob("*") if file.is_file()}
    return {f"shadowsync/{file.relative_to(ROOT)}" for file in files if "__pycache__" not in file.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the whole tree, so that nothing is written into ours."""
    if not _can_build():
        pytest.skip(f"needs pip and setuptools {NEEDED_SETUPTOOLS} or newer in this environment")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("an installed package has no pyproject.toml beside it")
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*NOT_IN_THE_TREE))
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    _pip("wheel", *options, str(folder / "tree"))
    (found,) = folder.glob("*.whl")
    return found


def install(wheel: Path, folder: Path, without: Collection[str]) -> Path:
    """The commands' folder of an environment with the wheel, and links to all else but `without`."""
    venv.create(folder, with_pip=False, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    site, own = Path(paths["purelib"]), Path(sysconfig.get_paths()["purelib"])
    for entry in own.iterdir():
        if (
            "shadowsync" not in entry.name
            and entry.name not in without
            and entry.suffix != ".pth"
            and entry.name != "__pycache__"
        ):
            (site / entry.name).symlink_to(entry)
    python = str(folder / "bin" / "python")
    _pip("--python", python, "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    return folder / "bin"


def outside(command: list[str | Path], folder: Path) -> tuple[str, str]:
    """What a command prints, and what errors, that is run in `folder` and knows nothing of this checkout."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == files_of_the_package()
    assert len(names) > 80


def test_wheel_has_the_license_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        by_end = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
        assert "licenses/LICENSE" in by_end
        assert "shadowsync = shadowsync.cli:main" in archive.read(by_end["entry_points.txt"]).decode()
        metadata = archive.read(by_end["METADATA"]).decode()
    assert f"\nVersion: {shadowsync.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands' folder of an environment with the wheel and without the modules of the extras."""
    optional = {name for modules in EXTRAS.values() for name in modules}
    return install(wheel, tmp_path_factory.mktemp("installed") / "environment", without=optional)


def test_installed_package_opens_its_files(installed: Path, tmp_path: Path) -> None:
    where, sizes = json.loads(outside([installed / "python", "-c", OPEN_FILES], tmp_path)[0])
    assert Path(where).is_relative_to(installed.parent)
    assert set(sizes) > {"/", "/page.js", "/vendor/uPlot.js"}
    assert all(sizes.values())


def test_installed_command_runs_a_job_without_the_extras(
    installed: Path, click_log: Path, tmp_path: Path
) -> None:
    """And says in one line what the job, which asks for all of it, goes without."""
    watch = {"web": "0", "metrics_port": 9100, "tensorboard": True}
    job = write_job(tmp_path / "job.toml", small_job(click_log, tmp_path / "runs"), {"watch": watch})
    printed, reported = outside([installed / "shadowsync", "run", job], tmp_path)
    # Its progress stands there, too, where the machine is slow.
    assert [line for line in reported.splitlines() if "install" in line] == [
        "left out: the pictures of the report, the page, the metrics, TensorBoard's files; "
        "pip install 'shadowsync[plots,web,metrics,tensorboard]' adds it"
    ]
    assert not list((tmp_path / "runs" / "latest").glob("*.png"))
    report = json.loads((tmp_path / "runs" / "latest" / "report.json").read_text(encoding="utf-8"))
    assert report["exit_code"] == 0
    assert report["ledger"]["adds_up"]
    assert "adds up" in printed
