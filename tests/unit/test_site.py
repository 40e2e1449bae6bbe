"""The site of `make docs`: all pages are in its contents, links lead somewhere, public names are shown."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import click
import pytest
import shadowsync
from shadowsync.cli import main

ROOT = Path(shadowsync.__file__).resolve().parent

if not (ROOT / "docs").is_dir():
    pytest.skip("an installed package has no docs beside it", allow_module_level=True)


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_of_docs", ROOT / "docs" / "build_site.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of two pages, without a fault."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "zensical.toml").write_text(
        '[project]\nnav = [{"Start" = ["README.md"]}, {"More" = [{"A page" = "docs/a.md"}]}]\n'
    )
    (tmp_path / "README.md").write_text(
        "[a](docs/a.md#part), [picture](docs/a.svg), [elsewhere](https://host/b)\n"
    )
    (tmp_path / "docs" / "a.md").write_text("# A\n\n## Part\n\n[back](../README.md), [here](#part)\n")
    (tmp_path / "docs" / "a.svg").write_text("<svg/>")
    (tmp_path / "docs" / "unlinked.txt").write_text("")
    return tmp_path


def test_the_pages_have_no_problem(site: ModuleType) -> None:
    assert site.problems(ROOT) == []
    assert len(site.pages(ROOT)) > 15


def test_each_problem_is_named(site: ModuleType, tree: Path) -> None:
    assert site.problems(tree) == []
    (tree / "docs" / "b.md").write_text("[gone](c.md), [a folder](../docs), [a](a.md)\n")
    assert site.problems(tree) == [
        "docs/b.md is not in the nav of docs/zensical.toml",
        "docs/b.md: the link c.md leads to no file",
        "docs/b.md: the link ../docs leads to no file",
    ]
    (tree / "docs" / "b.md").unlink()
    (tree / "docs" / "a.md").unlink()
    assert site.problems(tree) == [
        "docs/zensical.toml: docs/a.md is in the nav, and there is no such page",
        "README.md: the link docs/a.md leads to no file",
    ]


def test_pages_are_copied_with_what_they_link_to(site: ModuleType, tree: Path) -> None:
    (tree / "__init__.py").write_text("")
    (tree / "room").mkdir()
    (tree / "room" / "__init__.py").write_text("")
    (tree / "room" / "module.py").write_text("")
    build = tree / "build" / "docs"
    (build / "pages").mkdir(parents=True)
    (build / "pages" / "old.md").write_text("of the last time")
    site.copy(tree, build)
    copied = {str(path.relative_to(build)) for path in build.rglob("*") if path.is_file()}
    assert copied == {
        "zensical.toml",
        "pages/README.md",
        "pages/docs/a.md",
        "pages/docs/a.svg",
        "python/shadowsync/__init__.py",
        "python/shadowsync/room/__init__.py",
        "python/shadowsync/room/module.py",
    }


def test_the_reference_shows_every_public_name() -> None:
    text = (ROOT / "docs" / "reference.md").read_text("utf-8")
    values = {"PROTOCOL_VERSION", "__version__"}
    assert {name for name in shadowsync.__all__ if f"::: shadowsync.{name}\n" not in text} == values
    for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
        assert pkgutil.resolve_name(name) is not None


def test_the_reference_has_every_command() -> None:
    text = (ROOT / "docs" / "reference.md").read_text("utf-8")
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    shown = {name for cell in cells for name in re.findall(r"`([a-z]+(?: [a-z]+)?)", cell)}
    commands = {
        f"{name} {inner}" if inner else name
        for name, command in main.commands.items()
        for inner in (command.commands if isinstance(command, click.Group) else [""])
    }
    assert shown == commands
