"""List the packages: the repository's root is `shadowsync`."""

from __future__ import annotations

from setuptools import find_packages, setup

OTHERS = ("tests", "benchmarks", "docs", "examples", "docker", "build")
packages = find_packages(exclude=[*OTHERS, *(f"{name}.*" for name in OTHERS)])

setup(
    package_dir={"shadowsync": "."},
    packages=["shadowsync", *(f"shadowsync.{name}" for name in sorted(packages))],
    # Of the modules of "." it leaves out the script of this name; what pip runs has another.
    script_name="setup.py",
)
