"""Print what an image installs.

That is the package's dependencies and those of some extras, without others:

python packages.py web plots --without torch
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path


def packages(project: dict[str, object], extras: list[str], without: list[str]) -> list[str]:
    """Return the requirements, as pip takes them.

    Raises KeyError for an extra that there is not.
    """
    known = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in extras for line in known[extra])]  # type: ignore
    names = {line: re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in lines}
    return sorted({line for line, name in names.items() if name not in without})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--without", nargs="*", default=[])
    given = parser.parse_args()
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(*packages(project, given.extras, given.without), sep="\n")
