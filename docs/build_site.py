"""Build the site from docs/ and the other documents: `make docs`.

The pages are copied as they are, at their places in the repository, with what they link to: links hold on the
site as they do in a checkout. Everything goes to build/docs; the site is build/docs/site.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "docs"
CONFIG = Path("docs", "zensical.toml")
# What documents the project; of these every page must be in the site's contents.
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "benchmarks/README.md",
    "benchmarks/*/results.md",
)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(?:#[^)\s]*)?\)")
# What zensical says without counting it as an issue of `--strict`.
PROBLEM = re.compile(r"^(griffe|mkdocstrings): ", re.MULTILINE)


def pages(root: Path) -> list[str]:
    """List the pages, relative to `root`."""
    return sorted(str(page.relative_to(root)) for pattern in PAGES for page in root.glob(pattern))


def listed(contents: object) -> Iterator[str]:
    """Yield the pages of the site's contents (`nav`)."""
    if isinstance(contents, str):
        yield contents
    elif isinstance(contents, dict):
        for entry in contents.values():
            yield from listed(entry)
    elif isinstance(contents, list):
        for entry in contents:
            yield from listed(entry)


def problems(root: Path) -> list[str]:
    """Say which pages the contents lack, or have and are not there, and which links lead to no file."""
    contents = list(listed(tomllib.loads((root / CONFIG).read_text("utf-8"))["project"]["nav"]))
    there = pages(root)
    said = [f"{page} is not in the nav of {CONFIG}" for page in there if page not in contents]
    said += [
        f"{CONFIG}: {page} is in the nav, and there is no such page" for page in contents if page not in there
    ]
    return said + [
        f"{page}: the link {target} leads to no file"
        for page in there
        for target in LINK.findall((root / page).read_text("utf-8"))
        if not (root / page).parent.joinpath(target).is_file()
    ]


def copy(root: Path, build: Path) -> None:
    """Copy the pages, the files that they link to, the configuration and the package's modules."""
    shutil.rmtree(build, ignore_errors=True)
    for page in pages(root):
        targets = (
            root / page,
            *((root / page).parent / link for link in LINK.findall((root / page).read_text("utf-8"))),
        )
        for target in targets:
            to = build / "pages" / target.resolve().relative_to(root)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, to)
    shutil.copyfile(root / CONFIG, build / CONFIG.name)
    # Not from the root itself: its virtual environment would be searched for modules, which takes a minute.
    package = build / "python" / "shadowsync"
    package.mkdir(parents=True)
    for module in root.glob("*.py"):
        shutil.copyfile(module, package / module.name)
    for folder in root.glob("*/__init__.py"):
        shutil.copytree(
            folder.parent, package / folder.parent.name, ignore=shutil.ignore_patterns("__pycache__")
        )


def main() -> None:
    """Check, copy, build; end with an error that names each broken link, missing page and unknown name."""
    if said := problems(ROOT):
        sys.exit("\n".join(said))
    copy(ROOT, BUILD)
    zensical = Path(sys.executable).with_name("zensical")
    command = [str(zensical), "build", "--clean", "--strict", "--config-file", CONFIG.name]
    built = subprocess.run(
        command, cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    sys.stdout.write(built.stdout)
    if built.returncode or PROBLEM.search(built.stdout):
        sys.exit("make docs: the site has the problems above")
    sys.stdout.write(f"site: {BUILD / 'site' / 'index.html'}\n")


if __name__ == "__main__":
    main()
