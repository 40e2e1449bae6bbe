"""What documents say of the code is so: named places, packages, the rules that code cites."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
import shadowsync
from shadowsync.tests.support.imports import all_imports, package_modules

ROOT = Path(shadowsync.__file__).resolve().parent
# Each page with how many places it names at least.
PAGES = {
    "docs/architecture.md": 40,
    "docs/protocol.md": 3,
    "docs/watching.md": 3,
    "CONTRIBUTING.md": 100,
}
PLACE = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.(?:py|toml|md|yaml))(?::([A-Za-z_.0-9]+))?`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
RULE = re.compile(r'[Rr]ules? "([A-Z][^"]+)"(?: and "([A-Z][^"]+)")?')
# A line of the table of packages: the package, what is in it, which packages beside it are imported.
ROOM = re.compile(r"^\| `((?:nodes|pipeline)/[a-z_.]+)` \| [^|]+ \| (.*) \|$", re.MULTILINE)

if not (ROOT / "docs").is_dir():
    pytest.skip("an installed package has no docs beside it", allow_module_level=True)


def _names(file: Path) -> set[str]:
    """The classes, functions and constants of a file, methods as Class.method."""
    found: set[str] = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, kinds)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def missing(text: str) -> list[str]:
    """The places in a text that are not in the tree. `report.md` and the like are a run's files."""
    wrong = []
    for file, name in PLACE.findall(text):
        path = ROOT / file
        ours = "/" in file or file.endswith(".py")
        if ours and (not path.is_file() or (name and name not in _names(path))):
            wrong.append(f"{file}:{name}" if name else file)
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_place_exists(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert len(PLACE.findall(text)) >= PAGES[page]
    assert missing(text) == []


def test_a_wrong_place_is_found() -> None:
    """The control."""
    assert missing("`nodes/worker/worker.py:Worker._compute`, `pipeline/jobfile/load.py:REMOVED_KEYS`") == []
    assert missing(
        "`nodes/worker/worker.py:Worker._comptue`, `nodes/wroker.py:Worker`, `nodes/wroker.py`"
    ) == [
        "nodes/worker/worker.py:Worker._comptue",
        "nodes/wroker.py:Worker",
        "nodes/wroker.py",
    ]


def _headings(page: Path) -> set[str]:
    """The anchors of a page as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    links = [(page, target) for page in pages for target in LINK.findall(page.read_text("utf-8"))]
    assert len(links) > 50
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []
    anchors = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
    for page in pages:
        for target, anchor in anchors.findall(page.read_text("utf-8")):
            whole = page.parent / target if target else page
            assert anchor in _headings(whole), f"{page.name}: {target}#{anchor}"


def _package(module: str) -> str | None:
    """The package of a module of nodes or pipeline: a folder, or a file of nodes itself."""
    parts = module.split(".")[1:3]
    if parts[:1] == ["nodes"] and ROOT.joinpath(*parts).with_suffix(".py").exists():
        return "/".join(parts) + ".py"
    within = (
        len(parts) == 2
        and parts[0] in ("nodes", "pipeline")
        and ROOT.joinpath(*parts, "__init__.py").exists()
    )
    return "/".join(parts) if within else None


def wrong_packages(text: str) -> list[str]:
    """Where the tables of packages differ from what the packages import of each other."""
    imported: dict[str, set[str]] = defaultdict(set)
    for entry in all_imports(package_modules()):
        package, other = _package(entry.module), _package(entry.target)
        if package:
            beside = other and other != package and other.partition("/")[0] == package.partition("/")[0]
            imported[package] |= {other.partition("/")[2].removesuffix(".py")} if other and beside else set()
    reported = {package: set(re.findall(r"`([a-z_.]+)`", names)) for package, names in ROOM.findall(text)}
    return [
        f"{package} imports {sorted(imported[package])}, the page says {sorted(reported.get(package, []))}"
        for package in sorted(reported.keys() | imported.keys())
        if imported.get(package) != reported.get(package)
    ]


def test_the_packages_import_what_the_page_says() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert wrong_packages(text) == []
    reader = "| `nodes/reader` | the reader: parsing thread, deliveries by credit, sender | `runtime` |"
    assert reader in text
    planted = text.replace(reader, reader.replace("`runtime`", "`worker`"))
    assert len(wrong_packages(planted)) == 1, "the control"


def test_cited_rules_are_defined() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rules = set(
        re.findall(r"^- \*\*([^*]+?)\.?\*\*", text.partition("## Rules that always hold")[2], re.MULTILINE)
    )
    files = [file for folder in ("nodes", "pipeline", "tests") for file in (ROOT / folder).rglob("*.py")]
    cited = {
        name
        for file in files
        if file != Path(__file__).resolve()
        for names in RULE.findall(file.read_text("utf-8"))
        for name in names
        if name
    }
    assert len(cited) > 5
    assert cited - rules == set()
    numbered = re.compile(r"[Cc]ontracts? \d")
    assert [str(file) for file in files if numbered.search(file.read_text("utf-8"))] == []
