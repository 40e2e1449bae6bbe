"""What `--on` names, and what is refused before ray is imported."""

from __future__ import annotations

import os
from typing import Final

from ...pipeline.errors import JobFileError
from ...pipeline.jobfile.extras import require_extra

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
HOW_TO_SUBMIT: Final = "ray job submit --working-dir . -- shadowsync run job.toml --on ray"


def given_address() -> str:
    """Return the cluster's address of the environment.

    "" is the cluster of this machine.
    """
    return os.environ.get(ADDRESS_VARIABLE, "").strip()


def require_engine(on: str) -> None:
    """Raise JobFileError for an engine that cannot be used.

    That is any but ray, Ray Client, a job server, and ray without the extra.
    """
    addresses = on, given_address()
    client = next((address for address in addresses if address.startswith("ray://")), "")
    if client:
        raise JobFileError(
            "is an address of Ray Client, whose job would end with this machine's connection",
            where=client,
            remedy=f"submit the job: {HOW_TO_SUBMIT}",
        )
    server = next((address for address in addresses if address.startswith(("http://", "https://"))), "")
    if server:
        raise JobFileError(
            "is an address of a job server, which takes jobs that are submitted",
            where=server,
            remedy=f"submit the job: {HOW_TO_SUBMIT}; or give the head's address, RAY_ADDRESS=HOST:6379",
        )
    if on != "ray":
        raise JobFileError(
            f"{on!r} given; jobs can be run on ray",
            where="--on",
            remedy="give `--on ray`, and the cluster's address as RAY_ADDRESS, or leave it out",
        )
    require_extra("--on ray", "ray")
