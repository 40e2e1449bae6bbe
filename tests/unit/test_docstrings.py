"""The first lines of docstrings: short, and in the imperative or plain nouns."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import shadowsync
from shadowsync.tests.support.imports import package_files

ROOT = Path(shadowsync.__file__).resolve().parent
# Without an `__init__.py`, and not beside an installed package.
BESIDE = ("benchmarks", "examples", "docker")
MOST_WORDS = 14
# "Checks a file" is a third-person verb, "Checks of files" a plural noun.
THIRD_PERSON = re.compile(
    r"(Returns|Gives|Makes|Takes|Gets|Sets|Keeps|Holds|Adds|Waits|Sends|Reads|Writes|Parses|Checks|Raises|Yields"
    r"|Runs|Starts|Stops|Ends|Opens|Closes|Handles|Serves|Computes|Applies|Finds|Loads|Saves|Tells|Says|Shows)\b"
    r"(?! of\b)"
)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def wrong_first_lines(text: str) -> tuple[str, ...]:
    """The first lines of a module's docstrings that are wrong; each text is parsed once."""
    found = []
    for node in ast.walk(ast.parse(text)):
        line = ((isinstance(node, DOCUMENTED) and ast.get_docstring(node)) or "").partition("\n")[0]
        words = len(line.split())
        if words > MOST_WORDS:
            found.append(f"{words} words: {line}")
        if THIRD_PERSON.match(line):
            found.append(f"third person: {line}")
    return tuple(found)


def documented_files() -> Iterator[Path]:
    yield from package_files(ROOT).values()
    for folder in BESIDE:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_first_lines_are_short_and_in_the_imperative() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in documented_files()
        for line in wrong_first_lines(file.read_text("utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Return one two three four five six seven eight nine ten eleven twelve thirteen.", ()),
        (
            "Return one two three four five six seven eight nine ten eleven twelve thirteen fourteen.",
            ("15 words: Return one two three",),
        ),
        ("Returns the codec of a link.", ("third person: Returns the codec",)),
        ("Checks a file.", ("third person: Checks a file",)),
        ("Checks of files.", ()),
        ("Messages refused by one socket.", ()),
    ],
)
@pytest.mark.parametrize("of", ["", "class A:\n    ", "def a():\n    ", "async def a():\n    "])
def test_a_planted_wrong_line_is_found(of: str, line: str, found: tuple[str, ...]) -> None:
    other = "Any other line may have as many words as it likes, such as one, two, three, four and five."
    text = f'{of}"""{line}\n\n    {other}\n    """\n'
    wrong = wrong_first_lines(text)
    assert len(wrong) == len(found)
    assert all(one.startswith(start) for one, start in zip(wrong, found, strict=True))
